"""Exact search over labels that change: nothing is ever missed, and adding a label costs nothing.

One query, or a few, are one product with all labels and one look at its largest scores; many go tile by tile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.files.progress import Advance
from umpteen.search.exact import require_finite, top_k
from umpteen.search.index import Effort, Engine, Indexed, LabelIndex, LiveVectors, Rows, best_of
from umpteen.search.ranking import NO_LABEL, Ranking

_FEW_QUERIES = 32
_SCORES_AT_ONCE = 2**24  # 64 MB
_BLOCK = 256  # labels whose largest score is compared first


class ExactIndex:
    """All labels are looked at for every query."""

    kind = "exact"
    one_process = False
    away = None

    def __init__(self, base: Tensor, active: NDArray[np.bool_] | None = None) -> None:
        self.labels = LiveVectors(base, active)
        self.effort = Effort(1, 0, 1)

    @classmethod
    def of(cls, labels: LiveVectors) -> "ExactIndex":
        """Searches labels that have changed already."""
        index = cls(labels.base)
        index.labels = labels
        return index

    def search(self, queries: Tensor, k: int) -> Ranking:
        return exact_search(queries, self.labels, k)

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        return exact_search(queries, self.labels, effort.rescored).rows.astype(np.int64)

    def efforts(self, k: int) -> list[Effort]:
        return [Effort(k, 0, k)]

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.labels = self.labels.with_rows(rows, vectors)

    def remove(self, rows: NDArray[np.int64]) -> None:
        self.labels = self.labels.without(rows)

    def close(self) -> None:
        """There is nothing to let go of."""

    def save(self, folder: Path) -> dict[str, Any]:
        """There is nothing to write; returns what to remember."""
        return {"kind": self.kind}


class ExactEngine(Engine):
    """Nothing is built or kept: the labels' vectors are all there is."""

    @contextmanager
    def build(
        self, folder: Path, indexed: Indexed, uri: str | None, progress: Advance
    ) -> Iterator[tuple[LabelIndex, dict[str, Any]]]:
        yield ExactIndex.of(indexed.vectors), {}

    def open(self, folder: Path, about: dict[str, Any], indexed: Indexed) -> LabelIndex:
        return ExactIndex.of(indexed.vectors)


def exact_search(queries: Tensor, labels: LiveVectors, k: int) -> Ranking:
    """The k best current labels of each query."""
    queries = checked_queries(queries, labels.dimension, k)
    rows, scores = _best(queries, labels.base, k, labels.hidden)
    if len(labels.changed) or rows.shape[1] < k:
        new, new_scores = changed_best(queries, labels, k)
        return best_of(np.concatenate([rows, new], 1), np.concatenate([scores, new_scores], 1), k, len(labels))
    return Ranking(rows.astype(np.int32), scores, len(labels))


def completed(best: Ranking, queries: Tensor, labels: LiveVectors) -> Ranking:
    """Exact answers for the queries that something quicker gave fewer labels than there are."""
    wanted = min(best.width, labels.count())
    short = np.flatnonzero(best.rows[:, wanted - 1] == NO_LABEL) if wanted else np.empty(0, dtype=np.int64)
    if len(short) == 0:
        return best
    exact = exact_search(queries[torch.from_numpy(short)], labels, best.width)
    rows, scores = best.rows.copy(), best.scores.copy()
    rows[short], scores[short] = exact.rows, exact.scores
    return Ranking(rows, scores, best.labels)


def changed_best(queries: Tensor, labels: LiveVectors, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The best of the rows in the overlay alone."""
    place, scores = _best(queries, labels.vectors, k, np.empty(0, dtype=np.int64))
    if len(labels.changed) == 0:
        return place, scores
    return np.where(place == NO_LABEL, NO_LABEL, labels.changed[place]), scores


def checked_queries(queries: Tensor, dimension: int, k: int) -> Tensor:
    """The queries as float32 in the machine's memory, if they can be searched for."""
    if k < 1:
        raise BadInput(f"k is {k}; ask for at least 1 label")
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise BadInput(
            f"query vectors have the shape {tuple(queries.shape)} and label vectors {dimension} numbers; "
            "they must come from the same model"
        )
    require_finite("query", queries)
    return queries.detach().float().cpu()


def _best(
    queries: Tensor, vectors: Tensor, k: int, hidden: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions and scores of the best visible vectors, as many of k as there are vectors; −1 where none is left."""
    k = min(k, len(vectors))
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
    if len(queries) > _FEW_QUERIES or len(queries) * len(vectors) > _SCORES_AT_ONCE:
        ranking = top_k(queries, vectors, k, hidden=hidden)
        return ranking.rows.astype(np.int64), ranking.scores
    with torch.no_grad():
        if len(queries) == 1:
            scores = torch.mv(vectors.float(), queries[0])[None]
        else:
            scores = torch.mm(queries, vectors.float().T)
        if len(hidden):
            scores.index_fill_(1, torch.from_numpy(hidden), -torch.inf)
    found = [_best_of_one(of_query, k) for of_query in scores.numpy()]
    return np.stack([rows for rows, _ in found]), np.stack([best for _, best in found])


def _best_of_one(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions and values of the k largest scores, of equal ones the earlier first."""
    blocks = len(scores) // _BLOCK
    if blocks > k:
        # k blocks hold a score of at least the k-th largest of their maxima, so the k best do not lie below it.
        maxima = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(1)
        bar = np.partition(maxima, blocks - k)[blocks - k]
    else:
        bar = np.partition(scores, len(scores) - k)[len(scores) - k]
    at = np.flatnonzero(scores >= bar)
    at = at[np.argsort(-scores[at], kind="stable")[:k]]
    best = scores[at]
    return np.where(best == -np.inf, NO_LABEL, at), best
