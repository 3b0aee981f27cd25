"""From a score to a probability, never falling: a staircase of knots (isotonic) or a logistic curve (Platt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from umpteen.errors import BadInput

Kind = Literal["isotonic", "platt"]
KINDS: tuple[Kind, ...] = ("isotonic", "platt")

_ALMOST_UNREGULARISED = 1e6


@dataclass(frozen=True)
class Isotonic:
    """Between two knots the probability lies on the line that joins them; outside it is that of the nearest knot."""

    scores: NDArray[np.float64]  # [knots], rising
    probabilities: NDArray[np.float64]  # [knots], never falling

    def __post_init__(self) -> None:
        if len(self.scores) == 0 or len(self.scores) != len(self.probabilities):
            raise BadInput(f"{len(self.scores)} scores and {len(self.probabilities)} probabilities are no curve")
        if not ((np.diff(self.scores) > 0).all() and (np.diff(self.probabilities, prepend=0, append=1) >= 0).all()):
            raise BadInput("a curve's scores must rise, and its probabilities must not fall on their way from 0 to 1")

    @classmethod
    def fit(cls, scores: NDArray[np.floating], right: NDArray[np.bool_]) -> Isotonic:
        """The never falling curve nearest to the pairs; 0 and 1 are as far away as the pairs behind them are few."""
        from sklearn.isotonic import IsotonicRegression

        scores = scores.astype(np.float64)
        fitted = IsotonicRegression(out_of_bounds="clip").fit(scores, right.astype(np.float64))
        knots, values = np.asarray(fitted.X_thresholds_), np.asarray(fitted.y_thresholds_)
        # Of n pairs of which none is wrong, the next one may be (Laplace: 1 in n + 2); the neighbours stay as they are.
        first, last = values == values[0], values == values[-1]
        if values[0] == 0 and not first.all():
            values = np.where(first, min(1 / ((scores <= knots[first][-1]).sum() + 2), values[~first][0]), values)
        if values[-1] == 1 and not last.all():
            values = np.where(last, max(1 - 1 / ((scores >= knots[last][0]).sum() + 2), values[~last][-1]), values)
        return cls(knots, values)

    def __call__(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.asarray(np.interp(scores, self.scores, self.probabilities))

    def to_dict(self) -> dict[str, Any]:
        return {"scores": self.scores.tolist(), "probabilities": self.probabilities.tolist()}


@dataclass(frozen=True)
class Platt:
    """1 ÷ (1 + exp(−(slope · score + intercept)))."""

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.slope, self.intercept]).all() and self.slope >= 0):
            raise BadInput(f"slope {self.slope} and intercept {self.intercept} are no curve that never falls")

    @classmethod
    def fit(cls, scores: NDArray[np.floating], right: NDArray[np.bool_]) -> Platt:
        """The logistic curve under which the pairs are likeliest; flat where larger scores are not better ones."""
        slopes, intercept = logistic(scores[:, None], right)
        if slopes[0] > 0:
            return cls(float(slopes[0]), intercept)
        return cls(0.0, logistic(np.zeros((len(right), 1)), right)[1])

    def __call__(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.asarray(expit(self.slope * scores.astype(np.float64) + self.intercept))

    def to_dict(self) -> dict[str, Any]:
        return {"slope": self.slope, "intercept": self.intercept}


Curve = Isotonic | Platt


def logistic(readings: NDArray[np.floating], right: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Slopes and intercept of the logistic curve under which the pairs are likeliest; readings are [pairs, n]."""
    from sklearn.linear_model import LogisticRegression

    readings = readings.astype(np.float64)
    centre, spread = readings.mean(0), readings.std(0)
    if right.all() or not right.any() or not spread.any():
        rate = (right.sum() + 1) / (right.size + 2)  # nothing to tell right and wrong ones apart by
        return np.zeros(readings.shape[1]), float(np.log(rate / (1 - rate)))
    spread = np.where(spread > 0, spread, 1.0)
    model = LogisticRegression(C=_ALMOST_UNREGULARISED, max_iter=1000).fit((readings - centre) / spread, right)
    slopes = model.coef_[0] / spread
    return slopes, float(model.intercept_[0] - slopes @ centre)


def fit_curve(kind: Kind, scores: NDArray[np.floating], right: NDArray[np.bool_]) -> Curve:
    """The curve of that kind through scores and whether each is right."""
    return Isotonic.fit(scores, right) if kind == "isotonic" else Platt.fit(scores, right)


def read_curve(kind: str, content: dict[str, Any]) -> Curve:
    """What `to_dict` gave."""
    if kind == "isotonic":
        return Isotonic(np.array(content["scores"], np.float64), np.array(content["probabilities"], np.float64))
    if kind == "platt":
        return Platt(float(content["slope"]), float(content["intercept"]))
    raise BadInput(f"{kind!r} is no kind of curve; there is {' and '.join(KINDS)}")
