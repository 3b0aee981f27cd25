"""Where to draw the line: probability thresholds for a wanted precision, and rules for how many labels to give.

All of it is chosen on held-out texts, from probabilities that curves fitted on other texts gave them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.curves import HeldOut
from umpteen.errors import BadInput

LEAST_GIVEN = 30  # labels; a precision that fewer show is luck
FINEST = 0.002  # two thresholds whose precisions are nearer to each other are as good as one
USUAL_COVERAGE = 0.9
MOST_LABELS = (1, 2, 3, 5, 10, 20, 50)  # tried for the rule of F1, beside no limit


class PrecisionStep(NamedTuple):
    """From this threshold on, this share of the labels given was right."""

    precision: float
    threshold: float
    given: int
    recall: float  # of all right labels, found or not


class Rule(NamedTuple):
    """A text gets the labels that reach the threshold, the best `at_most` of them; what that gave on held-out texts."""

    threshold: float
    at_most: int
    micro_f1: float
    precision: float
    recall: float
    labels_per_text: float

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def precision_steps(held_out: HeldOut, probabilities: NDArray[np.float32]) -> list[PrecisionStep]:
    """The lowest threshold for every precision that can be reached, both rising."""
    there = held_out.real
    values, right = probabilities[there], held_out.right[there]
    thresholds, given, hits = _at_least(values, right)
    positives = max(1, int(held_out.positives.sum()))
    enough = given >= min(LEAST_GIVEN, given[0])
    steps: list[PrecisionStep] = []
    for threshold, count, found in zip(thresholds[enough], given[enough], hits[enough], strict=True):
        precision = float(found / count)
        if not steps or precision >= steps[-1].precision + FINEST:
            steps.append(PrecisionStep(precision, float(threshold), int(count), float(found / positives)))
    return steps


def threshold_for(steps: list[PrecisionStep], precision: float) -> PrecisionStep:
    """The lowest threshold that reached this precision on held-out texts."""
    if not 0 < precision <= 1:
        raise BadInput(f"precision is {precision}; it must lie between 0 and 1")
    for step in steps:
        if step.precision >= precision:
            return step
    best = steps[-1]
    raise BadInput(
        f"a precision of {precision:g} was not reached on held-out texts; the best reachable is "
        f"{np.floor(best.precision * 1000) / 1000:g}, which gives {100 * best.recall:.1f} % of the right labels"
    )


def rule_for_f1(held_out: HeldOut, probabilities: NDArray[np.float32]) -> Rule:
    """The threshold and the most labels a text that together have the greatest micro F1."""
    width = held_out.scores.shape[1]
    best: Rule | None = None
    for most in (width, *(most for most in MOST_LABELS if most < width)):
        there = held_out.real[:, :most]
        thresholds, given, hits = _at_least(probabilities[:, :most][there], held_out.right[:, :most][there])
        f1 = 2 * hits / (given + held_out.positives.sum())
        at = int(f1.argmax())
        if best is None or f1[at] > best.micro_f1:
            best = _rule(held_out, float(thresholds[at]), most, int(given[at]), int(hits[at]))
    assert best is not None
    return best


def rule_for_coverage(held_out: HeldOut, probabilities: NDArray[np.float32], share: float | None) -> Rule:
    """The smallest label sets that together hold this share of all right labels; without one, 0.9 or what there is."""
    if share is not None and not 0 < share < 1:
        raise BadInput(f"coverage is {share}; it must lie between 0 and 1")
    there = held_out.real
    thresholds, given, hits = _at_least(probabilities[there], held_out.right[there])
    recall = hits / max(1, int(held_out.positives.sum()))  # falls as thresholds rise
    reachable = float(recall[0])
    if share is not None and share > reachable:
        raise BadInput(
            f"a coverage of {share:g} cannot be reached: the first {held_out.scores.shape[1]} labels of the held-out "
            f"texts hold {np.floor(1000 * reachable) / 1000:g} of the right ones"
        )
    at = int(np.flatnonzero(recall >= min(USUAL_COVERAGE if share is None else share, reachable))[-1])
    return _rule(held_out, float(thresholds[at]), held_out.scores.shape[1], int(given[at]), int(hits[at]))


def _rule(held_out: HeldOut, threshold: float, most: int, given: int, hits: int) -> Rule:
    positives = int(held_out.positives.sum())
    return Rule(
        threshold,
        most,
        micro_f1=2 * hits / (given + positives),
        precision=hits / given,
        recall=hits / max(1, positives),
        labels_per_text=given / len(held_out),
    )


def _at_least(
    values: NDArray[np.float32], right: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Every value that occurs, rising; how many pairs reach it; how many of those are right."""
    order = np.argsort(values, kind="stable")
    values, right = values[order], right[order]
    first = np.flatnonzero(np.diff(values, prepend=-np.inf) > 0)
    hits = right.sum() - np.concatenate([[0], np.cumsum(right)])[first]
    return values[first], len(values) - first, hits
