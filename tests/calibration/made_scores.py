"""Scores of texts and which labels are right, made so that the probabilities are known."""

import numpy as np

from umpteen.calibration.curves import HeldOut


def made_held_out(texts: int, labels: int = 20, of_best: float = 0.4, seed: int = 0) -> HeldOut:
    """Right with the probability σ(14 · (score − of_best · the best score) − 3); some right labels are not found."""
    chance = np.random.default_rng(seed)
    hardness = chance.normal(0, 0.1, (texts, 1))
    scores = -np.sort(-(chance.beta(2, 5, (texts, labels)) + hardness), axis=1).astype(np.float32)
    right = chance.random(scores.shape) < probability_of(scores, of_best)
    return HeldOut(scores, right, right.sum(1) + chance.integers(0, 2, texts))


def probability_of(scores: np.ndarray, of_best: float = 0.4) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-(14 * (scores - of_best * scores[:, :1]) - 3))))
