"""Figures of the experiments, as SVG and PNG; without matplotlib there are none, and the numbers stand alone."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from umpteen.storage import write_atomically

# Apart in hue and in lightness, so that they stay apart in grey and for the colour-blind.
COLOURS = ("#0b5fa5", "#d9730d", "#4f8a10", "#7a3e9d")


def draw_courses(
    stem: Path,
    epochs: Sequence[float],
    courses: Mapping[str, ArrayLike],
    *,
    title: str,
    caption: str,
    metric: str,
    notice: Callable[[str], None],
) -> list[Path]:
    """Draws each method's mean over its seeds [seeds, epochs], in percent, and the band from worst to best seed."""
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
    for (name, course), colour in zip(courses.items(), COLOURS, strict=False):
        values = np.atleast_2d(np.asarray(course, dtype=np.float64))
        axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(epochs, values.mean(0), color=colour, linewidth=2, marker="o", markersize=3.5, label=name)
    axes.set(
        title=f"{title}\n({caption})",
        xlabel="epoch",
        ylabel=f"{metric} (%)",
        ylim=(-2, 102),
        xlim=(epochs[0], epochs[-1]),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(courses), frameon=False)
    written = []
    # The same numbers give the same bytes: no date, no random names in the SVG.
    with rc_context({"svg.hashsalt": "umpteen", "svg.fonttype": "none"}):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            image = BytesIO()
            figure.savefig(image, format=kind, dpi=150, metadata=metadata)
            written.append(stem.with_suffix(f".{kind}"))
            write_atomically(written[-1], image.getvalue())
    return written
