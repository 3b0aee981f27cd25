"""Exact search while Milvus is away: nobody waits for it, and it is asked again as soon as it is back."""

import time
from threading import Event, Lock, Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from umpteen.retrieval.exact_index import exact_search
from umpteen.retrieval.live_vectors import LiveVectors
from umpteen.retrieval.milvus_connection import MilvusAway
from umpteen.retrieval.milvus_index import MilvusIndex
from umpteen.retrieval.ranking import Ranking

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds between attempts, doubling
_PATIENCE = 10.0  # seconds that closing waits for a write to end


class Absence(NamedTuple):
    """Since when Milvus is away (UNIX time), and why."""

    since: float
    reason: str


class FallbackIndex:
    """A Milvus index that answers even when Milvus does not.

    A thread of its own, alive while there is something to do, waits for Milvus with growing patience and tells it of
    changed labels. Who never searches never touches Milvus.
    """

    kind = MilvusIndex.kind

    def __init__(self, milvus: MilvusIndex, *, first_wait: float = _FIRST_WAIT) -> None:
        self.milvus = milvus
        self.absence: Absence | None = None
        self._first_wait = first_wait
        self._searched = False
        self._keeper: Thread | None = None
        self._keeping = Lock()
        self._ending = Event()

    def search(self, queries: Tensor, k: int) -> Ranking:
        if self.absence is None:
            try:
                found = self.milvus.search(queries, k)
            except MilvusAway as away:
                self.absence = Absence(time.time(), str(away))
            else:
                if not self._searched:
                    self._searched = True
                    self._keep()
                return found
        self._searched = True
        self._keep()
        return exact_search(queries, self.milvus.labels, k)

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.milvus.add(rows, vectors)
        self._keep()

    def remove(self, rows: NDArray[np.int64]) -> None:
        self.milvus.remove(rows)
        self._keep()

    @property
    def one_process(self) -> bool:
        """Whether no other process can search it at the same time."""
        return self.milvus.collection.connection.embedded

    @property
    def labels(self) -> LiveVectors:
        """All there is to find now."""
        return self.milvus.labels

    def waiting(self) -> int:
        """How many rows Milvus has not heard of yet."""
        return self.milvus.waiting()

    def close(self) -> None:
        self._ending.set()
        with self._keeping:
            keeper = self._keeper
        if keeper is not None:
            keeper.join(timeout=_PATIENCE)
        self.milvus.close()

    def _keep(self) -> None:
        """Makes sure that somebody looks after Milvus, if there is reason to."""
        with self._keeping:
            if self._keeper is None and self._searched and not self._ending.is_set() and self._is_needed():
                self._keeper = Thread(target=self._look_after, name="milvus", daemon=True)
                self._keeper.start()

    def _is_needed(self) -> bool:
        return self.absence is not None or self.milvus.waiting() > 0

    def _look_after(self) -> None:
        wait = self._first_wait  # the first time, too: changes come in bursts, and some processes end soon
        while not self._ending.wait(wait):
            try:
                self.milvus.catch_up()
                self.absence, wait = None, self._first_wait
            except Exception as error:  # whatever it is: answers stay exact, and Milvus gets another chance
                self.absence = self.absence or Absence(time.time(), str(error))
                wait = min(2 * wait, _LONGEST_WAIT)
            with self._keeping:
                if not self._is_needed():
                    self._keeper = None
                    return
