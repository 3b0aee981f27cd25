"""The seam: what finds the k best labels of a query, whatever is behind it, and how two searches become one.

B queries, k wanted, C candidates.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.retrieval.ranking import NO_LABEL, Ranking


class LabelIndex(Protocol):
    """Finds labels by inner product. Rows are label rows; they never shift, and a removed one is never returned."""

    @property
    def kind(self) -> str:
        """exact, faiss-flat, faiss-hnsw, faiss-ivfpq, faiss-sq or milvus."""
        ...

    def search(self, queries: Tensor, k: int) -> Ranking:
        """The k best rows of each query, of equal scores the smaller first; ends in −1 when there are fewer."""
        ...

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """New rows, or new vectors for known ones; found by the next search."""
        ...

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Rows that no search returns until they are added again."""
        ...

    def close(self) -> None:
        """Lets go of files, locks and connections; an index is not searched after it."""
        ...


def try_out(index: LabelIndex, dimension: int) -> None:
    """One search, for its errors: some indexes are opened by their first, and another process may have them."""
    index.search(torch.zeros(1, dimension), 1)


def best_of(rows: NDArray[np.int64], scores: NDArray[np.float32], k: int, labels: int) -> Ranking:
    """The k best of each query's candidates; rows that stand twice count once, −1 counts nothing."""  # [B, C] each
    scores = np.where(rows == NO_LABEL, np.float32(-np.inf), scores)
    order = np.lexsort((rows, -scores))
    rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
    again = np.zeros(rows.shape, dtype=np.bool_)
    again[:, 1:] = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] != NO_LABEL)  # a row's scores are equal: side by side
    if again.any():
        order = np.argsort(again, axis=1, kind="stable")
        rows = np.take_along_axis(np.where(again, NO_LABEL, rows), order, 1)
        scores = np.take_along_axis(np.where(again, np.float32(-np.inf), scores), order, 1)
    return Ranking(_wide(rows[:, :k].astype(np.int32), k, NO_LABEL), _wide(scores[:, :k], k, -np.inf), labels)


def _wide(values: NDArray[Any], k: int, filling: float) -> NDArray[Any]:
    missing = k - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=filling) if missing > 0 else values
