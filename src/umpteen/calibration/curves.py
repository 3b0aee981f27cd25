"""From the scores of a text to probabilities: what is learnt from, the curves, and how far they are from the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from umpteen.errors import BadInput
from umpteen.files.storage import atomic_file
from umpteen.search.ranking import Ranking, contains

BINS = 15
DEPTH = 100  # labels of a text that are looked at
_LEAST = 1e-6  # a probability of exactly 0 or 1 that is wrong would cost an infinite log loss
CROSS_FOLDS = 5
_LARGEST_SHARE = 0.95  # of the best score
_ALMOST_UNREGULARISED = 1e6


@dataclass(frozen=True)
class HeldOut:
    """What calibration learns from: scores of N texts the model was not fitted on, k labels each, best first.

    A text's labels beyond the first k are known by number only: those that are right were not found.
    """

    scores: NDArray[np.float32]  # [N, k]; −inf where a text has fewer labels
    right: NDArray[np.bool_]  # [N, k]
    positives: NDArray[np.int64]  # [N], right labels, found or not

    @classmethod
    def of(cls, ranking: Ranking, truth: scipy.sparse.csr_array) -> HeldOut:
        """A ranking against the truth; pairs to ignore must be in neither."""
        return cls(ranking.scores, contains(truth, ranking.rows), np.diff(truth.indptr).astype(np.int64))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def real(self) -> NDArray[np.bool_]:
        """Where there is a label."""  # [N, k]
        return np.isfinite(self.scores)

    def take(self, texts: NDArray[np.bool_] | NDArray[np.int64]) -> HeldOut:
        return HeldOut(*(array[texts] for array in vars(self).values()))

    @classmethod
    def join(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """The texts of all parts, one part after the other."""
        return cls(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))

    def folds(self, count: int) -> NDArray[np.int64]:
        """The fold of each text, by chance and of equal sizes; a text's labels stay together."""  # [N]
        return np.random.default_rng(0).permutation(np.arange(len(self)) % count)

    def save(self, path: Path) -> None:
        """One .npz without pickle, written whole or not at all."""
        with atomic_file(path) as file:
            np.savez_compressed(file, **vars(self))

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**arrays)


def reliability_of(probabilities: NDArray[np.floating], right: NDArray[np.bool_]) -> dict[str, Any]:
    """How far the probabilities of some pairs are from what happens, and their bins of equally many pairs.

    A bin is its pairs, their mean probability, and the share of them that is right; ECE is the mean distance between
    the latter two, weighed by the pairs. The arrays may have any shape, and must not be empty.
    """
    values, truth = probabilities.ravel().astype(np.float64), right.ravel()
    parts = np.array_split(np.argsort(values, kind="stable"), BINS)
    bins = [[len(at), float(values[at].mean()), float(truth[at].mean())] for at in parts if len(at)]
    return {
        "ece": sum(pairs * abs(probability - share) for pairs, probability, share in bins) / len(values),
        "brier": float(np.square(values - truth).mean()),
        "log_loss": log_loss(values, truth),
        "pairs": len(values),
        "bins": bins,  # the page draws them
    }


def log_loss(probabilities: NDArray[np.floating], right: NDArray[np.bool_]) -> float:
    """The mean of −log of the probability given to what happened, in nats."""
    values = np.clip(probabilities.astype(np.float64), _LEAST, 1 - _LEAST)
    return float(-np.log(np.where(right, values, 1 - values)).mean())


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
        return {"kind": "isotonic", "scores": self.scores.tolist(), "probabilities": self.probabilities.tolist()}


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
        return np.asarray(0.5 + 0.5 * np.tanh((self.slope * scores.astype(np.float64) + self.intercept) / 2))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "platt", "slope": self.slope, "intercept": self.intercept}


Kind = Literal["isotonic", "platt"]
Curve = Isotonic | Platt
KINDS: dict[Kind, type[Isotonic] | type[Platt]] = {"isotonic": Isotonic, "platt": Platt}


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


def read_curve(content: dict[str, Any]) -> Curve:
    if content["kind"] == "isotonic":
        return Isotonic(np.array(content["scores"], np.float64), np.array(content["probabilities"], np.float64))
    if content["kind"] == "platt":
        return Platt(float(content["slope"]), float(content["intercept"]))
    raise BadInput(f"{content['kind']!r} is no kind of curve; there is {' and '.join(KINDS)}")


class Choice(NamedTuple):
    """Which curves, and how they read scores."""

    first: Kind
    others: Kind
    of_best: float


@dataclass(frozen=True)
class TextCurves:
    """Probabilities of one text's labels, best first: the first has a curve of its own, the others share one.

    The first label is the largest of umpteen scores and so right less often than an equal score further down would
    say. The others' curve reads score − of_best · the text's best score: an outstanding first label makes the rest
    less likely. No label is likelier than the first, so probabilities never rise along a text's labels.
    """

    first: Curve
    others: Curve
    of_best: float

    def __call__(self, scores: NDArray[np.floating]) -> NDArray[np.float32]:
        """Scores of one text or of many (the last axis is a text's labels) → probabilities; 0 where no label is."""
        scores = np.asarray(scores, dtype=np.float64)
        there = np.isfinite(scores)
        safe = np.where(there, scores, 0.0)
        first = self.first(safe[..., :1])
        others = self.others(safe[..., 1:] - self.of_best * safe[..., :1])
        return np.where(there, np.concatenate([first, np.minimum(others, first)], axis=-1), 0.0).astype(np.float32)

    @classmethod
    def fit(cls, held_out: HeldOut, choice: Choice) -> TextCurves:
        first = KINDS[choice.first].fit(*_pairs(held_out, None))
        scores, right = _pairs(held_out, choice.of_best)
        return cls(first, KINDS[choice.others].fit(scores, right) if len(scores) else first, choice.of_best)

    def to_dict(self) -> dict[str, Any]:
        return {"first": self.first.to_dict(), "others": {**self.others.to_dict(), "of_best": self.of_best}}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TextCurves:
        first, others = content["first"], content["others"]
        return cls(read_curve(first), read_curve(others), of_best=float(others["of_best"]))


def choose(held_out: HeldOut, folds: NDArray[np.int64]) -> tuple[Choice, dict[str, Any]]:
    """What has the least log loss on texts left out of the fit, and the losses of all that was tried."""
    first = {kind: _left_out_loss(held_out, folds, kind, None) for kind in KINDS}
    shares = sorted({0.0, _likeliest_share(held_out)}) if held_out.real[:, 1:].any() else []
    others = {(kind, share): _left_out_loss(held_out, folds, kind, share) for share in shares for kind in KINDS}
    best_first = min(first, key=lambda kind: first[kind])
    best_others = min(others, key=lambda one: others[one]) if others else (best_first, 0.0)
    named = {f"{kind}, of_best {share:g}": loss for (kind, share), loss in sorted(others.items())}
    return Choice(best_first, *best_others), {"first": first, "others": named}


def cross_fitted(held_out: HeldOut, folds: NDArray[np.int64], choice: Choice) -> NDArray[np.float32]:
    """Each text's probabilities under curves fitted on the other folds: what a new text would get."""  # [N, k]
    found = np.zeros(held_out.scores.shape, dtype=np.float32)
    for fold in np.unique(folds):
        out = folds == fold
        found[out] = TextCurves.fit(held_out.take(~out), choice)(held_out.scores[out])
    return found


def _left_out_loss(held_out: HeldOut, folds: NDArray[np.int64], kind: Kind, of_best: float | None) -> float:
    found, truth = [], []
    for fold in np.unique(folds):
        curve = KINDS[kind].fit(*_pairs(held_out.take(folds != fold), of_best))
        scores, right = _pairs(held_out.take(folds == fold), of_best)
        found.append(curve(scores))
        truth.append(right)
    return log_loss(np.concatenate(found), np.concatenate(truth))


def _pairs(held_out: HeldOut, of_best: float | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """What the first label's curve (None) or the others' is fitted on: scores as it reads them, and who is right."""
    labels = slice(0, 1) if of_best is None else slice(1, None)
    there = held_out.real[:, labels]
    best = np.where(held_out.real[:, :1], held_out.scores[:, :1], 0).astype(np.float64)
    return (held_out.scores[:, labels] - (of_best or 0.0) * best)[there], held_out.right[:, labels][there]


def _likeliest_share(held_out: HeldOut) -> float:
    """How much of the best score a logistic curve would take from the others' scores, from 0 (the score alone)."""
    scores, right = _pairs(held_out, 0.0)
    best = scores - _pairs(held_out, 1.0)[0]
    slopes, _ = logistic(np.stack([scores, best], 1), right)
    return float(np.clip(round(-slopes[1] / slopes[0], 2), 0, _LARGEST_SHARE)) if slopes[0] > 0 else 0.0
