"""One thread for each share of a long walk, instead of all threads on each short operation of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


def spread(work: Callable[[int], Result], shares: int) -> list[Result]:
    """work(0) … work(shares − 1), each in a thread of its own that opens no further threads.

    An operation on one tile is too short to be divided: its threads wait for each other thousands of times a walk,
    and whenever the machine has other things to do, each of these waits is long.
    """
    if shares == 1:
        return [work(0)]
    threads = torch.get_num_threads()

    def alone(share: int) -> Result:
        torch.set_num_threads(1)
        with torch.no_grad():
            return work(share)

    try:
        with ThreadPoolExecutor(shares) as pool:
            return list(pool.map(alone, range(shares)))
    finally:
        torch.set_num_threads(threads)
