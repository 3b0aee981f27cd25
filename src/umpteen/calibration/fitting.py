"""Fits a calibration on held-out texts; its thresholds and figures come from curves that did not see the text."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.calibration import Calibration
from umpteen.calibration.held_out import HeldOut
from umpteen.calibration.judging import figures_of
from umpteen.calibration.raw import reading_of
from umpteen.calibration.text_curves import CROSS_FOLDS, TextCurves, choose, cross_fitted
from umpteen.calibration.thresholds import precision_steps, rule_for_coverage, rule_for_f1


def fit_calibration(
    held_out: HeldOut,
    origin: dict[str, Any],
    *,
    coverage: float | None = None,
    seed: int = 0,
) -> tuple[Calibration, NDArray[np.float32]]:
    """The calibration with the least log loss, and the probabilities its figures come from.

    These are cross-fitted: each text's are given by curves fitted on the texts of other folds.
    """
    held_out.require_enough()
    folds = held_out.folds(min(CROSS_FOLDS, len(held_out)), seed)
    choice, tried = choose(held_out, folds)
    probabilities = cross_fitted(held_out, folds, choice)
    raw = reading_of(held_out.scores)
    figures = {**figures_of(held_out, probabilities, raw), "log_loss_of_curves": tried}
    calibration = Calibration(
        TextCurves.fit(held_out, choice),
        precision_steps(held_out, probabilities),
        {
            "f1": rule_for_f1(held_out, probabilities),
            "coverage": rule_for_coverage(held_out, probabilities, coverage),
        },
        depth=held_out.scores.shape[1],
        raw=raw,
        origin=origin,
        figures=figures,
    )
    return calibration, probabilities
