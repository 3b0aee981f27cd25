"""This process's contiguous slice of n rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
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
