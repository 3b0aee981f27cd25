"""One score from two: (1 − weight) · the dual encoder's + weight · the ranker's, which lies between 0 and 1.

N texts, k labels each, in the dual encoder's order.
"""

import numpy as np
from numpy.typing import NDArray

from umpteen.retrieval.ranking import NO_LABEL, Ranking

_NEIGHBOURS = 5  # on either side


def squash(margins: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(−max(0, 1 − margin)²): 1 from the margin on that training asks of positives, 0.02 at that of negatives."""
    squashed: NDArray[np.float32] = np.exp(-np.square(np.maximum(0, 1 - margins)))
    return squashed


def head_start(texts: NDArray[np.integer], rare: float) -> NDArray[np.float32]:
    """rare · n^−½ for labels with n training texts: few texts teach few of the words that tell a label, so its margins
    are too small beside those of frequent ones."""
    start: NDArray[np.float32] = (rare / np.sqrt(np.maximum(1, texts))).astype(np.float32)
    return start


def fill_unknown(scores: NDArray[np.float32], known: NDArray[np.bool_]) -> NDArray[np.float32]:
    """A label the ranker knows nothing of gets the mean of its neighbours in dense order: neither for nor against."""
    if known.all():
        return scores
    totals, counts = _sums_around(np.where(known, scores, 0)), _sums_around(known)
    return np.where(known, scores, totals / np.maximum(1, counts)).astype(np.float32)


def keep_place(scores: NDArray[np.float32], later: NDArray[np.bool_], there: NDArray[np.bool_]) -> NDArray[np.float32]:
    """A label that came after the ranker keeps the place the dual encoder gave it among the others.

    With p of the others before it, it gets the largest but p of their scores: the first of all stays the first, and no
    label falls further than twice its place.
    """
    if not later.any():
        return scores
    others = ~later & there
    falling = -np.sort(np.where(others, -scores, np.inf), axis=1)
    before = np.cumsum(others, axis=1)
    place = np.minimum(before, np.maximum(0, before[:, -1:] - 1))
    kept = np.take_along_axis(falling, place, 1)
    return np.where(later, np.where(np.isfinite(kept), kept, 0), scores).astype(np.float32)


def _sums_around(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Of each place and its neighbours on either side, as far as there are any."""  # [N, k]
    sums = np.pad(np.cumsum(values, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    place = np.arange(values.shape[1])
    first, last = np.maximum(0, place - _NEIGHBOURS), np.minimum(len(place), place + _NEIGHBOURS + 1)
    around: NDArray[np.float64] = sums[:, last] - sums[:, first]
    return around


def fuse(dense: Ranking, second: NDArray[np.float32], weight: float) -> Ranking:
    """The dense ranking's labels in the order of both scores; `second` holds the ranker's of its first labels.

    Labels further down count as if the ranker gave them 0, so they follow in dense order.
    """
    scores = np.float32(1 - weight) * np.where(dense.rows == NO_LABEL, 0, dense.scores)
    scores[:, : second.shape[1]] += np.float32(weight) * second
    scores = np.where(dense.rows == NO_LABEL, np.float32(-np.inf), scores).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")
    return Ranking(np.take_along_axis(dense.rows, order, 1), np.take_along_axis(scores, order, 1), dense.labels)
