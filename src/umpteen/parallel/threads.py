"""One thread for each share of a long walk, instead of all threads on each short operation of it.

An operation on one tile is too short to be divided: its threads would wait for each other thousands of times a walk,
and whenever the machine has other things to do, each of these waits is long.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")


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
