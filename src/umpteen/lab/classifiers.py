"""The one-vs-all classifier beside the dual encoder: what `deciles` and `similarity` both compare.

The paper's classifier is trained with BCE. Ours is trained with BCE and with decoupled softmax, and the better of the
two on validation stands for it, so that the comparison is not won against a badly trained one.
"""

from typing import Any

from umpteen.lab.comparison import Outcomes
from umpteen.lab.losses import DECOUPLED, LOSSES

TABLE = ("encoder.towers=separate", "encoder.label.kind=table")
CLASSIFIERS = {
    "classifier, BCE": (*TABLE, *LOSSES["BCE"]),
    "classifier, decoupled softmax": (*TABLE, *LOSSES[DECOUPLED]),
}
ON_VALIDATION = "validation"  # the measure that chooses


def chosen_classifier(outcomes: Outcomes) -> str:
    """The classifier that is better on validation."""
    return outcomes.best(ON_VALIDATION, among=CLASSIFIERS)


def on_validation(value: float | None) -> dict[str, Any]:
    return {ON_VALIDATION: round(value or 0.0, 3)}
