"""Charts name what they show, whatever the names and the values are."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from umpteen.evaluation.chart import BOTTOM, LEFT, RIGHT, TOP, Axis, Series, chart, write_figure

ODD = "<b> & $x$"


def texts(drawn: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(drawn).iter() if text.tag.endswith("text")]


def test_names_are_drawn_as_they_are_and_a_file_is_an_image_of_its_own(tmp_path: Path) -> None:
    drawn = chart([Series(ODD, [(1, 1), (2, 3)]), Series("b", [(1, 2)])], x=ODD, y=ODD, title=ODD)
    assert texts(drawn).count(ODD) == 4 and "b" in texts(drawn) and "http" not in drawn
    write_figure(tmp_path / "figure.svg", [drawn, drawn], title=ODD)
    written = (tmp_path / "figure.svg").read_text()
    assert written.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and texts(written).count(ODD) == 9


@pytest.mark.parametrize("values", [[3.0], [0.0, 1.0], [2.0, 2.0], [-5.0, 1e6]])
@pytest.mark.parametrize("log", [False, True])
def test_every_value_and_every_tick_lies_within_its_axis(values: list[float], log: bool) -> None:
    values = [abs(value) + 1 for value in values] if log else values
    axis = Axis.over(values, LEFT, RIGHT, log=log)
    assert all(LEFT <= axis.at(value) <= RIGHT + 1e-9 for value in [*values, *axis.ticks()])
    assert len(axis.ticks()) >= 1 and axis.ticks() == sorted(set(axis.ticks()))


def test_a_curve_is_where_its_values_are() -> None:
    drawn = chart([Series("a", [(0, 0), (1, 1)])], x="", y="", limits=(0, 2))
    (line,) = (each for each in ElementTree.fromstring(drawn) if each.tag == "polyline")
    first, last = (tuple(map(float, point.split(","))) for point in line.attrib["points"].split())
    assert LEFT < first[0] < last[0] < RIGHT
    assert (first[1], last[1]) == (BOTTOM, (BOTTOM + TOP) / 2)
