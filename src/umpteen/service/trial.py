"""Answers tried before anybody asks: how long they take, and with how many threads."""

import time

import torch

from umpteen.classifier import Classifier
from umpteen.service.batching import Cost

MANY = 16  # texts of the larger of two batches
_TOO_LONG_TO_REPEAT = 0.2  # seconds
_TURNS = 5
_WORTH_A_THREAD = 0.8  # of the time without it: a machine that has other work makes threads wait for each other


class Trial:
    """Some label texts to ask for; it runs in the inference thread."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._texts = [classifier.labels.texts[row % len(classifier.labels)] for row in range(MANY)]
        self._k = min(5, classifier.labels.count())

    def cost(self, threads: int) -> Cost | None:
        """Seconds of a small and of a larger batch, the shortest of a few; None if they are long.

        Processor time, so that a machine busy with other things changes little, and what one text waits for besides.
        """
        torch.set_num_threads(threads)
        if min(self._seconds(1)[1], self._seconds(1)[1]) > _TOO_LONG_TO_REPEAT:
            return None
        (one, passed), (many, _) = (map(min, *(self._seconds(count) for _ in range(10))) for count in (1, MANY))
        return Cost(max(one, passed), max(0.0, many - one) / (MANY - 1))

    def choose_threads(self, most: int) -> int:
        """The work is divided among so many threads, if that takes clearly less time."""
        seconds: dict[int, list[float]] = {1: [], most: []}
        for _ in range(_TURNS):  # in turns, so that what slows the machine slows both
            for threads, taken in seconds.items():
                torch.set_num_threads(threads)
                taken.append(self._seconds(MANY)[1])
        torch.set_num_threads(most if min(seconds[most]) <= _WORTH_A_THREAD * min(seconds[1]) else 1)
        return torch.get_num_threads()

    def _seconds(self, count: int) -> tuple[float, float]:
        """Of the processor, and of the clock."""
        began = time.thread_time(), time.perf_counter()
        self._classifier.rank(self._texts[:count], self._k)
        return time.thread_time() - began[0], time.perf_counter() - began[1]
