"""Figures of curves, as SVG and PNG; without matplotlib there are none, and the numbers stand alone."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from umpteen.storage import write_atomically

# Apart in hue and in lightness, so that they stay apart in grey and for the colour-blind.
COLOURS = ("#0b5fa5", "#d9730d", "#4f8a10", "#7a3e9d", "#8c6d1f", "#555555")


class Curve(NamedTuple):
    """Where, and what was measured there: one row of values, or one for each seed."""

    places: Sequence[float]
    values: ArrayLike  # [places] or [seeds, places]


def draw_curves(
    stem: Path,
    curves: Mapping[str, Curve],
    *,
    title: str,
    x: str,
    y: str,
    notice: Callable[[str], None],
    limits: tuple[float, float] | None = None,
) -> list[Path]:
    """Draws each curve's mean over its seeds, and the band from the lowest to the highest seed."""
    if find_spec("matplotlib") is None:
        notice("no figure: matplotlib is not installed (pip install 'umpteen[plots]'); the numbers are complete")
        return []
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # A canvas of its own leaves the backend of the calling program alone.
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        values = np.atleast_2d(np.asarray(curve.values, dtype=np.float64))
        axes.fill_between(curve.places, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(curve.places, values.mean(0), color=colour, linewidth=2, marker="o", markersize=3.5, label=name)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=limits)
    axes.margins(x=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(len(curves), 3), frameon=False)
    written = []
    # The same numbers give the same bytes: no date, no random names in the SVG.
    with rc_context({"svg.hashsalt": "umpteen", "svg.fonttype": "none"}):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            image = BytesIO()
            figure.savefig(image, format=kind, dpi=150, metadata=metadata)
            written.append(stem.with_suffix(f".{kind}"))
            write_atomically(written[-1], image.getvalue())
    return written
