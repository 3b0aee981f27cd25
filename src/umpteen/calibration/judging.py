"""What probabilities are worth on texts with known labels: calibration error, what precisions and rules really give."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.calibration.calibration import Calibration
from umpteen.calibration.held_out import HeldOut
from umpteen.calibration.raw import SAID, Reading, raw_probabilities
from umpteen.calibration.reliability import BINS, reliability_of
from umpteen.errors import BadInput
from umpteen.evaluation.f1 import f1_of
from umpteen.retrieval.ranking import Ranking

HEADLINE = 5  # the best labels of a text that the one figure is about: as many as `predict` shows
DEPTHS = (1, HEADLINE, 100)
PRECISIONS = (0.5, 0.7, 0.8, 0.9, 0.95)


def figures_of(held_out: HeldOut, probabilities: NDArray[np.float32], raw: Reading) -> dict[str, Any]:
    """Calibration error, Brier score and log loss, calibrated and raw, over the best labels of each text."""
    by_depth = {}
    width = held_out.scores.shape[1]
    for depth in sorted({min(depth, width) for depth in DEPTHS}):
        there = held_out.real[:, :depth]
        right = held_out.right[:, :depth][there]
        before = raw_probabilities(held_out.scores[:, :depth][there], raw)
        by_depth[str(depth)] = {
            "calibrated": reliability_of(probabilities[:, :depth][there], right).to_dict(),
            "raw": reliability_of(before, right).to_dict(),
        }
    headline = by_depth[str(min(HEADLINE, width))]
    return {
        "ece": headline["calibrated"]["ece"],
        "ece_raw": headline["raw"]["ece"],
        "over": f"the best {min(HEADLINE, width)} labels of {len(held_out):,} texts, {BINS} bins of equally many pairs",
        "raw": SAID[raw],
        "by_depth": by_depth,
    }


def judge_calibration(calibration: Calibration, ranking: Ranking, truth: csr_array) -> dict[str, Any]:
    """The calibration of a model on a split, from its ranking and the truth; pairs to ignore are in neither.

    All texts count, those without right labels, too.
    """
    held_out = HeldOut.of(ranking, truth)
    probabilities = calibration.probabilities(ranking.scores)
    precisions = []
    for wanted in PRECISIONS:
        try:
            line = calibration.line(precision=wanted)
        except BadInput:
            continue  # more than the model can
        found = f1_of(ranking, line.given(probabilities), truth)
        precisions.append(
            {
                "wanted": wanted,
                "threshold": line.least,
                "reached": found.precision,
                "given": round(found.labels_per_text * len(ranking)),
                "recall": found.recall,
            }
        )
    rules = {
        name: f1_of(ranking, calibration.line(rule=name).given(probabilities), truth)._asdict()
        for name in calibration.rules
    }
    return {
        **figures_of(held_out, probabilities, calibration.raw),
        "precision": precisions,
        "rules": rules,
        "held_out": calibration.origin,
    }
