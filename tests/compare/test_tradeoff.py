"""The trade-off figure names every method inside its frame, and survives degenerate costs."""

import re
from xml.etree import ElementTree

import pytest

from umpteen.compare.page import Dot, draw_tradeoff, short_number


def dots(*costs: float) -> list[Dot]:
    return [Dot(f"method {at} <b>", cost, 50 + at, (49 + at, 51 + at), at == 0) for at, cost in enumerate(costs)]


@pytest.mark.parametrize("costs", [(0.1, 20, 3e7), (5.0,), (0.0, 0.0), (7.0, 7.0, 7.0, 7.0)])
def test_every_method_is_named_and_inside_the_frame(costs: tuple[float, ...]) -> None:
    drawn = draw_tradeoff(dots(*costs), title="P@1 against <cost>", x="cost", y="P@1")
    tree = ElementTree.fromstring(drawn)
    names = [text.text for text in tree.iter("text") if "name" in text.attrib["class"]]
    assert names == [dot.name for dot in dots(*costs)]
    width, height = map(float, re.search(r"0 0 (\d+) (\d+)", drawn).groups())
    for dot in tree.iter("circle"):
        assert 0 < float(dot.attrib["cx"]) < width and 0 < float(dot.attrib["cy"]) < height


def test_names_of_methods_in_one_place_do_not_cover_each_other() -> None:
    tree = ElementTree.fromstring(draw_tradeoff(dots(7.0, 7.1, 7.2), title="t", x="x", y="y"))
    places = [(text.attrib["x"], text.attrib["y"]) for text in tree.iter("text") if "name" in text.attrib["class"]]
    assert len(set(places)) == 3


def test_large_numbers_are_short() -> None:
    assert [short_number(n) for n in (0, 12, 1234, 38_400_000, 2e9)] == ["0", "12", "1.23k", "38.4M", "2G"]


def test_a_method_far_below_does_not_press_the_others_together() -> None:
    poor = Dot("popularity", 1.0, 9.4, (8.0, 10.0), False)
    drawn = draw_tradeoff([*dots(10.0, 20.0), poor], title="t", x="x", y="y")
    assert "popularity (9.4, below)" in drawn
    heights = [float(dot.attrib["cy"]) for dot in ElementTree.fromstring(drawn).iter("circle")]
    assert abs(heights[0] - heights[1]) > 40 and heights[2] == max(heights)
