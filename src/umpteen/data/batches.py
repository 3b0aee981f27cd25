"""Which queries form a batch, and which of their labels a step pulls; both follow from seeds alone."""

import numpy as np
from numpy.typing import NDArray

from umpteen.data.labels import Relevance
from umpteen.errors import BadInput


class EpochSampler:
    """Every query once an epoch, in an order that follows from (seed, epoch); the last batch may be smaller.

    Any batch can be asked for at any time, so a resumed run needs no state but its step number.
    Queries without a label to pull teach nothing and are left out, unless `keep_unlabelled`.
    """

    def __init__(self, relevance: Relevance, batch_size: int, *, seed: int, keep_unlabelled: bool = False) -> None:
        if batch_size < 1:
            raise BadInput(f"batch size {batch_size}: a batch needs at least one query")
        pulled = np.ones(len(relevance), dtype=bool) if keep_unlabelled else _has_label_to_pull(relevance)
        self._queries = np.flatnonzero(pulled).astype(np.int64)
        if len(self._queries) == 0:
            raise BadInput(
                f"none of the {len(relevance):,} training queries has a label to pull; is this the right file?"
            )
        self._batch_size = batch_size
        self._seed = seed
        self._shuffled: tuple[int, NDArray[np.int64]] | None = None

    @property
    def queries(self) -> int:
        """How many queries an epoch has."""
        return len(self._queries)

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.queries // self._batch_size)

    def rows(self, epoch: int, index: int) -> NDArray[np.int64]:
        """The query rows of one batch."""
        if not 0 <= index < self.batches_per_epoch:
            raise BadInput(f"batch {index} is out of range: an epoch has {self.batches_per_epoch:,} batches")
        if self._shuffled is None or self._shuffled[0] != epoch:
            self._shuffled = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._queries)
        start = index * self._batch_size
        return self._shuffled[1][start : start + self._batch_size].copy()


def draw_positives(
    relevance: Relevance, rows: NDArray[np.integer], limit: int | None, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """The pairs to pull: positions in `rows`, label rows and weights, in the order of positions, then labels.

    All pairs of weight > 0, or per query at most `limit` of them, drawn uniformly without replacement.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"at most {limit} positives a query leaves nothing to pull; give 1 or more, or no limit")
    matrix = relevance.matrix
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[np.asarray(rows) + 1] - starts
    query = np.repeat(np.arange(len(rows), dtype=np.int64), counts)
    entry = np.arange(len(query)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    pulled = matrix.data[entry] > 0
    query, entry = query[pulled], entry[pulled]
    if limit is not None:
        chosen = _at_most(limit, query, rng)
        query, entry = query[chosen], entry[chosen]
    return query, matrix.indices[entry].astype(np.int64), matrix.data[entry].astype(np.float32)


def _has_label_to_pull(relevance: Relevance) -> NDArray[np.bool_]:
    running = np.concatenate([[0], np.cumsum(relevance.matrix.data > 0)])
    return np.asarray(np.diff(running[relevance.matrix.indptr]) > 0)


def _at_most(limit: int, groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions, ascending, of at most `limit` members of each group; `groups` is sorted."""
    order = np.lexsort((rng.random(len(groups)), groups))
    rank = np.arange(len(groups)) - np.searchsorted(groups, groups)
    return np.sort(order[rank < limit])
