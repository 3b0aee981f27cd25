"""Costs that are easy to count by hand."""

import numpy as np

from umpteen.plan.plan import Costs, Part, Work

ALWAYS, GRADIENTS, VECTOR = 1_000_000, 10_000, 16


def part(share: float, seconds: float, largest: int, extra: float) -> Part:
    """Each part of a step takes so many seconds; processors are busy twice as long."""
    clocks = np.full((5, 2), seconds) * [1.0, 2.0]
    return Part(share, clocks, ALWAYS, np.full(4, extra), largest, queries=8, tile=4)


def costs() -> Costs:
    """A step of half the run takes 2 s a part, of all of it 3; a token takes 50 bytes, beside 300."""
    parts = [part(0.5, 2.0, 4, 500.0), part(1.0, 3.0, 8, 700.0)]
    return Costs(parts, VECTOR, VECTOR, GRADIENTS, 30_000, 2.0, 1.0, 900)


def work(labels: int = 10, processes: int = 1, evaluated: int = 4) -> Work:
    return Work(np.full(8, 2), np.full(labels, 2), evaluated, processes)
