"""Thresholds for a wanted precision, fitted on a few hundred texts: how many miss it on new ones, and what they find.

Worlds whose truth is known: scores of 20 labels a text, and how probable each label is to be right. Each time some
texts are drawn, a calibration is fitted on them, and its thresholds are held against the probabilities of 20,000 other
texts. Beside them, thresholds by the point estimate: the lowest from which on the wanted share of the drawn labels is
right.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from umpteen.calibration.calibration import PRECISIONS, fit_calibration
from umpteen.calibration.curves import CROSS_FOLDS, Choice, HeldOut, choose, cross_fitted
from umpteen.files.progress import Progress

NEW_TEXTS, LABELS = 20_000, 20
Numbers = NDArray[np.float64]


def _logistic(scores: Numbers, chance: np.random.Generator) -> Numbers:
    return expit(14 * (scores - 0.4 * scores[:, :1]) - 2)


def _staircase(scores: Numbers, chance: np.random.Generator) -> Numbers:
    read = scores - 0.3 * scores[:, :1]
    return np.select([read > 0.42, read > 0.3, read > 0.2], [0.97, 0.8, 0.3], 0.03)


def _together(scores: Numbers, chance: np.random.Generator) -> Numbers:
    return expit(14 * (scores - 0.4 * scores[:, :1]) - 2 + chance.normal(0, 2, (len(scores), 1)))


def _strangers(scores: Numbers, chance: np.random.Generator) -> Numbers:
    stranger = chance.random((len(scores), 1)) < 0.1
    return np.where(stranger, 0.01, expit(14 * (scores - 0.4 * scores[:, :1]) - 1.5))


WORLDS: dict[str, Callable[[Numbers, np.random.Generator], Numbers]] = {
    "logistic": _logistic,
    "staircase": _staircase,  # as no logistic curve can follow
    "labels of a text together": _together,  # right or wrong, by what no score shows
    "one text in ten strange": _strangers,  # nearly all of its labels are wrong, whatever their scores
}


def drawn(world: str, texts: int, seed: int) -> tuple[HeldOut, Numbers]:
    """So many texts, and how probable each of their labels was to be right."""
    chance = np.random.default_rng(seed)
    scores = -np.sort(-(chance.beta(2, 5, (texts, LABELS)) + chance.normal(0, 0.1, (texts, 1))), axis=1)
    chances = WORLDS[world](scores, chance)
    right = chance.random(scores.shape) < chances
    return HeldOut(scores.astype(np.float32), right, right.sum(1)), chances


def point_estimate(held_out: HeldOut, probabilities: NDArray[np.float32], wanted: float) -> float | None:
    """The lowest threshold from which on this share of the labels is right, if there is one that 30 labels reach."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    precision = np.cumsum(held_out.right.ravel()[order]) / np.arange(1, probabilities.size + 1)
    reached = np.flatnonzero(precision >= wanted)
    return float(probabilities.ravel()[order][reached[-1]]) if len(reached) and reached[-1] >= 29 else None


def run(
    *,
    texts: int,
    times: int,
    confidence: float,
    worlds: Sequence[str] = tuple(WORLDS),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """For each world and precision, of promises and of point estimates: given, missed, and the share of what the best
    threshold of all would find (far above 1 where hardly a label can have the precision)."""
    found: dict[str, Any] = {}
    for number, world in enumerate(worlds):
        many, chances = drawn(world, NEW_TEXTS, 1_000_000)
        kept: dict[tuple[str, float], list[tuple[bool, float]]] = {}
        for time in range(times):
            few, _ = drawn(world, texts, time)
            calibration = fit_calibration(few, {}, confidence=confidence)
            folds = few.folds(CROSS_FOLDS)
            choice: Choice = choose(few, folds)[0]
            crossed = cross_fitted(few, folds, choice)
            new = calibration.probabilities(many.scores).ravel()
            order = np.argsort(-new, kind="stable")
            right, given = np.cumsum(chances.ravel()[order]), np.arange(1, len(new) + 1)
            for wanted in PRECISIONS:
                best = float(right[right >= wanted * given].max(initial=0))  # 0: no threshold has this precision
                promise = next((step.threshold for step in calibration.steps if step.precision >= wanted), None)
                for name, threshold in (("promise", promise), ("point", point_estimate(few, crossed, wanted))):
                    if threshold is not None:
                        last = int(np.searchsorted(-new[order], -np.float32(threshold), side="right")) - 1
                        reached = float(right[last] / given[last]) if last >= 0 else 1.0
                        share = float(right[last] / best) if last >= 0 and best else 0.0
                        kept.setdefault((name, wanted), []).append((reached < wanted, share))
            if progress is not None:
                progress("drawing", number * times + time + 1, len(worlds) * times)
        for (name, wanted), outcomes in sorted(kept.items()):
            missed, shares = zip(*outcomes, strict=True)
            found[f"{world}, {wanted:g}, {name}"] = {
                "given_percent": round(100 * len(outcomes) / times, 1),
                "missed_percent": round(100 * sum(missed) / times, 1),
                "of_best_recall": round(sum(shares) / len(shares), 2),
            }
    return {"texts": texts, "times": times, "confidence": confidence, **found}
