"""Figures of curves and of named points, as SVG and PNG; without matplotlib there are none.

A figure is one or more panels. Everything is drawn on a canvas of its own, so that the backend of the calling program
is left alone, and the same numbers give the same bytes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from umpteen.files.progress import Notice
from umpteen.files.storage import write_atomically

# Apart in hue and in lightness, so that they stay apart in grey and for the colour-blind.
COLOURS = ("#0b5fa5", "#d9730d", "#4f8a10", "#7a3e9d", "#8c6d1f", "#555555", "#c2185b", "#1a9aa8")
NO_FIGURE = "no figure: matplotlib is not installed (pip install 'umpteen[plots]'); the numbers are complete"
_INCHES_OF_A_LETTER = 0.085


class Curve(NamedTuple):
    """Where, and what was measured there: one row of values, or one for each seed."""

    places: Sequence[float]
    values: ArrayLike  # [places] or [seeds, places]
    colour: int | None = None  # which of COLOURS; the curve's number if left out
    dashed: bool = False
    marker: str = "o"


class Point(NamedTuple):
    """A named place, and the interval of its y."""

    name: str
    x: float
    y: float
    colour: int
    interval: Sequence[float] | None = None


@dataclass(frozen=True)
class Lines:
    """Each curve's mean over its seeds, and the band from the lowest to the highest seed."""

    curves: Mapping[str, Curve]
    x: str
    y: str
    title: str = ""
    limits: tuple[float, float] | None = None  # of y
    log_x: bool = False
    whole_x: bool = False  # only whole numbers along x
    marks: bool = True
    height = 3.4

    def draw_on(self, axes: Any) -> None:
        for number, (name, curve) in enumerate(self.curves.items()):
            colour = colour_of(number if curve.colour is None else curve.colour)
            values = np.atleast_2d(np.asarray(curve.values, dtype=np.float64))
            if len(values) > 1:
                axes.fill_between(curve.places, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
            style = {"color": colour, "linewidth": 2, "linestyle": "--" if curve.dashed else "-", "label": name}
            if self.marks:
                style |= {"marker": curve.marker, "markersize": 7 if len(curve.places) == 1 else 4}
            axes.plot(curve.places, values.mean(0), **style)
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y, ylim=self.limits)
        axes.margins(x=0.02 if self.marks else 0)
        axes.ticklabel_format(useOffset=False, axis="y")
        if self.log_x:
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=8, integer=self.whole_x)


# Where a name may stand beside its point, the usual place first: alignment, and points to the right and up.
_CORNERS = [(side, over, up) for up in (4, -11, 15, -22, 26, -33) for side, over in (("left", 5), ("right", -5))]


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

    @staticmethod
    def keep_names_apart(axes: Any) -> None:
        """Puts each name where it is within the figure and covers fewest points and names; the layout must be known."""
        taken = [mark.get_window_extent().padded(2) for mark in axes.lines]
        frame = axes.figure.bbox

        def trouble(name: Any, corner: tuple[str, int, int]) -> tuple[bool, int]:
            name.set(ha=corner[0], position=corner[1:])
            box = name.get_window_extent()
            return box.x0 < frame.x0 or box.x1 > frame.x1, box.count_overlaps(taken)

        for name in axes.texts:
            trouble(name, min(_CORNERS, key=partial(trouble, name)))  # of equals the first
            taken.append(name.get_window_extent())


class Panel(Protocol):
    """What a figure is made of."""

    @property
    def height(self) -> float: ...  # inches

    def draw_on(self, axes: Any) -> None: ...


def render(panels: Sequence[Panel], *, title: str = "", kinds: Sequence[str] = ("svg", "png")) -> dict[str, bytes]:
    """The panels side by side, two in a row, under one title and over one legend; nothing without matplotlib."""
    if find_spec("matplotlib") is None:
        return {}
    from matplotlib import rc_context

    # The same bytes every time: no random names, no date; and no address in what becomes part of a page.
    bare = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}
    figure = _figure(panels, title)
    images = {kind: BytesIO() for kind in kinds}
    with rc_context({"svg.hashsalt": "umpteen", "svg.fonttype": "none"}):
        for kind, image in images.items():
            figure.savefig(image, format=kind, dpi=150, metadata=bare[kind])
    return {kind: image.getvalue() for kind, image in images.items()}


def draw(stem: Path, panels: Sequence[Panel], *, title: str, notice: Notice) -> list[Path]:
    """STEM.svg and STEM.png of the panels."""
    images = render(panels, title=title)
    for kind, image in images.items():
        write_atomically(stem.with_suffix(f".{kind}"), image)
    if not images:
        notice(NO_FIGURE)
    return [stem.with_suffix(f".{kind}") for kind in images]


def inline(svg: str, prefix: str) -> str:
    """A drawing as part of a page: without its XML head, its names made unique there."""
    drawing = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg[svg.index("<svg") :])
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", drawing)


def _figure(panels: Sequence[Panel], title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    columns = min(2, len(panels))
    width = 6.4 if columns == 1 else 4.6 * columns
    heights = [max(panel.height for panel in panels[at : at + columns]) for at in range(0, len(panels), columns)]
    figure = Figure(figsize=(width, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    one_legend = len({tuple(panel.curves) for panel in panels if isinstance(panel, Lines)}) == 1
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(grid[number])
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        panel.draw_on(axes)
        axes.spines[["top", "right"]].set_visible(False)
        if isinstance(panel, Lines) and not one_legend:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=8)
        elif isinstance(panel, Lines) and not figure.legends:
            handles, names = axes.get_legend_handles_labels()
            room = int(width / (_INCHES_OF_A_LETTER * (max(map(len, names)) + 7)))
            ncols = max(1, min(len(names), room))
            figure.legend(handles, names, loc="outside lower center", ncols=ncols, frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    numbers = {text for axes in figure.axes for text in axes.xaxis.findobj(Text) if text is not axes.xaxis.label}
    for text in set(figure.findobj(Text)) - numbers:
        text.set_parse_math(False)  # dollars in a name are dollars; powers of ten along x stay formulas
    figure.draw_without_rendering()
    for axes, panel in zip(figure.axes, panels, strict=True):
        if isinstance(panel, Points):
            panel.keep_names_apart(axes)
    return figure


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
