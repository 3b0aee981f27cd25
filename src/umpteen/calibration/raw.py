"""What a raw score would say if it were taken for a probability: the other side of every comparison."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Reading = Literal["clipped", "sigmoid"]
SAID = {"clipped": "the score, cut to between 0 and 1", "sigmoid": "1 ÷ (1 + exp(−score))"}


def reading_of(scores: NDArray[np.floating]) -> Reading:
    """Scores of vectors of length 1, with a ranker or not, stay within 1; larger ones are taken for logits."""
    return "clipped" if np.abs(scores[np.isfinite(scores)]).max(initial=0) <= 1.001 else "sigmoid"


def raw_probabilities(scores: NDArray[np.floating], reading: Reading) -> NDArray[np.float64]:
    """The scores read as probabilities."""
    scores = scores.astype(np.float64)
    return np.asarray(np.clip(scores, 0, 1) if reading == "clipped" else expit(scores))
