"""From a few measured sizes to any size: straight lines between and beyond what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.planning.meter import Seconds


def median_seconds(measured: Sequence[Seconds]) -> Seconds:
    """The middle one of several measurements, of each clock."""
    middle: Seconds = np.median(np.stack(measured), axis=0)
    return middle


class MicroBatchCost(NamedTuple):
    """Of one micro-batch: seconds, and bytes beyond what is there before."""

    encode: Seconds  # forward, without a graph
    graph: Seconds  # forward, with a graph
    backward: Seconds
    encode_bytes: float
    graph_bytes: float  # held until the backward pass
    replay_bytes: float  # at most, with the graph, without the weights' gradients

    @property
    def clock(self) -> float:
        """Seconds of everything that was measured."""
        return float(self.encode[0] + self.graph[0] + self.backward[0])


@dataclass(frozen=True)
class Line:
    """Costs [n] measured at two sizes, the smaller first, or at one if there was nothing smaller to measure."""

    points: Sequence[tuple[int, NDArray[np.float64]]]

    @property
    def size(self) -> int:
        """The larger of the sizes."""
        return self.points[-1][0]

    def at(self, size: float) -> NDArray[np.float64]:
        """On the line through both points; in proportion to one, or where noise lets the line fall."""
        (smaller, low), (larger, high) = self.points[0], self.points[-1]
        proportional = high * (size / larger)
        if smaller == larger:
            return proportional
        slope = (high - low) / (larger - smaller)
        return np.where(slope < 0, proportional, np.maximum(high + slope * (size - larger), 0))


@dataclass(frozen=True)
class TowerCosts:
    """What micro-batches cost a tower: a line over padded tokens for each measured length of texts."""

    lines: Sequence[tuple[int, Line]]  # by rising length
    gradient_bytes: int  # of its weights
    kept: float = 0.0  # what the allocator keeps of other micro-batches, as a share of the largest one's bytes

    def of(self, texts: int, longest: int) -> MicroBatchCost:
        """The cost of a micro-batch; between two measured lengths, between theirs."""
        tokens = texts * max(longest, 1)
        lengths = [length for length, _ in self.lines]
        place = float(np.interp(longest, lengths, np.arange(len(lengths))))
        low = min(int(place), len(lengths) - 1)
        high = min(low + 1, len(lengths) - 1)
        below, above = (self.lines[at][1].at(tokens) for at in (low, high))
        return unpacked(below + (above - below) * (place - low))


def packed(cost: MicroBatchCost) -> NDArray[np.float64]:
    """One cost as numbers in a row [9], ready for a line."""
    return np.concatenate([cost.encode, cost.graph, cost.backward, cost[3:]])


def unpacked(numbers: NDArray[np.float64]) -> MicroBatchCost:
    """The cost that `packed` made numbers of."""
    return MicroBatchCost(numbers[0:2], numbers[2:4], numbers[4:6], *map(float, numbers[6:]))
