"""How far probabilities are from what happens: expected calibration error, Brier score, log loss, reliability bins.

M pairs of a text and a label, each with a probability and whether the label is right.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 15
_LEAST = 1e-6  # a probability of exactly 0 or 1 that is wrong would cost an infinite log loss


class Bin(NamedTuple):
    """Pairs of like probability."""

    pairs: int
    probability: float  # their mean
    right: float  # the share that is right


class Reliability(NamedTuple):
    """ECE is the mean distance between a bin's probability and its share of right pairs, weighed by its pairs."""

    ece: float  # BINS bins of equally many pairs
    ece_equal_width: float  # BINS bins of equal width
    brier: float
    log_loss: float
    pairs: int
    bins: list[Bin]  # of equally many pairs

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON, without the bins."""
        return {name: value for name, value in self._asdict().items() if name != "bins"}


def reliability_of(probabilities: NDArray[np.floating], right: NDArray[np.bool_]) -> Reliability:
    """The figures of these pairs; the arrays may have any shape, and must not be empty."""
    values, truth = probabilities.ravel().astype(np.float64), right.ravel()
    order = np.argsort(values, kind="stable")
    mass = [Bin(len(part), float(values[part].mean()), float(truth[part].mean())) for part in _equal_mass(order)]
    place = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    width = [Bin(int(at.sum()), float(values[at].mean()), float(truth[at].mean())) for at in _members(place)]
    return Reliability(
        ece=_expected_error(mass),
        ece_equal_width=_expected_error(width),
        brier=float(np.square(values - truth).mean()),
        log_loss=log_loss(values, truth),
        pairs=len(values),
        bins=mass,
    )


def log_loss(probabilities: NDArray[np.floating], right: NDArray[np.bool_]) -> float:
    """The mean of −log of the probability given to what happened, in nats."""
    values = np.clip(probabilities.astype(np.float64), _LEAST, 1 - _LEAST)
    return float(-np.log(np.where(right, values, 1 - values)).mean())


def _equal_mass(order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [part for part in np.array_split(order, BINS) if len(part)]


def _members(place: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    return [place == number for number in range(BINS) if (place == number).any()]


def _expected_error(bins: list[Bin]) -> float:
    pairs = sum(one.pairs for one in bins)
    return sum(one.pairs * abs(one.probability - one.right) for one in bins) / pairs
