"""Exact scores for candidates that something coarser found."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.retrieval.live_vectors import LiveVectors, Rows
from umpteen.retrieval.ranking import NO_LABEL

_NUMBERS_AT_A_TIME = 2**23


def exact_scores(queries: Tensor, rows: Rows, labels: LiveVectors) -> NDArray[np.float32]:
    """Each query's inner products with its candidates; −∞ where there is none (−1)."""  # [B, C]
    scores = np.full(rows.shape, -np.inf, dtype=np.float32)
    if rows.size == 0:
        return scores
    step = max(1, _NUMBERS_AT_A_TIME // (rows.shape[1] * labels.dimension))
    with torch.no_grad():
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            there = some != NO_LABEL
            if there.all():
                vectors = labels.of(some.ravel())
            else:
                vectors = torch.zeros(some.size, labels.dimension)
                vectors[torch.from_numpy(there.ravel())] = labels.of(some[there])
            vectors = vectors.view(*some.shape, labels.dimension)
            found = torch.bmm(vectors, queries[start : start + step, :, None]).squeeze(2).numpy()
            scores[start : start + step] = np.where(there, found, np.float32(-np.inf))
    return scores
