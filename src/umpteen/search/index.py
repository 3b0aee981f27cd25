"""Labels that change, and exact search over them: nothing is ever missed, and adding one costs nothing.

B queries, k wanted, C candidates. One query, or a few, are one product with all labels and one look at its largest
scores; many are searched tile by tile (ranking.py). engine.py has the seam to other indexes.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.search.ranking import NO_LABEL, Ranking, require_searchable, top_k

_FEW_QUERIES = 32
_SCORES_AT_ONCE = 2**24  # 64 MB
_BLOCK = 256  # labels whose largest score is compared first
Rows = NDArray[np.int64]
_NONE: Rows = np.empty(0, dtype=np.int64)


# Each label's current vector: a mapped base that never changes, and an overlay of rows added or changed since.
#
# A snapshot: changing rows gives a new one that shares the base, so whoever searches the old one is not disturbed.
class LiveVectors:
    """Rows never shift. A removed row keeps its place and its vector, and is not found; given a vector, it is back."""

    def __init__(
        self,
        base: Tensor,
        active: NDArray[np.bool_] | None = None,
        changed: Rows | None = None,
        vectors: Tensor | None = None,
    ) -> None:
        self.base = base  # [L, d]
        self.active = np.ones(len(base), dtype=np.bool_) if active is None else active  # [rows], rows ≥ L
        self.changed = _NONE if changed is None else changed  # [C], sorted
        self.vectors = torch.empty(0, base.shape[1]) if vectors is None else vectors  # [C, d]
        out = ~self.active[: len(base)]
        out[self.changed[: np.searchsorted(self.changed, len(base))]] = True
        self.hidden: Rows = np.flatnonzero(out)  # base rows whose base vector counts for nobody

    def __len__(self) -> int:
        """How many rows there are, removed ones included."""
        return len(self.active)

    @property
    def dimension(self) -> int:
        return int(self.base.shape[1])

    def count(self) -> int:
        """How many rows can be found."""
        return int(np.count_nonzero(self.active))

    def of(self, rows: Rows) -> Tensor:
        """The current vectors of these rows, in their order, as float32."""  # [n, d]
        if len(self.changed) == 0:
            return self.base[torch.from_numpy(rows)].float()
        place = np.minimum(np.searchsorted(self.changed, rows), len(self.changed) - 1)
        new = self.changed[place] == rows
        found = torch.empty(len(rows), self.dimension)
        found[torch.from_numpy(~new)] = self.base[torch.from_numpy(rows[~new])].float()
        found[torch.from_numpy(new)] = self.vectors[torch.from_numpy(place[new])]
        return found

    @cached_property
    def everything(self) -> Tensor:
        """The vectors of all rows, removed ones included: the base itself while none has changed."""  # [rows, d]
        return self.of(np.arange(len(self))) if len(self.changed) else self.base

    def with_rows(self, rows: Rows, given: Tensor) -> "LiveVectors":
        """These rows, each named once, have these vectors from now on, new rows and known ones."""
        active = np.zeros(max(len(self), int(rows.max(initial=-1)) + 1), dtype=np.bool_)
        active[: len(self)] = self.active
        active[rows] = True
        # A row that takes its base vector back needs no place in the overlay.
        old = np.flatnonzero(rows < len(self.base))
        back = np.zeros(len(rows), dtype=np.bool_)
        back[old] = (self.base[torch.from_numpy(rows[old])].float() == given[torch.from_numpy(old)]).all(1).numpy()
        keep = ~np.isin(self.changed, rows)
        changed = np.concatenate([self.changed[keep], rows[~back]])
        everything = torch.cat([self.vectors[torch.from_numpy(keep)], given[torch.from_numpy(~back)]])
        order = np.argsort(changed)
        return LiveVectors(self.base, active, changed[order], everything[torch.from_numpy(order)])

    def without(self, rows: Rows) -> "LiveVectors":
        """These rows are found no more."""
        active = self.active.copy()
        active[rows] = False
        return LiveVectors(self.base, active, self.changed, self.vectors)


class NamedRows(Protocol):
    """One version of a model's labels, as far as an index is to know them."""

    @property
    def version(self) -> int: ...
    @property
    def keys(self) -> Sequence[str]: ...


class Indexed(NamedTuple):
    """What an index is over: one version of the labels of a model, and their vectors."""

    model: str  # the model's own name, eight hexadecimal digits
    labels: NamedRows
    vectors: LiveVectors


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
            vectors = labels.of(np.where(there, some, 0).ravel()).view(*some.shape, labels.dimension)
            found = torch.bmm(vectors, queries[start : start + step, :, None]).squeeze(2).numpy()
            scores[start : start + step] = np.where(there, found, np.float32(-np.inf))
    return scores


_SPARE = 6  # candidates beyond k, at least


class Effort(NamedTuple):
    """Chosen for the best `k`; who asks for more gets as much more."""

    k: int
    breadth: int  # efSearch of a graph, nprobe of lists, 0 where everything is looked at anyway
    rescored: int  # candidates that get exact scores

    def for_k(self, k: int) -> "Effort":
        if k <= self.k:
            return self
        more = k / self.k
        return Effort(k, math.ceil(self.breadth * more), max(k, math.ceil(self.rescored * more)))

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Effort":
        return cls(*(int(content[name]) for name in cls._fields))


def with_spare(k: int) -> int:
    """Candidates for k labels: coarse scores may put one that belongs to the k best a little behind them."""
    return k + max(_SPARE, k // 2)


def lists_of(count: int) -> int:
    """Into how many lists an index divides so many labels; Milvus has 65,536 at most."""
    return max(1, min(int(4 * math.sqrt(count)), count // 32, 65_536))


def doubling(first: int, last: int, *, steps: int = 1) -> list[int]:
    """From first to last, each 2^(1/steps) times the one before, about."""
    last = max(last, 1)
    count = math.ceil(steps * math.log2(max(last / first, 1)))
    between = {round(first * 2 ** (number / steps)) for number in range(count)}
    return [*sorted(value for value in between if value < last), last]


def exact_search(queries: Tensor, labels: LiveVectors, k: int) -> Ranking:
    """The k best current labels of each query."""
    queries = checked_queries(queries, labels.dimension, k)
    rows, scores = _best(queries, labels.base, k, labels.hidden)
    if len(labels.changed) or rows.shape[1] < k:
        gone = np.flatnonzero(~labels.active[labels.changed])
        new, more = _best_of_rows(queries, labels.changed, labels.vectors, k, gone)
        return best_of(np.concatenate([rows, new], 1), np.concatenate([scores, more], 1), k, len(labels))
    return Ranking(rows.astype(np.int32), scores, len(labels))


def _best_of_rows(
    queries: Tensor, rows: Rows, vectors: Tensor, k: int, hidden: Rows
) -> tuple[Rows, NDArray[np.float32]]:
    """The best of these rows, whose vectors these are."""
    place, scores = _best(queries, vectors, k, hidden)
    return (np.where(place == NO_LABEL, NO_LABEL, rows[place]) if len(rows) else place), scores


def checked_queries(queries: Tensor, dimension: int, k: int) -> Tensor:
    """The queries as float32 in the machine's memory, if they can be searched for."""
    require_searchable(queries, dimension, k)
    return queries.detach().float().cpu()


def _best(queries: Tensor, vectors: Tensor, k: int, hidden: Rows) -> tuple[Rows, NDArray[np.float32]]:
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


class Overlay(NamedTuple):
    """All there is to find, and of it what an index does not hold as it is now: that is searched exactly beside it."""

    labels: LiveVectors
    changed: Rows  # since the index was made, removed ones included
    fresh: Rows  # those of them that are there
    vectors: Tensor  # of these

    @classmethod
    def of(cls, labels: LiveVectors, changed: Rows) -> "Overlay":
        fresh = changed[labels.active[changed]]
        return cls(labels, changed, fresh, labels.of(fresh))

    def best(self, queries: Tensor, candidates: Rows, k: int) -> Ranking:
        """The k best of an index's candidates and of the fresh rows, by exact scores; exact if they are too few."""
        if len(self.fresh):  # the index may have them by now, but nobody is to be named twice
            candidates = np.where(np.isin(candidates, self.fresh), NO_LABEL, candidates)
        scores = exact_scores(queries, candidates, self.labels)
        new, more = _best_of_rows(queries, self.fresh, self.vectors, k, _NONE)
        best = best_of(np.concatenate([candidates, new], 1), np.concatenate([scores, more], 1), k, len(self.labels))
        wanted = min(k, self.labels.count())
        short = np.flatnonzero(best.rows[:, wanted - 1] == NO_LABEL) if wanted else _NONE
        if len(short):
            exact = exact_search(queries[torch.from_numpy(short)], self.labels, k)
            best.rows[short], best.scores[short] = exact.rows, exact.scores
        return best
