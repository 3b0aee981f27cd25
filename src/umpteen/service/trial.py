"""Answers tried before anybody asks: how long they take, and with how many threads.

Each search is a turn of its own in the inference thread, so that a service that is asked meanwhile goes on answering.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch

from umpteen.classifier import Classifier
from umpteen.service.batching import SHORT, Cost

MANY = 16  # texts of the larger of two batches
_TRIES = 10
_CLEARLY_LONG = 3 * SHORT  # of the processor
_TOO_LONG_TO_REPEAT = 10 * SHORT  # of the clock, which other programs make longer, too
_TURNS = 5
_LONGEST = 0.4  # seconds of a search that compares threads, if one text takes no longer
_MOST = 1.0  # seconds after which threads are compared no further
_WORTH_A_THREAD = 0.8  # of the time without it: a machine that has other work makes threads wait for each other

Result = TypeVar("Result")


class Seconds(NamedTuple):
    """What a search takes of the processor, and of the clock."""

    processor: float
    passed: float


class Turn(Protocol):
    """Has work done in the inference thread."""

    async def __call__(self, work: Callable[[], Result]) -> Result: ...


class Trial:
    """Some label texts to ask for; its searches take 3 seconds together, or a few texts' time if that is longer."""

    def __init__(self, classifier: Classifier, turn: Turn) -> None:
        self._classifier = classifier
        self._turn = turn
        self._texts = [classifier.labels.texts[row % len(classifier.labels)] for row in range(MANY)]
        self._k = min(5, classifier.labels.count())
        self._one_text = 0.0  # seconds, if known

    async def cost(self, threads: int) -> Cost | None:
        """Seconds of a small and of a larger batch, the shortest of a few; None if one text is no short work.

        Processor time, so that a machine busy with other things changes little, and what one text waits for besides.
        """
        one = await self._shortest(1, threads)
        self._one_text = one.passed
        if max(one) > SHORT:
            return None
        many = await self._shortest(MANY, threads)
        return Cost(max(one), max(0.0, many.processor - one.processor) / (MANY - 1))

    async def choose_threads(self, most: int) -> int:
        """The work is divided among so many threads, if that takes clearly less time."""
        texts = MANY if self._one_text * MANY <= _LONGEST else max(1, int(_LONGEST / self._one_text))
        shortest = {1: math.inf, most: math.inf}
        spent = 0.0
        for _ in range(_TURNS):  # in turns, so that what slows the machine slows both
            for threads in shortest:
                passed = (await self._tried(texts, threads)).passed
                shortest[threads] = min(shortest[threads], passed)
                spent += passed
            if spent > _MOST:
                break
        chosen = most if shortest[most] <= _WORTH_A_THREAD * shortest[1] else 1
        await self._turn(partial(torch.set_num_threads, chosen))
        return chosen

    async def _shortest(self, texts: int, threads: int) -> Seconds:
        """Of several tries, or of two if these are long; the first may have to read vectors from the disk."""
        shortest = await self._tried(texts, threads)
        for _ in range(_TRIES - 1):
            shortest = Seconds(*map(min, shortest, await self._tried(texts, threads)))
            if shortest.processor > _CLEARLY_LONG or shortest.passed > _TOO_LONG_TO_REPEAT:
                break
        return shortest

    async def _tried(self, texts: int, threads: int) -> Seconds:
        def search() -> Seconds:
            torch.set_num_threads(threads)  # holds for the thread that says so
            return self._seconds(texts)

        return await self._turn(search)

    def _seconds(self, texts: int) -> Seconds:
        began = time.thread_time(), time.perf_counter()
        self._classifier.rank(self._texts[:texts], self._k)
        return Seconds(time.thread_time() - began[0], time.perf_counter() - began[1])
