"""Figures show names as they are, whatever characters these hold."""

from pathlib import Path

import pytest
from lab.dots import Dots, Value
from lab.figures import Curve, Lines, draw

from umpteen.evaluation.figures import Point, Points

ODD = r"$\frac{$ & $x$"


def test_a_name_that_looks_like_a_formula_is_drawn_as_a_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = {ODD: Curve([1, 1000], [1, 2])}
    panels = [
        Lines(curves, x=ODD, y=ODD, title=ODD, log_x=True),
        Dots({ODD: Value(1.0)}, x=ODD, title=ODD),
        Points([Point(ODD, 1, 1, 0)], x=ODD, y=ODD, title=ODD),
        Lines({**curves, "another": Curve([1, 2], [1, 2])}, x=ODD, y=ODD, title=ODD),
    ]
    draw(tmp_path / "figure", panels, title=ODD, notice=pytest.fail)
    drawn = (tmp_path / "figure.svg").read_text()
    assert drawn.count(">$\\frac{$ &amp; $x$<") == 16
    assert ">$\\mathdefault" not in drawn  # the powers of ten of the logarithmic axis are formulas still
