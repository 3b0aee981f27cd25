"""Labels that change, the seam to what finds the k best of them, and exact search, which builds nothing, misses none.

B queries, k wanted, C candidates. One query, or a few, are one product with all labels and one look at its largest
scores; many are searched tile by tile (exact.py).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from umpteen.errors import BadInput, known
from umpteen.files.progress import Advance
from umpteen.search import KINDS
from umpteen.search.ranking import NO_LABEL, Ranking, Vectors, as_floats, require_searchable

if TYPE_CHECKING:
    from torch import Tensor

_FEW_QUERIES = 32
_SCORES_AT_ONCE = 2**24  # 64 MB
_HALVES_AT_A_TIME = 512  # vectors: as float32 they stay in the processor's own memory
_BLOCK = 256  # labels whose largest score is compared first
BOUND = "bound_to_folder"  # in what is told of an index: a copy of its files would be of no use elsewhere
_NUMBERS_AT_A_TIME = 2**23
_SPARE = 6  # candidates beyond k, at least
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Built: TypeAlias = "tuple[LabelIndex, dict[str, Any]]"  # and what to remember besides what its `save` tells
Scored = tuple[Rows, NDArray[np.float32]]  # [B, C] each: candidates, −1 where there is none, and their scores
_NONE: Rows = np.empty(0, dtype=np.int64)


# Each label's current vector: a mapped base that never changes, and an overlay of rows added or changed since.
# A snapshot: whoever changes rows makes a new one that shares the base, so who searches the old one is not disturbed.
class LiveVectors:
    """Rows never shift. A row that is not active keeps its place and its vector, and is not found."""

    def __init__(
        self, base: Vectors, active: Mask | None = None, changed: Rows | None = None, vectors: Vectors | None = None
    ) -> None:
        self.base: NDArray[Any] = base if isinstance(base, np.ndarray) else base.detach().cpu().numpy()  # [L, d]
        self.active = np.ones(len(base), dtype=np.bool_) if active is None else active  # [rows], rows ≥ L
        self.changed = _NONE if changed is None else changed  # [C], sorted
        self.vectors = np.empty((0, base.shape[1]), np.float32) if vectors is None else as_floats(vectors)  # [C, d]
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

    def of(self, rows: Rows) -> NDArray[np.float32]:
        """The current vectors of these rows, in their order."""  # [n, d]
        if len(self.changed) == 0:
            return as_floats(self.base[rows])
        place = np.minimum(np.searchsorted(self.changed, rows), len(self.changed) - 1)
        new = self.changed[place] == rows
        found = np.empty((len(rows), self.dimension), np.float32)
        found[~new], found[new] = self.base[rows[~new]], self.vectors[place[new]]
        return found

    def asked(self, queries: Vectors, k: int) -> NDArray[np.float32]:
        """The queries as float32 in the machine's memory, if k of these labels can be searched for them."""
        require_searchable(queries, self.dimension, k)
        return as_floats(queries)

    @cached_property
    def everything(self) -> Tensor:
        """The vectors of all rows, removed ones included: the base itself while none has changed."""  # [rows, d]
        import torch

        return torch.from_numpy(self.of(np.arange(len(self))) if len(self.changed) else self.base)


class Indexed(NamedTuple):
    """What an index is over: one version of the labels of a model, and their vectors."""

    model: str  # the model's own name, eight hexadecimal digits
    version: int
    keys: Sequence[str]
    vectors: LiveVectors


def product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float32]:
    """left @ right in float32, by torch where it is loaded: it is quick with halves, and keeps to its threads."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "matmul"):  # another thread may be about to load it
        return np.asarray(as_floats(left) @ as_floats(right))
    found: NDArray[np.float32] = torch.matmul(*(torch.from_numpy(side).float() for side in (left, right))).numpy()
    return found


def exact_scores(queries: Vectors, rows: Rows, labels: LiveVectors) -> NDArray[np.float32]:
    """Each query's inner products with its candidates; −∞ where there is none (−1)."""  # [B, C]
    queries, scores = as_floats(queries), np.full(rows.shape, -np.inf, dtype=np.float32)
    if rows.size == 0:
        return scores
    step = max(1, _NUMBERS_AT_A_TIME // (rows.shape[1] * labels.dimension))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        there = some != NO_LABEL
        vectors = labels.of(np.where(there, some, 0).ravel()).reshape(*some.shape, labels.dimension)
        found = product(vectors, queries[start : start + step, :, None])[:, :, 0]
        scores[start : start + step] = np.where(there, found, np.float32(-np.inf))
    return scores


class Effort(NamedTuple):
    """Chosen for the best `k`; who asks for more gets as much more."""

    k: int
    breadth: int  # efSearch of a graph, nprobe of lists, 0 where everything is looked at anyway
    rescored: int  # candidates that get exact scores

    def for_k(self, k: int) -> Effort:
        if k <= self.k:
            return self
        more = k / self.k
        return Effort(k, math.ceil(self.breadth * more), max(k, math.ceil(self.rescored * more)))

    @staticmethod
    def with_spare(k: int) -> int:
        """Candidates for k labels: coarse scores may put one that belongs to the k best a little behind them."""
        return k + max(_SPARE, k // 2)

    @staticmethod
    def lists_of(count: int) -> int:
        """Into how many lists an index divides so many labels; Milvus has 65,536 at most."""
        return max(1, min(int(4 * math.sqrt(count)), count // 32, 65_536))

    @staticmethod
    def doubling(first: int, last: int, *, steps: int = 1) -> list[int]:
        """From first to last, each 2^(1/steps) times the one before, about."""
        last = max(last, 1)
        count = math.ceil(steps * math.log2(max(last / first, 1)))
        between = {round(first * 2 ** (number / steps)) for number in range(count)}
        return [*sorted(value for value in between if value < last), last]


class LabelIndex(ABC):
    """Finds labels by inner product. Rows are label rows; they never shift, and a removed one is never returned."""

    living: str | None = None  # a subfolder of its files that changes in use
    has_address = False  # it may lie elsewhere than in the model folder
    updates = False  # it can be told of changed labels for good, instead of being built again

    kind: str  # its name in the table of search/__init__.py
    effort: Effort
    labels: LiveVectors  # all there is to find now
    one_process = False  # no other process can search it at the same time
    away: str | None = None  # why exact search stands in for it, if it cannot be reached
    stood_in: str | None = None  # why it did when it last had to

    def tell(self, now: Indexed, changed: Rows) -> None:
        """The labels as they are now, and which rows have come, gone or changed since it was told last or built."""
        self.labels = now.vectors

    @abstractmethod
    def search(self, queries: Vectors, k: int) -> Ranking:
        """The k best rows of each query, of equal scores the smaller first; ends in −1 when there are fewer."""

    @abstractmethod
    def candidates(self, queries: Vectors, effort: Effort) -> Rows:
        """The rows found for each query with this effort, best first, before exact scores; −1 where none is left."""

    @abstractmethod
    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first, in groups of one breadth; an index without a choice has one."""

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the index as it was built into a folder; returns what `open` has to be told."""
        return {"kind": self.kind, "effort": self.effort._asdict()}

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Lets go of files, locks and connections; an index is not searched after it."""

    @classmethod  # noqa: B027  most have nothing to refuse
    def check(cls, uri: str | None) -> None:
        """Refuses an address that it cannot be built at."""

    @classmethod
    @abstractmethod
    @contextmanager
    def build(cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance) -> Iterator[Built]:
        """An index over the labels, open while this lasts."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> LabelIndex:
        """The index as it was saved, of the rows `held` at that time, and told of those that have changed since."""

    @classmethod
    def update(cls, folder: Path, about: dict[str, Any], now: Indexed, changed: Rows) -> None:
        """Takes the rows that have changed into the index for good."""
        raise NotImplementedError

    @classmethod
    def forget(cls, folder: Path, about: dict[str, Any]) -> str | None:
        """Removes what lies elsewhere of an index that is gone; says what is left behind if that cannot be done."""
        return None

    @classmethod
    def size(cls, folder: Path, about: dict[str, Any]) -> int | None:
        """Bytes of the index itself; None if it is elsewhere."""
        return size_of(folder)


def class_of(kind: str) -> type[LabelIndex]:
    """The class of indexes of this kind, or an error that lists those there are."""
    return cast(type[LabelIndex], resolve_name(known(KINDS, kind, f"{kind!r} is no kind of index", BadInput)))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def try_out(index: LabelIndex, dimension: int) -> None:
    """One search, for its errors: some indexes are opened by their first, and another process may have them."""
    index.search(np.zeros((1, dimension), np.float32), 1)


def exact_search(queries: Vectors, labels: LiveVectors, k: int) -> Ranking:
    """The k best current labels of each query."""
    queries = labels.asked(queries, k)
    found = _best(queries, labels.base, k, labels.hidden)
    if len(labels.changed) or found[0].shape[1] < k:
        gone = np.flatnonzero(~labels.active[labels.changed])
        return best_of_both(found, labels.changed, _best(queries, labels.vectors, k, gone), k, len(labels))
    return Ranking(found[0].astype(np.int32), found[1], len(labels))


class ExactIndex(LabelIndex):
    """All labels are looked at for every query; nothing is built or kept but the labels' vectors."""

    kind = "exact"
    effort = Effort(1, 0, 1)

    def __init__(self, labels: LiveVectors) -> None:
        self.labels = labels

    def search(self, queries: Vectors, k: int) -> Ranking:
        return exact_search(queries, self.labels, k)

    def candidates(self, queries: Vectors, effort: Effort) -> Rows:
        return exact_search(queries, self.labels, effort.rescored).rows.astype(np.int64)

    def efforts(self, k: int) -> list[Effort]:
        return [Effort(k, 0, k)]

    @classmethod
    @contextmanager
    def build(cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance) -> Iterator[Built]:
        yield cls(now.vectors), {}

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> LabelIndex:
        return cls(now.vectors)


def search_many(queries: Vectors, vectors: Vectors, k: int, **how: Any) -> Ranking:
    """What `top_k` finds, which has torch."""
    import torch

    from umpteen.search.exact import top_k

    return top_k(torch.as_tensor(queries), torch.as_tensor(vectors), k, **how)


def _best(queries: NDArray[np.float32], vectors: NDArray[Any], k: int, hidden: Rows) -> Scored:
    """Positions and scores of the best visible vectors, as many of k as there are vectors; −1 where none is left."""
    k = min(k, len(vectors))
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
    if len(queries) > _FEW_QUERIES or len(queries) * len(vectors) > _SCORES_AT_ONCE:
        ranking = search_many(queries, vectors, k, hidden=hidden)
        return ranking.rows.astype(np.int64), ranking.scores
    tile = len(vectors) if vectors.dtype == np.float32 else _HALVES_AT_A_TIME
    tiles = (vectors[start : start + tile] for start in range(0, len(vectors), tile))
    if len(queries) == 1:
        scores = np.concatenate([product(part, queries[0]) for part in tiles])[None]
    else:
        scores = np.concatenate([product(queries, part.T) for part in tiles], 1)
    scores[:, hidden] = -np.inf
    return best_of_each(scores, k)


def best_of_each(scores: NDArray[np.float32], k: int) -> Scored:
    """Positions and values of each row's k largest scores, of equal ones the earlier first; −1 where that is −∞."""
    queries, labels = scores.shape
    blocks = labels // _BLOCK
    # k blocks hold a score of at least the k-th largest of their maxima, so the k best do not lie below it.
    maxima = scores[:, : blocks * _BLOCK].reshape(queries, blocks, _BLOCK).max(2) if blocks > k else scores
    bar = np.partition(maxima, -k, axis=1)[:, -k, None]
    passed = np.flatnonzero(scores >= bar)
    query, at = np.divmod(passed, labels)
    best = scores.ravel()[passed]
    first = np.searchsorted(query, np.arange(queries))
    chosen = np.lexsort((-best, query))[first[:, None] + np.arange(k)]
    at, best = at[chosen], best[chosen]
    return np.where(best == -np.inf, NO_LABEL, at), best


def best_of_both(candidates: Scored, fresh: Rows, among: Scored, k: int, labels: int) -> Ranking:
    """The k best of each query's candidates and of the best among fresh rows, none of which is a candidate."""
    place, scores = among[0], np.concatenate([candidates[1], among[1]], 1)
    own = np.where(place == NO_LABEL, NO_LABEL, fresh[place]) if len(fresh) else place
    rows = np.concatenate([candidates[0], own], 1)
    missing = ((0, 0), (0, max(0, k - rows.shape[1])))
    rows = np.pad(rows.astype(np.int32), missing, constant_values=NO_LABEL)
    scores = np.where(rows == NO_LABEL, np.float32(-np.inf), np.pad(scores, missing))
    return Ranking(rows, scores, labels).in_order(np.lexsort((rows, -scores))[:, :k])


class Overlay:
    """All there is to find, and of it what an index does not hold as it is now: that is searched exactly beside it."""

    def __init__(self, labels: LiveVectors, changed: Rows) -> None:
        self.labels, self.changed = labels, changed  # the latter since the index was made, removed ones included
        self.fresh = changed[labels.active[changed]]  # those of them that are there
        self.vectors = labels.of(self.fresh)

    def best(self, queries: NDArray[np.float32], candidates: Rows, k: int) -> Ranking:
        """The k best of an index's candidates and of the fresh rows, by exact scores; exact if they are too few."""
        if len(self.fresh):  # the index may have them by now, but nobody is to be named twice
            candidates = np.where(np.isin(candidates, self.fresh), NO_LABEL, candidates)
        scored = candidates, exact_scores(queries, candidates, self.labels)
        best = best_of_both(scored, self.fresh, _best(queries, self.vectors, k, _NONE), k, len(self.labels))
        wanted = min(k, self.labels.count())
        short = np.flatnonzero(best.rows[:, wanted - 1] == NO_LABEL) if wanted else _NONE
        if len(short):
            exact = exact_search(queries[short], self.labels, k)
            best.rows[short], best.scores[short] = exact.rows, exact.scores
        return best
