"""The seam: what finds the k best labels of a query, whatever is behind it, and how two searches become one.

B queries, k wanted, C candidates.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.files.progress import Advance
from umpteen.search.ranking import NO_LABEL, Ranking

Rows = NDArray[np.int64]


# Each label's current vector: a mapped base that never changes, and an overlay of rows added or changed since.
#
# A snapshot: changing rows gives a new one that shares the base, so whoever searches the old one is not disturbed.
class LiveVectors:
    """Rows never shift. A removed row keeps its place and is in nobody's way; given a vector again, it is back."""

    def __init__(
        self,
        base: Tensor,
        active: NDArray[np.bool_] | None = None,
        changed: Rows | None = None,
        vectors: Tensor | None = None,
    ) -> None:
        self.base = base  # [L, d]
        self.active = np.ones(len(base), dtype=np.bool_) if active is None else active  # [rows], rows ≥ L
        self.changed = np.empty(0, dtype=np.int64) if changed is None else changed  # [C], sorted, all active
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

    def with_rows(self, rows: Rows, vectors: NDArray[np.float32]) -> "LiveVectors":
        """These rows have these vectors from now on, new rows and known ones."""
        self.check(rows, vectors)
        given = torch.from_numpy(np.array(vectors, dtype=np.float32))  # a copy: the caller's may change
        order = np.argsort(rows)
        rows, given = rows[order], given[torch.from_numpy(order)]
        active = self.active
        if len(rows) and rows[-1] >= len(active):
            active = np.concatenate([active, np.zeros(int(rows[-1]) + 1 - len(active), dtype=np.bool_)])
        active = active.copy()
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
        """These rows are found no more; one that was never here came and went meanwhile, and takes its place."""
        if len(rows) and rows.min() < 0:
            raise BadInput(f"row {int(rows.min())} is to be removed; rows count from 0")
        missing = max(0, int(rows.max()) + 1 - len(self)) if len(rows) else 0
        active = np.concatenate([self.active, np.zeros(missing, dtype=np.bool_)])
        active[rows] = False
        keep = active[self.changed]
        return LiveVectors(self.base, active, self.changed[keep], self.vectors[torch.from_numpy(keep)])

    def differing(self, rows: Rows, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which of these rows are not here with exactly these vectors."""
        differs = np.ones(len(rows), dtype=np.bool_)
        known = np.flatnonzero(rows < len(self))
        known = known[self.active[rows[known]]]
        differs[known] = (self.of(rows[known]).numpy() != vectors[known]).any(1)
        return differs

    def check(self, rows: Rows, vectors: NDArray[np.float32]) -> None:
        """Refuses what cannot be rows and their vectors."""
        if vectors.shape != (len(rows), self.dimension):
            raise BadInput(
                f"{len(rows):,} rows in {self.dimension} dimensions need as many vectors, "
                f"but these have the shape {vectors.shape}"
            )
        if len(rows) and rows.min() < 0:
            raise BadInput(f"row {int(rows.min())} is no row; rows count from 0")
        if len(np.unique(rows)) != len(rows):
            raise BadInput("a row is given twice in one change; give each once")
        require_finite("label", torch.from_numpy(vectors))


def require_finite(what: str, vectors: Tensor) -> None:
    """Refuses vectors that hold NaN or infinity, by the first such row."""
    broken = (~torch.isfinite(vectors.sum(1, dtype=torch.float32))).nonzero()
    if len(broken):
        raise BadInput(
            f"the vector of {what} row {int(broken[0]):,} holds NaN or infinity, so the model's weights are no use; "
            "train it again, with a lower optimizer.learning_rate"
        )


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


_SPARE = 6  # candidates beyond k, at least


@dataclass(frozen=True)
class Effort:
    """Chosen for the best `k`; who asks for more gets as much more."""

    k: int
    breadth: int  # efSearch of a graph, nprobe of lists, 0 where everything is looked at anyway
    rescored: int  # candidates that get exact scores

    def for_k(self, k: int) -> "Effort":
        """The effort for another number of labels."""
        if k <= self.k:
            return self
        more = k / self.k
        return Effort(k, math.ceil(self.breadth * more), max(k, math.ceil(self.rescored * more)))

    def to_dict(self) -> dict[str, int]:
        return {"k": self.k, "breadth": self.breadth, "rescored": self.rescored}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Effort":
        return cls(int(content["k"]), int(content["breadth"]), int(content["rescored"]))


def with_spare(k: int) -> int:
    """Candidates for k labels: coarse scores may put one that belongs to the k best a little behind them."""
    return k + max(_SPARE, k // 2)


def doubling(first: int, last: int, *, steps: int = 1) -> list[int]:
    """From first to last, each 2^(1/steps) times the one before, about."""
    last = max(last, 1)
    count = math.ceil(steps * math.log2(max(last / first, 1)))
    between = {round(first * 2 ** (number / steps)) for number in range(count)}
    return [*sorted(value for value in between if value < last), last]


class LabelIndex(Protocol):
    """Finds labels by inner product. Rows are label rows; they never shift, and a removed one is never returned."""

    effort: Effort

    @property
    def one_process(self) -> bool:
        """Whether no other process can search it at the same time."""
        ...

    @property
    def away(self) -> str | None:
        """Why exact search stands in for it, if it cannot be reached."""
        ...

    @property
    def kind(self) -> str:
        """Its name in the table of kinds.py."""
        ...

    @property
    def labels(self) -> LiveVectors:
        """All there is to find now."""
        ...

    def search(self, queries: Tensor, k: int) -> Ranking:
        """The k best rows of each query, of equal scores the smaller first; ends in −1 when there are fewer."""
        ...

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        """The rows found for each query with this effort, best first, before exact scores; −1 where none is left."""
        ...

    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first, in groups of one breadth; an index without a choice has one."""
        ...

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """New rows, or new vectors for known ones; found by the next search."""
        ...

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Rows that no search returns until they are added again."""
        ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the index as it was built into a folder; returns what its engine has to be told to open it."""
        ...

    def close(self) -> None:
        """Lets go of files, locks and connections; an index is not searched after it."""
        ...


class NamedRows(Protocol):
    """The labels' catalogue, as far as an index is to know it."""

    @property
    def version(self) -> int: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def active(self) -> NDArray[np.bool_]: ...


class Indexed(NamedTuple):
    """What an index is over: the vectors of one version of a model's labels, and the labels as they are now."""

    model: str  # the model's own name, eight hexadecimal digits
    vectors: LiveVectors
    version: int
    catalogue: Callable[[], NamedRows]


class Later(NamedTuple):
    """What has changed since: the vectors as they are now, which rows to put and which are gone."""

    now: LiveVectors
    put: Rows
    gone: Rows


BOUND = "bound_to_folder"  # in what is told of an index: a copy of its files would be of no use elsewhere


class Engine(ABC):
    """One kind of index: how it is built, opened, brought up to date and forgotten. What most need stands here."""

    living: str | None = None  # a subfolder of its files that changes in use
    has_address = False  # it may lie elsewhere than in the model folder
    updates = False  # it can be told of changed labels, instead of being built again

    def check(self, uri: str | None) -> None:  # noqa: B027  most have nothing to refuse
        """Refuses an address that it cannot be built at."""

    @abstractmethod
    def build(
        self, folder: Path, indexed: Indexed, uri: str | None, progress: Advance
    ) -> AbstractContextManager[tuple[LabelIndex, dict[str, Any]]]:
        """An index over the labels, open while this lasts, and what to remember besides what its `save` tells."""

    @abstractmethod
    def open(self, folder: Path, about: dict[str, Any], indexed: Indexed) -> LabelIndex:
        """The index as it was saved; the caller tells it what has changed since that version."""

    def update(self, folder: Path, about: dict[str, Any], indexed: Indexed, later: Later) -> None:
        """Tells an index of older labels what has changed since."""
        raise NotImplementedError

    def forget(self, folder: Path, about: dict[str, Any]) -> str | None:
        """Removes what lies elsewhere of an index that is gone; says what is left behind if that cannot be done."""
        return None

    def size(self, folder: Path, about: dict[str, Any]) -> int | None:
        """Bytes of the index itself; None if it is elsewhere."""
        return size_of(folder)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
