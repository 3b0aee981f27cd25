"""The seam: what finds the k best labels of a query, whatever is behind it; and exact search, which needs nothing.

A new kind is a module with a subclass of `LabelIndex`, and a row in kinds.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from umpteen.files.progress import Advance
from umpteen.search.index import Effort, Indexed, LiveVectors, Rows, exact_search
from umpteen.search.ranking import Ranking

BOUND = "bound_to_folder"  # in what is told of an index: a copy of its files would be of no use elsewhere


class LabelIndex(ABC):
    """Finds labels by inner product. Rows are label rows; they never shift, and a removed one is never returned.

    The class says how an index of its kinds is built, opened, brought up to date and forgotten. What most need stands
    here.
    """

    living: str | None = None  # a subfolder of its files that changes in use
    has_address = False  # it may lie elsewhere than in the model folder
    updates = False  # it can be told of changed labels for good, instead of being built again

    kind: str  # its name in the table of kinds.py
    effort: Effort
    labels: LiveVectors  # all there is to find now
    one_process = False  # no other process can search it at the same time
    away: str | None = None  # why exact search stands in for it, if it cannot be reached
    stood_in: str | None = None  # why it did when it last had to

    @abstractmethod
    def tell(self, now: Indexed, changed: Rows) -> None:
        """The labels as they are now, and which rows have come, gone or changed since it was told last or built."""

    @abstractmethod
    def search(self, queries: Tensor, k: int) -> Ranking:
        """The k best rows of each query, of equal scores the smaller first; ends in −1 when there are fewer."""

    @abstractmethod
    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
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
    def build(
        cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance
    ) -> AbstractContextManager[tuple["LabelIndex", dict[str, Any]]]:
        """An index over the labels, open while this lasts, and what to remember besides what its `save` tells."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> "LabelIndex":
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


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def try_out(index: LabelIndex, dimension: int) -> None:
    """One search, for its errors: some indexes are opened by their first, and another process may have them."""
    index.search(torch.zeros(1, dimension), 1)


class ExactIndex(LabelIndex):
    """All labels are looked at for every query; nothing is built or kept but the labels' vectors."""

    kind = "exact"
    effort = Effort(1, 0, 1)

    def __init__(self, labels: LiveVectors) -> None:
        self.labels = labels

    def tell(self, now: Indexed, changed: Rows) -> None:
        self.labels = now.vectors

    def search(self, queries: Tensor, k: int) -> Ranking:
        return exact_search(queries, self.labels, k)

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        return exact_search(queries, self.labels, effort.rescored).rows.astype(np.int64)

    def efforts(self, k: int) -> list[Effort]:
        return [Effort(k, 0, k)]

    @classmethod
    @contextmanager
    def build(
        cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance
    ) -> Iterator[tuple[LabelIndex, dict[str, Any]]]:
        yield cls(now.vectors), {}

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> LabelIndex:
        return cls(now.vectors)
