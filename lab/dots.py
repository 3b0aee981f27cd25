"""A panel of means with their intervals, one row per name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from umpteen.evaluation.figures import colour_of


class Value(NamedTuple):
    """A mean and, where there are several seeds, its interval."""

    mean: float
    interval: Sequence[float] | None = None


@dataclass(frozen=True)
class Dots:
    """One row per name: a dot at the mean, a line over the interval, and the number beside it."""

    values: Mapping[str, Value]
    x: str
    title: str = ""
    digits: int = 1

    @property
    def height(self) -> float:
        return 0.9 + 0.32 * len(self.values)

    def draw_on(self, axes: Any) -> None:
        places = np.arange(len(self.values))[::-1]
        for number, (place, value) in enumerate(zip(places, self.values.values(), strict=True)):
            if value.interval is not None:
                axes.hlines(place, *value.interval, color=colour_of(number), linewidth=2.2, alpha=0.55)
            axes.plot([value.mean], [place], marker="o", markersize=6, color=colour_of(number))
            shown = f"{value.mean:.{self.digits}f}"
            axes.annotate(shown, (value.mean, place), (0, 6), textcoords="offset points", ha="center", fontsize=8)
        axes.set(title=self.title, xlabel=self.x, ylim=(-0.6, len(self.values) - 0.25))
        axes.set_yticks(places, list(self.values))
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.12)
