"""Scores of texts and which labels are right, made so that the probabilities are known."""

import numpy as np

from umpteen.calibration.curves import HeldOut


def made_held_out(texts: int, labels: int = 20, of_best: float = 0.4, seed: int = 0) -> HeldOut:
    """Right with the probability σ(14 · (score − of_best · the best score) − 3); some right labels are not found."""
    return made_texts(texts, 0.0, seed, labels, of_best)[0]


def made_texts(
    texts: int, spread: float, seed: int = 0, labels: int = 20, of_best: float = 0.4
) -> tuple[HeldOut, np.ndarray]:
    """The same with the probabilities; texts differ by this much in the exponent, which no score shows."""
    chance = np.random.default_rng(seed)
    hardness = chance.normal(0, 0.1, (texts, 1))
    scores = -np.sort(-(chance.beta(2, 5, (texts, labels)) + hardness), axis=1).astype(np.float32)
    draws = chance.random(scores.shape)
    found = chance.integers(0, 2, texts)
    chances = probability_of(scores, of_best, spread * chance.normal(0, 1, (texts, 1)))
    right = draws < chances
    return HeldOut(scores, right, right.sum(1) + found), chances


def probability_of(scores: np.ndarray, of_best: float = 0.4, hidden: np.ndarray | float = 0.0) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-(14 * (scores - of_best * scores[:, :1]) - 3 + hidden))))
