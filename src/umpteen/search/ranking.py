"""The best few labels of many queries, best first: what a ranking is, and what is asked of vectors to be searched.

Neither torch nor scipy's matrices are loaded before they are needed: answering a text or two takes less time than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from umpteen.errors import BadFile, BadInput
from umpteen.files.storage import atomic_file

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from torch import Tensor

Vectors: TypeAlias = "Tensor | NDArray[Any]"
NO_LABEL = -1  # stands in `rows` where a query has fewer labels than the ranking is wide
SPARE = 100
OF_NO_USE = "so the model's weights are no use; train it again, with a lower optimizer.learning_rate"


@dataclass(frozen=True)
class Ranking:
    """Row i lists query i's labels, best first; where there are fewer, the row ends in −1 with score −∞."""

    rows: NDArray[np.int32]  # [N, k]
    scores: NDArray[np.float32]  # [N, k]
    labels: int  # how many labels there are to choose from

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    def head(self, k: int) -> Ranking:
        """The best k of each query."""
        if k > self.width:
            problem = f"the best {k:,} were asked of a ranking that is {self.width:,} wide"
            raise BadInput(f"{problem}; search with k={k} first")
        return Ranking(self.rows[:, :k], self.scores[:, :k], self.labels)

    def in_order(self, order: NDArray[np.int64]) -> Ranking:
        """The same, each query's labels in this order of their places."""
        return Ranking(np.take_along_axis(self.rows, order, 1), np.take_along_axis(self.scores, order, 1), self.labels)

    def without(self, pairs: csr_array) -> Ranking:
        """The same ranking with these pairs taken out and the labels behind them moved up."""
        if pairs.nnz == 0:
            return self
        keep = (self.rows != NO_LABEL) & ~contains(pairs, self.rows)
        rows, scores = np.where(keep, self.rows, np.int32(NO_LABEL)), np.where(keep, self.scores, np.float32(-np.inf))
        return Ranking(rows, scores, self.labels).in_order(np.argsort(~keep, axis=1, kind="stable"))

    def lifted(self, bonus: NDArray[np.float32], k: int) -> Ranking:
        """The best k with each label's bonus; it should be wider by SPARE, so that one can come to the front."""
        lifted = Ranking(self.rows, self.scores + bonus[self.rows], self.labels)
        return lifted.in_order(np.argsort(-lifted.scores, axis=1, kind="stable")).head(k)

    def with_answers(self, queries: NDArray[np.int64], other: Ranking) -> Ranking:
        """The same ranking, but for these queries, which another one answers."""
        rows, scores, own = self.rows.copy(), self.scores.copy(), other.head(self.width)
        rows[queries], scores[queries] = own.rows, own.scores
        return Ranking(rows, scores, self.labels)

    def to_csr(self) -> csr_array:
        """Scores as a sparse query × label matrix, the form other tools exchange predictions in."""
        real = self.rows != NO_LABEL
        starts = np.concatenate([[0], np.cumsum(real.sum(1))])
        matrix = scipy.sparse.csr_array((self.scores[real], self.rows[real], starts), shape=(len(self), self.labels))
        matrix.sort_indices()
        return matrix

    @classmethod
    def from_csr(cls, matrix: csr_array, k: int) -> Ranking:
        """The k largest stored scores of each row; of equal ones, the smaller label row first."""
        matrix = _without_hopeless(matrix, k)
        queries, labels = matrix.shape
        query = np.repeat(np.arange(queries), np.diff(matrix.indptr))
        order = np.lexsort((matrix.indices, -matrix.data, query))  # by query, then score, then row
        place = np.arange(len(order)) - matrix.indptr[query]
        chosen = place < k
        rows = np.full((queries, k), NO_LABEL, dtype=np.int32)
        scores = np.full((queries, k), -np.inf, dtype=np.float32)
        rows[query[chosen], place[chosen]] = matrix.indices[order[chosen]]
        scores[query[chosen], place[chosen]] = matrix.data[order[chosen]]
        return cls(rows, scores, labels)

    def save(self, path: Path) -> None:
        """Written as scipy CSR (.npz), which `scipy.sparse.load_npz` reads."""
        with atomic_file(path) as file:
            scipy.sparse.save_npz(file, self.to_csr())

    @classmethod
    def load(cls, path: Path, k: int) -> Ranking:
        """The best k a row of a saved query × label matrix, ours or another tool's."""
        try:
            matrix = scipy.sparse.load_npz(path)
        except FileNotFoundError:
            raise BadFile(path, "there is no such file") from None
        except Exception as error:
            raise BadFile(path, f"not a scipy sparse matrix ({error}); save one with scipy.sparse.save_npz") from error
        return cls.from_csr(scipy.sparse.csr_array(matrix), k)


def _without_hopeless(matrix: csr_array, k: int) -> csr_array:
    """Long rows cut down to scores that reach their k-th largest: sorting them whole would take most of the time."""
    lengths = np.diff(matrix.indptr)
    keep = np.ones(matrix.nnz, dtype=np.bool_)
    for row in np.flatnonzero(lengths > 4 * k):
        stored = slice(matrix.indptr[row], matrix.indptr[row + 1])
        scores = matrix.data[stored]
        keep[stored] = scores >= np.partition(scores, -k)[-k]
    if keep.all():
        return matrix
    starts = np.concatenate([[0], np.cumsum(keep)])[matrix.indptr]
    return scipy.sparse.csr_array((matrix.data[keep], matrix.indices[keep], starts), shape=matrix.shape)


def contains(pairs: csr_array, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether (query i, label rows[i, j]) is stored in `pairs`; what is stored there, even 0, doesn't matter."""
    ones = np.ones(pairs.nnz, dtype=np.float32)
    return values_at(scipy.sparse.csr_array((ones, pairs.indices, pairs.indptr), shape=pairs.shape), rows) > 0


def values_at(matrix: csr_array, rows: NDArray[np.int32]) -> NDArray[np.float32]:
    """What `matrix` stores at (query i, label rows[i, j]); 0 where it stores nothing."""
    line, found = np.zeros(matrix.shape[1], np.float32), np.empty(rows.shape, np.float32)
    for query, (start, stop) in enumerate(pairwise(matrix.indptr)):
        own = matrix.indices[start:stop]
        np.add.at(line, own, matrix.data[start:stop])
        found[query] = line[rows[query]]
        line[own] = 0
    return np.where(rows == NO_LABEL, np.float32(0), found)


def as_floats(vectors: Vectors) -> NDArray[np.float32]:
    """In the machine's memory as float32, without a copy if they are that already."""
    if isinstance(vectors, np.ndarray):
        return vectors.astype(np.float32, copy=False)
    return np.asarray(vectors.detach().float().cpu())


def of_length_1(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each row at length 1; a row of zeros stays one."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12)))


def require_searchable(queries: Vectors, dimension: int, k: int) -> None:
    """Refuses queries that no labels of this dimension can be found for."""
    if k < 1:
        raise BadInput(f"k is {k}; ask for at least 1 label")
    if queries.ndim != 2 or queries.shape[1] != dimension:
        both = f"query vectors have the shape {tuple(queries.shape)} and label vectors {dimension} numbers"
        raise BadInput(f"{both}; they must come from the same model")
    require_finite("query", queries)


def require_finite(what: str, vectors: Vectors) -> None:
    """Refuses vectors that hold NaN or infinity, by the first such row."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = as_floats(vectors.sum(1) if isinstance(vectors, np.ndarray) else vectors.float().sum(1))
    broken = np.flatnonzero(~np.isfinite(sums))
    if len(broken):
        raise BadInput(f"the vector of {what} row {int(broken[0]):,} holds NaN or infinity, {OF_NO_USE}")
