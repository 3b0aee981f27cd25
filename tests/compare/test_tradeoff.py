"""The trade-off figure names every method inside its frame, and survives degenerate costs; the page does without it."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from umpteen.compare.comparison import draw_tradeoff, short_number, write_page
from umpteen.evaluation import figures

ODD = r"$\frac{$ <b>"


def method(name: str, cost: float, value: float, *, ours: bool = False) -> dict[str, Any]:
    return {
        "method": name,
        "ours": ours,
        "metrics": {"P@1": value},
        "intervals": {"P@1": (value - 1, value + 1)},
        "train_seconds": cost,
        "predict_seconds": 0.5,
        "parameters": cost,
        "differences": {} if ours else {"P@1": {"value": -1.0, "interval": [-2.0, -0.5], "p": 0.01}},
        "settings": ["a=1"],
        "trials": [{"settings": ["a=1"], "metrics": {"P@1": 5.0}, "seconds": 1.0}],
    }


def methods(*costs: float) -> list[dict[str, Any]]:
    return [method(f"method {at} {ODD}", cost, 50 + at, ours=at == 0) for at, cost in enumerate(costs)]


def names_and_places(results: list[dict[str, Any]]) -> tuple[ElementTree.Element, dict[str, tuple[float, float]]]:
    pytest.importorskip("matplotlib")
    drawn = ElementTree.fromstring(str(draw_tradeoff(results, "train_seconds", "seconds")).replace("xlink:", ""))
    texts = {str(text.text): (float(text.get("x", "nan")), float(text.get("y", "nan"))) for text in drawn.iter("text")}
    return drawn, texts


@pytest.mark.parametrize("costs", [(0.1, 20, 3e7), (5.0,), (0.0, 0.0), (7.0, 7.0, 7.0, 7.0), (7.0, 7.1, 7.2)])
def test_every_method_is_named_once_and_inside_the_frame(costs: tuple[float, ...]) -> None:
    drawn, texts = names_and_places(methods(*costs))
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    places = [texts[one["method"]] for one in methods(*costs)]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    assert len(set(places)) == len(costs)  # no name covers another


def test_large_numbers_are_short() -> None:
    assert [short_number(n) for n in (0, 12, 1234, 38_400_000, 2e9)] == ["0", "12", "1.23k", "38.4M", "2G"]


def test_a_method_far_below_does_not_press_the_others_together() -> None:
    _, texts = names_and_places([*methods(10.0, 20.0), method("popularity", 1.0, 9.4)])
    heights = [texts[name][1] for name in (f"method 0 {ODD}", f"method 1 {ODD}", "popularity (9.4, below)")]
    assert abs(heights[0] - heights[1]) > 40 and heights[2] == max(heights)


def outcome() -> dict[str, Any]:
    numbers = dict.fromkeys(("labels", "train_queries", "validation_queries", "test_queries"), 1234)
    return {
        **numbers,
        "dataset": ODD,
        "test_queries_left_out": 2,
        "propensity": {"A": 0.55, "B": 1.5},
        "metric": "P@1",
        "trials": 1,
        "seed": 0,
        "reference": f"method 0 {ODD}",
        "results": methods(1.0, 20.0),
        "skipped": [{"method": "xr-linear", "reason": "<i>nowhere</i>"}],
    }


def test_the_page_escapes_names_and_needs_no_other_file(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", outcome())
    page = (tmp_path / "index.html").read_text()
    assert "<b>:" not in page and "<i>" not in page and "$\\frac{$ &lt;b&gt;: umpteen beside" in page
    assert "1,234 test queries (2 without positives left out)" in page and "−2.0 to −0.5" in page
    assert "A = 0.55, B = 1.5; seed 0" in page and "http" not in page
    names = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(names) == len(set(names))


def test_without_matplotlib_the_page_says_how_to_get_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    write_page(tmp_path / "index.html", outcome())
    page = (tmp_path / "index.html").read_text()
    assert "<svg" not in page and "umpteen[plots]" in page and "method 1" in page
