"""The one-vs-all classifier beside the dual encoder: what `deciles` and `similarity` both compare.

The paper's classifier is trained with BCE. Ours is trained with BCE on unnormalised vectors and with decoupled softmax
on normalised ones, and the better of the two on validation stands for it: a badly trained rival would prove nothing.
"""

from typing import Any

from lab.comparison import Outcomes
from lab.losses import BCE, DECOUPLED, LOSSES

TABLE = ("encoder.towers=separate", "encoder.label.kind=table")
UNNORMALISED = ("encoder.query.normalise=false", "objective.temperature=1")  # the classic form, which goes with BCE
CLASSIFIERS = {
    "classifier, BCE": (*TABLE, *UNNORMALISED, *LOSSES[BCE]),
    "classifier, decoupled softmax": (*TABLE, *LOSSES[DECOUPLED]),
}
ON_VALIDATION = "validation"  # the measure that chooses


def chosen_classifier(outcomes: Outcomes) -> str:
    """The classifier that is better on validation."""
    return outcomes.best(ON_VALIDATION, among=CLASSIFIERS)


def on_validation(value: float | None) -> dict[str, Any]:
    return {ON_VALIDATION: round(value or 0.0, 3)}
