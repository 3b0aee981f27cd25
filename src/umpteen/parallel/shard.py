"""This process's contiguous slice of n rows, and this machine's threads for a long walk over them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.parallel.world import World


@dataclass(frozen=True)
class Shard:
    """Rank g owns rows ⌊g·n/N⌋ up to, and without, ⌊(g+1)·n/N⌋: slices differ by at most one row, and may be empty."""

    world: World
    count: int  # n, over all processes
    edges: tuple[int, ...] | None = None  # where the slices begin, and n, where they are not of equal size

    def among(self, chosen: NDArray[np.integer[Any]]) -> "Shard":
        """The shard of a choice of these rows, ascending: every process keeps those of its own slice."""
        edges = [self._edge(rank) for rank in range(self.world.size + 1)]
        return Shard(self.world, len(chosen), tuple(np.searchsorted(chosen, edges).tolist()))

    @property
    def start(self) -> int:
        return self._edge(self.world.rank)

    @property
    def stop(self) -> int:
        return self._edge(self.world.rank + 1)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def gather(self, mine: Tensor) -> Tensor:
        """All n rows, in order, from every process's own."""
        return self.world.gather_rows(mine, self._sizes())

    def collect(self, mine: Tensor) -> Tensor | None:
        """The same for the first process alone, which is spared the others' copies; None for the others."""
        return self.world.collect_rows(mine, self._sizes())

    def _sizes(self) -> list[int]:
        return [self._edge(rank + 1) - self._edge(rank) for rank in range(self.world.size)]

    def _edge(self, rank: int) -> int:
        return rank * self.count // self.world.size if self.edges is None else self.edges[rank]


Result = TypeVar("Result")


# One thread for each share of a long walk, instead of all threads on each short operation of it: an operation on one
# tile is too short to be divided, its threads would wait for each other thousands of times a walk.
@contextmanager
def undivided() -> Iterator[None]:
    """Operations in this thread are not spread over others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def spread(work: Callable[[int], Result], shares: int) -> list[Result]:
    """work(0) … work(shares − 1), each in a thread of its own, undivided; the first in the one that calls."""
    if shares == 1:
        return [work(0)]

    def alone(share: int) -> Result:
        torch.set_num_threads(1)  # holds for the thread that says so
        with torch.no_grad():
            return work(share)

    with undivided(), ThreadPoolExecutor(shares - 1) as pool:
        others = [pool.submit(alone, share) for share in range(1, shares)]
        with torch.no_grad():
            first = work(0)
        return [first, *(other.result() for other in others)]
