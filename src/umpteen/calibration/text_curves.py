"""From the scores of one text to probabilities: the first label has a curve of its own, the others share one.

The first label is the largest of umpteen scores and so right less often than an equal score further down would say. The
others' curve reads score − of_best · the text's best score: an outstanding first label makes the rest less likely. No
label is likelier than the first, so probabilities never rise along a text's labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.curves import KINDS, Curve, Kind, fit_curve, logistic, read_curve
from umpteen.calibration.held_out import HeldOut
from umpteen.calibration.reliability import log_loss

CROSS_FOLDS = 5
_LARGEST_SHARE = 0.95  # of the best score


class Choice(NamedTuple):
    """Which curves, and how they read scores."""

    first: Kind
    others: Kind
    of_best: float


@dataclass(frozen=True)
class TextCurves:
    """Reads a text's scores best first, as a ranking has them."""

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
        found = np.concatenate([first, np.minimum(others, first)], axis=-1)
        return np.where(there, found, 0.0).astype(np.float32)

    @classmethod
    def fit(cls, held_out: HeldOut, choice: Choice) -> TextCurves:
        """The chosen curves on these texts."""
        first = fit_curve(choice.first, *_first(held_out))
        scores, right = _others(held_out, choice.of_best)
        return cls(first, fit_curve(choice.others, scores, right) if len(scores) else first, choice.of_best)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "first": {"kind": _kind(self.first), **self.first.to_dict()},
            "others": {"kind": _kind(self.others), "of_best": self.of_best, **self.others.to_dict()},
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TextCurves:
        """What `to_dict` gave."""
        first, others = content["first"], content["others"]
        return cls(
            read_curve(first["kind"], first), read_curve(others["kind"], others), of_best=float(others["of_best"])
        )


def choose(held_out: HeldOut, folds: NDArray[np.int64]) -> tuple[Choice, dict[str, dict[str, float]]]:
    """What has the least log loss on texts left out of the fit, and the losses of all that was tried."""
    first = {kind: _left_out_loss(held_out, folds, kind, _first) for kind in KINDS}
    others: dict[tuple[Kind, float], float] = {}
    if held_out.real[:, 1:].any():
        for share in sorted({0.0, _likeliest_share(held_out)}):
            for kind in KINDS:
                others[kind, share] = _left_out_loss(held_out, folds, kind, _reading(share))
    best_first = min(first, key=lambda kind: first[kind])
    best_others = min(others, key=lambda one: others[one]) if others else (best_first, 0.0)
    tried = {
        "first": {str(kind): loss for kind, loss in first.items()},
        "others": {f"{kind}, of_best {share:g}": loss for (kind, share), loss in sorted(others.items())},
    }
    return Choice(best_first, *best_others), tried


def cross_fitted(held_out: HeldOut, folds: NDArray[np.int64], choice: Choice) -> NDArray[np.float32]:
    """Each text's probabilities under curves fitted on the other folds: what a new text would get."""  # [N, k]
    found = np.zeros(held_out.scores.shape, dtype=np.float32)
    for fold in np.unique(folds):
        out = folds == fold
        found[out] = TextCurves.fit(held_out.take(~out), choice)(held_out.scores[out])
    return found


Pairs = tuple[NDArray[np.float64], NDArray[np.bool_]]


def _left_out_loss(held_out: HeldOut, folds: NDArray[np.int64], kind: Kind, read: Callable[[HeldOut], Pairs]) -> float:
    losses, pairs = 0.0, 0
    for fold in np.unique(folds):
        out = folds == fold
        curve = fit_curve(kind, *read(held_out.take(~out)))
        scores, right = read(held_out.take(out))
        if len(scores):
            losses += len(scores) * log_loss(curve(scores), right)
            pairs += len(scores)
    return losses / max(1, pairs)


def _first(held_out: HeldOut) -> Pairs:
    there = held_out.real[:, 0]
    return held_out.scores[there, 0].astype(np.float64), held_out.right[there, 0]


def _others(held_out: HeldOut, of_best: float) -> Pairs:
    there = held_out.real[:, 1:]
    best = np.where(held_out.real[:, :1], held_out.scores[:, :1], 0).astype(np.float64)
    relative = held_out.scores[:, 1:] - of_best * best
    return relative[there], held_out.right[:, 1:][there]


def _likeliest_share(held_out: HeldOut) -> float:
    """How much of the best score a logistic curve would take from the others' scores, from 0 (the score alone)."""
    scores, right = _others(held_out, 0.0)
    best = scores - _others(held_out, 1.0)[0]
    slopes, _ = logistic(np.stack([scores, best], 1), right)
    return float(np.clip(round(-slopes[1] / slopes[0], 2), 0, _LARGEST_SHARE)) if slopes[0] > 0 else 0.0


def _reading(of_best: float) -> Callable[[HeldOut], Pairs]:
    return lambda held_out: _others(held_out, of_best)


def _kind(curve: Curve) -> str:
    return type(curve).__name__.lower()
