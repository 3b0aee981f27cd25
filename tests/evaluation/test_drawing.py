"""The package's own figures show names as they are, and are the same every time."""

from typing import Any

import pytest

from umpteen.evaluation.figures import Point, Points, bare_axes, render

ODD = r"$\frac{$ & $x$"


def draw_points(figure: Any) -> None:
    Points([Point(ODD, 1, 1, 0), Point("near", 1, 1, 1, (0.5, 2))], x=ODD, y=ODD, title=ODD).draw_on(bare_axes(figure))


def test_a_name_that_looks_like_a_formula_is_drawn_as_a_name_and_always_alike() -> None:
    pytest.importorskip("matplotlib")
    once, again = (render(draw_points, size=(6.4, 4.0)) for _ in range(2))
    assert once == again and once["svg"].decode().count(">$\\frac{$ &amp; $x$<") == 4
    assert once["png"].startswith(b"\x89PNG")
