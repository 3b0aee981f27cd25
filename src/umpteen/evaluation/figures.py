"""Figures of curves and of values with intervals, as SVG and PNG; without matplotlib there are none.

A figure is one or more panels. Everything is drawn on a canvas of its own, so that the backend of the calling program
is left alone, and the same numbers give the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from umpteen.files.progress import Notice
from umpteen.files.storage import write_atomically

# Apart in hue and in lightness, so that they stay apart in grey and for the colour-blind.
COLOURS = ("#0b5fa5", "#d9730d", "#4f8a10", "#7a3e9d", "#8c6d1f", "#555555", "#c2185b", "#1a9aa8")
_INCHES_OF_A_LETTER = 0.085


class Curve(NamedTuple):
    """Where, and what was measured there: one row of values, or one for each seed."""

    places: Sequence[float]
    values: ArrayLike  # [places] or [seeds, places]
    colour: int | None = None  # which of COLOURS; the curve's number if left out
    dashed: bool = False
    marker: str = "o"


class Point(NamedTuple):
    """A named place."""

    x: float
    y: float
    colour: int


class Value(NamedTuple):
    """A mean and, where there are several seeds, its interval."""

    mean: float
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

    def height(self) -> float:
        return 3.4

    def draw_on(self, axes: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        for number, (name, curve) in enumerate(self.curves.items()):
            colour = COLOURS[(number if curve.colour is None else curve.colour) % len(COLOURS)]
            values = np.atleast_2d(np.asarray(curve.values, dtype=np.float64))
            if len(values) > 1:
                axes.fill_between(curve.places, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
            alone = len(curve.places) == 1
            style: dict[str, Any] = {"marker": curve.marker, "markersize": 7 if alone else 4} if self.marks else {}
            axes.plot(
                curve.places,
                values.mean(0),
                color=colour,
                linewidth=2,
                linestyle="--" if curve.dashed else "-",
                label=name,
                **style,
            )
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y, ylim=self.limits)
        axes.margins(x=0.02 if self.marks else 0)
        axes.ticklabel_format(useOffset=False, axis="y")
        if self.log_x:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=self.whole_x))


@dataclass(frozen=True)
class Dots:
    """One row per name: a dot at the mean, a line over the interval, and the number beside it."""

    values: Mapping[str, Value]
    x: str
    title: str = ""
    digits: int = 1

    def height(self) -> float:
        return 0.9 + 0.32 * len(self.values)

    def draw_on(self, axes: Any) -> None:
        places = np.arange(len(self.values))[::-1]
        for place, value, colour in zip(places, self.values.values(), _cycle(len(self.values)), strict=True):
            if value.interval is not None:
                axes.plot(value.interval, [place, place], color=colour, linewidth=2.2, alpha=0.55)
            axes.plot([value.mean], [place], marker="o", markersize=6, color=colour)
            number = f"{value.mean:.{self.digits}f}"
            axes.annotate(number, (value.mean, place), (0, 6), textcoords="offset points", ha="center", fontsize=8)
        axes.set(title=self.title, xlabel=self.x, ylim=(-0.6, len(self.values) - 0.25))
        axes.set_yticks(places, list(self.values))
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.12)


# Where a name may stand beside its point, the usual place first: alignment, and points to the right and up.
_CORNERS = [("left", 4, 4), ("left", 4, -11), ("right", -4, 4), ("right", -4, -11), ("left", 4, 15), ("left", 4, -22)]


@dataclass(frozen=True)
class Points:
    """Named places, each with its name beside it; colours are told by the other panels' legend."""

    points: Sequence[tuple[str, Point]]
    x: str
    y: str
    title: str = ""

    def height(self) -> float:
        return 3.4

    def draw_on(self, axes: Any) -> None:
        for name, point in self.points:
            axes.plot([point.x], [point.y], marker="o", markersize=5, color=COLOURS[point.colour])
            place = (point.x, point.y)
            axes.annotate(name, place, (4, 4), textcoords="offset points", fontsize=8, color=COLOURS[point.colour])
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y)
        axes.margins(0.15)

    @staticmethod
    def keep_names_apart(axes: Any) -> None:
        """Moves a name that covers another to a free corner of its point, once the layout is known."""
        taken: list[Any] = []
        for name in axes.texts:
            for side, across, height in _CORNERS:
                name.set(position=(across, height), ha=side)
                box = name.get_window_extent()
                if not any(box.overlaps(other) for other in taken):
                    break
            taken.append(name.get_window_extent())


Panel = Lines | Dots | Points


def draw(stem: Path, panels: Sequence[Panel], *, title: str, notice: Notice, columns: int = 2) -> list[Path]:
    """STEM.svg and STEM.png with the panels side by side, `columns` in a row, under one title and over one legend."""
    if find_spec("matplotlib") is None:
        notice("no figure: matplotlib is not installed (pip install 'umpteen[plots]'); the numbers are complete")
        return []
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width = 6.4 if columns == 1 else 4.6 * columns
    heights = [max(panel.height() for panel in panels[row * columns : (row + 1) * columns]) for row in range(rows)]
    figure = Figure(figsize=(width, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    handles: dict[str, Any] = {}
    one_legend = len({tuple(panel.curves) for panel in panels if isinstance(panel, Lines)}) == 1
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        panel.draw_on(axes)
        axes.grid(color="#dddddd", linewidth=0.6, axis="x" if isinstance(panel, Dots) else "both")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if isinstance(panel, Lines) and one_legend:
            found, names = axes.get_legend_handles_labels()
            handles = dict(zip(names, found, strict=True))
        elif isinstance(panel, Lines):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    if handles:
        room = width / (_INCHES_OF_A_LETTER * (max(map(len, handles)) + 7))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=max(1, min(len(handles), int(room))),
            frameon=False,
        )
    numbers = {text for axes in figure.axes for text in axes.xaxis.findobj(Text) if text is not axes.xaxis.label}
    for text in set(figure.findobj(Text)) - numbers:
        text.set_parse_math(False)  # dollars in a name are dollars; powers of ten along x stay formulas
    figure.draw_without_rendering()
    for axes, panel in zip(figure.axes, panels, strict=True):
        if isinstance(panel, Points):
            panel.keep_names_apart(axes)
    written = []
    with rc_context({"svg.hashsalt": "umpteen", "svg.fonttype": "none"}):  # no random names in the SVG, and no date
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            image = BytesIO()
            figure.savefig(image, format=kind, dpi=150, metadata=metadata)
            written.append(stem.with_suffix(f".{kind}"))
            write_atomically(written[-1], image.getvalue())
    return written


def draw_curves(
    stem: Path,
    curves: Mapping[str, Curve],
    *,
    title: str,
    x: str,
    y: str,
    notice: Notice,
    limits: tuple[float, float] | None = None,
) -> list[Path]:
    """A figure of one panel of curves."""
    return draw(stem, [Lines(curves, x=x, y=y, limits=limits, whole_x=True)], title=title, notice=notice)


def _cycle(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]
