"""The seam: what finds the k best labels of a query, whatever is behind it.

A new kind is a module with an index (the methods of `LabelIndex`) and its `Engine`, and a row in kinds.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from umpteen.files.progress import Advance
from umpteen.search.index import Effort, ExactIndex, Indexed, LiveVectors, Rows
from umpteen.search.ranking import Ranking


class LabelIndex(Protocol):
    """Finds labels by inner product. Rows are label rows; they never shift, and a removed one is never returned."""

    kind: str  # its name in the table of kinds.py
    effort: Effort
    one_process: bool  # no other process can search it at the same time
    away: str | None  # why exact search stands in for it, if it cannot be reached

    @property
    def labels(self) -> LiveVectors:
        """All there is to find now."""

    def tell(self, now: Indexed, changed: Rows) -> None:
        """The labels as they are now, and which rows have come, gone or changed since it was told last or built."""

    def search(self, queries: Tensor, k: int) -> Ranking:
        """The k best rows of each query, of equal scores the smaller first; ends in −1 when there are fewer."""

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        """The rows found for each query with this effort, best first, before exact scores; −1 where none is left."""

    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first, in groups of one breadth; an index without a choice has one."""

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the index as it was built into a folder; returns what its engine has to be told to open it."""

    def close(self) -> None:
        """Lets go of files, locks and connections; an index is not searched after it."""


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
        self, folder: Path, now: Indexed, uri: str | None, progress: Advance
    ) -> AbstractContextManager[tuple[LabelIndex, dict[str, Any]]]:
        """An index over the labels, open while this lasts, and what to remember besides what its `save` tells."""

    @abstractmethod
    def open(self, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> LabelIndex:
        """The index as it was saved, of the rows `held` at that time, and told of those that have changed since."""

    def update(self, folder: Path, about: dict[str, Any], now: Indexed, changed: Rows) -> None:
        """Takes the rows that have changed into the index for good."""
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


class ExactEngine(Engine):
    """Nothing is built or kept: the labels' vectors are all there is."""

    @contextmanager
    def build(
        self, folder: Path, now: Indexed, uri: str | None, progress: Advance
    ) -> Iterator[tuple[LabelIndex, dict[str, Any]]]:
        yield ExactIndex(now.vectors), {}

    def open(self, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> LabelIndex:
        return ExactIndex(now.vectors)
