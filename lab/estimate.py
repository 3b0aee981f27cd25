"""A mean over seeds and queries, how far chance may have moved it, and what that says to a claim.

S seeds, Q queries. Seeds and queries are crossed: every seed's model answers the same test queries. A model of another
seed and another draw of queries would both have moved a mean, so its error has a part from each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

Figures = dict[str, Any]  # {"mean": …, "interval": [low, high] or None for a single seed}

SIDE = 0.025  # chance of a wrong verdict, on each side


class Estimate(NamedTuple):
    """A mean with its standard error (None: a single seed cannot tell) and the degrees of freedom that one rests on."""

    mean: float
    error: float | None
    freedom: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> "Estimate":
        """Of one value a seed, or of one for each seed and query."""  # [S] or [S, Q]
        found = np.asarray(values, dtype=np.float64)
        mean, seeds = float(found.mean()), len(found)
        if seeds < 2:
            return cls(mean, None)
        if found.ndim == 1 or found.shape[1] < 2:
            return cls(mean, float(np.std(found.reshape(seeds), ddof=1) / np.sqrt(seeds)), seeds - 1)
        return cls(mean, *_crossed(found))

    @property
    def interval(self) -> list[float] | None:
        """Student's, 95 %."""
        if self.error is None:
            return None
        half = float(student.ppf(1 - SIDE, self.freedom)) * self.error
        return [round(self.mean - half, 3), round(self.mean + half, 3)]

    @property
    def chance_above(self) -> float:
        """Of a mean at least as high if the truth were 0: small where the claim "above 0" holds."""
        if not self.error:
            return 0.5 if self.error is None or self.mean == 0 else float(self.mean < 0)
        return float(student.sf(self.mean / self.error, self.freedom))

    def figures(self, within: tuple[float, float] = (-np.inf, np.inf)) -> Figures:
        """Ready for JSON, the interval cut to the possible values."""
        interval = self.interval
        cut = None if interval is None else [float(np.clip(side, *within)) for side in interval]
        return {"mean": round(self.mean, 3), "interval": cut}


def _crossed(values: NDArray[np.float64]) -> tuple[float, float]:
    """Standard error and degrees of freedom (Satterthwaite's) of the mean of a table of drawn rows and columns."""
    rows, columns = values.shape
    by_row, by_column, mean = values.mean(1), values.mean(0), values.mean()
    rest = values - by_row[:, None] - by_column + mean
    free = np.array([rows - 1, columns - 1, (rows - 1) * (columns - 1)], dtype=np.float64)
    squares = np.array(
        [columns * ((by_row - mean) ** 2).sum(), rows * ((by_column - mean) ** 2).sum(), (rest**2).sum()]
    )
    of_rows, of_columns, of_rest = squares / free
    # A side that varies less than the rest does adds nothing of its own.
    parts = np.array([max(of_rows, of_rest), max(of_columns, of_rest), -of_rest])
    variance = parts.sum()
    if variance <= 0:
        return 0.0, float(rows - 1)
    return float(np.sqrt(variance / values.size)), float(variance**2 / (parts**2 / free).sum())


def verdict(difference: Sequence[float] | None) -> str:
    """What the interval of ours − theirs says to the claim that ours is better."""
    if difference is None or difference[0] <= 0 <= difference[1]:
        return "undecided"
    return "confirmed" if difference[0] > 0 else "refuted"


def best_of_all(differences: Mapping[str, Estimate]) -> tuple[str, dict[str, float]]:
    """The verdict on "better than every rival", and the chance of each rival's lead, corrected for their number.

    Confirmed where ours is above each rival: all must hold, so no correction is needed. Refuted where at least one
    rival is above ours after Holm's correction: the more rivals, the likelier that one is ahead by chance.
    """
    leads = holm({rival: 1 - ours.chance_above for rival, ours in differences.items()})
    if max(ours.chance_above for ours in differences.values()) < SIDE:
        return "confirmed", leads
    return ("refuted" if min(leads.values()) < SIDE else "undecided"), leads


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Each chance corrected for the number of tests (Holm's step-down)."""
    corrected: dict[str, float] = {}
    so_far = 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        so_far = max(so_far, min(1.0, (len(chances) - place) * chances[name]))
        corrected[name] = so_far
    return {name: corrected[name] for name in chances}
