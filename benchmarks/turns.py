"""Measuring: both sides of a comparison in turns, and how much of a piece of work is matrix products."""

import time
from collections.abc import Callable, Mapping
from statistics import median

from torch.profiler import ProfilerActivity, profile

from umpteen.parallel.world import undivided

Work = Callable[[], object]

PRODUCTS = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}


class Turns:
    """Seconds of several sides that took turns, so that what slows the machine slows all of them."""

    def __init__(self, sides: Mapping[str, Work], repeats: int) -> None:
        self._seconds = [{name: seconds_of(work) for name, work in sides.items()} for _ in range(repeats)]

    @property
    def seconds(self) -> dict[str, float]:
        """Each side's median."""
        return {name: median(turn[name] for turn in self._seconds) for name in self._seconds[0]}

    def ratio(self, side: str, to: str) -> float:
        """Seconds of a side ÷ seconds of another in the same turn, the median of the turns."""
        return median(turn[side] / turn[to] for turn in self._seconds)


def seconds_of(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def outside_products(work: Work) -> float:
    """The share of time that is not spent in matrix products and fused attention, on one thread.

    One, because the profiler sees only what its own thread does.
    """
    with undivided(), profile(activities=[ProfilerActivity.CPU]) as profiled:
        seconds = seconds_of(work)
    inside: float = sum(event.self_cpu_time_total for event in profiled.key_averages() if event.key in PRODUCTS)
    return 1 - inside / 1e6 / seconds
