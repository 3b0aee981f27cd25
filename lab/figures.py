"""The figure of an experiment: panels side by side, of curves with bands over seeds, of points, or of dots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from umpteen.evaluation.figures import NO_FIGURE, bare_axes, colour_of, render
from umpteen.files.progress import Notice
from umpteen.files.storage import write_atomically

_INCHES_OF_A_LETTER = 0.085


class Curve(NamedTuple):
    """Where, and what was measured there: one row of values, or one for each seed."""

    places: Sequence[float]
    values: ArrayLike  # [places] or [seeds, places]
    colour: int | None = None  # which of COLOURS; the curve's number if left out
    dashed: bool = False
    marker: str = "o"


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


class Panel(Protocol):
    """What a figure is made of."""

    @property
    def height(self) -> float: ...  # inches

    def draw_on(self, axes: Any) -> None: ...


def draw(stem: Path, panels: Sequence[Panel], *, title: str, notice: Notice) -> list[Path]:
    """STEM.svg and STEM.png of the panels, two in a row, under one title and over one legend."""
    columns = min(2, len(panels))
    heights = [max(panel.height for panel in panels[at : at + columns]) for at in range(0, len(panels), columns)]
    size = (6.4 if columns == 1 else 4.6 * columns, sum(heights) + 0.6)
    images = render(partial(_draw_panels, panels, heights, title), size=size)
    for kind, image in images.items():
        write_atomically(stem.with_suffix(f".{kind}"), image)
    if not images:
        notice(NO_FIGURE)
    return [stem.with_suffix(f".{kind}") for kind in images]


def _draw_panels(panels: Sequence[Panel], heights: Sequence[float], title: str, figure: Any) -> None:
    grid = figure.add_gridspec(len(heights), min(2, len(panels)), height_ratios=heights)
    shown = {}
    for number, panel in enumerate(panels):
        axes = bare_axes(figure, grid[number])
        panel.draw_on(axes)
        if names := tuple(axes.get_legend_handles_labels()[1]):
            shown[axes] = names
    if len(set(shown.values())) == 1:
        handles, names = next(iter(shown)).get_legend_handles_labels()
        room = int(figure.get_figwidth() / (_INCHES_OF_A_LETTER * (max(map(len, names)) + 7)))  # of names in a row
        ncols = max(1, min(len(names), room))
        figure.legend(handles, names, loc="outside lower center", ncols=ncols, frameon=False)
    else:
        for axes in shown:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
