"""Figures as SVG and PNG, of named points; without matplotlib there are none.

Everything is drawn on a canvas of its own, so that the backend of the calling program is left alone, and the same
numbers give the same bytes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import Any, NamedTuple

# Apart in hue and in lightness, so that they stay apart in grey and for the colour-blind.
COLOURS = ("#0b5fa5", "#d9730d", "#4f8a10", "#7a3e9d", "#8c6d1f", "#555555", "#c2185b", "#1a9aa8")
NO_FIGURE = "no figure: matplotlib is not installed (pip install 'umpteen[plots]'); the numbers are complete"
# Where a name may stand beside its point, the usual place first: alignment, and points to the right and up.
_CORNERS = [(side, over, up) for up in (4, -11, 15, -22, 26, -33) for side, over in (("left", 5), ("right", -5))]

Draw = Callable[[Any], None]  # upon an empty matplotlib figure


class Point(NamedTuple):
    """A named place, and the interval of its y."""

    name: str
    x: float
    y: float
    colour: int
    interval: Sequence[float] | None = None


@dataclass(frozen=True)
class Points:
    """Named places, each with its name beside it; colours are told by the other panels' legend or the caption."""

    points: Sequence[Point]
    x: str
    y: str
    title: str = ""
    log_x: bool = False
    height = 3.4

    def draw_on(self, axes: Any) -> None:
        for name, x, y, number, interval in self.points:
            colour = colour_of(number)
            if interval is not None:
                axes.plot([x, x], interval, color=colour, linewidth=2.2, alpha=0.55)
            axes.plot([x], [y], marker="o", markersize=5, color=colour)
            axes.annotate(name, (x, y), (5, 4), textcoords="offset points", fontsize=8, color=colour, in_layout=False)
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y)
        if self.log_x:
            axes.set_xscale("log")
        axes.margins(0.15)


def bare_axes(figure: Any, place: Any = 111) -> Any:
    """Axes with a grid behind, and no frame."""
    axes = figure.add_subplot(place)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def render(draw: Draw, *, size: tuple[float, float], kinds: Sequence[str] = ("svg", "png")) -> dict[str, bytes]:
    """What is drawn on a figure of so many inches; nothing without matplotlib."""
    if find_spec("matplotlib") is None:
        return {}
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    numbers = {text for axes in figure.axes for text in axes.xaxis.findobj(Text) if text is not axes.xaxis.label}
    for text in set(figure.findobj(Text)) - numbers:
        text.set_parse_math(False)  # dollars in a name are dollars; powers of ten along x stay formulas
    figure.draw_without_rendering()
    for axes in figure.axes:
        _keep_names_apart(axes)
    # The same bytes every time: no random names, no date; and no address in what becomes part of a page.
    bare = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}
    images = {kind: BytesIO() for kind in kinds}
    with rc_context({"svg.hashsalt": "umpteen", "svg.fonttype": "none"}):
        for kind, image in images.items():
            figure.savefig(image, format=kind, dpi=150, metadata=bare[kind])
    return {kind: image.getvalue() for kind, image in images.items()}


def _keep_names_apart(axes: Any) -> None:
    """Puts each point's name where it is within the figure and covers fewest points and names; the layout is known."""
    taken = [mark.get_window_extent().padded(2) for mark in axes.lines]
    frame = axes.figure.bbox

    def trouble(name: Any, corner: tuple[str, int, int]) -> tuple[bool, int]:
        name.set(ha=corner[0], position=corner[1:])
        box = name.get_window_extent()
        return box.x0 < frame.x0 or box.x1 > frame.x1, box.count_overlaps(taken)

    for name in (text for text in axes.texts if not text.get_in_layout()):
        trouble(name, min(_CORNERS, key=partial(trouble, name)))  # of equals the first
        taken.append(name.get_window_extent())


def inline(svg: str, prefix: str) -> str:
    """A drawing as part of a page: without its XML head, its names made unique there."""
    drawing = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg[svg.index("<svg") :])
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", drawing)


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
