"""Searches of the labels, and looks at their history: in two threads of their own, so that nothing else waits for them.

They read snapshots and need no turn between batches. As many as the limit says may wait; one that takes too long is
given up.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from umpteen.service.refusals import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")
GivenUp = threading.Event  # set: nobody waits for the result any more

THREADS = 2  # they share the processor with predictions; the second, so that one long search does not hold up the next


class Lookups:
    """Starts its threads with the first search; `stop` waits for none."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._threads: ThreadPoolExecutor | None = None
        self._taken: dict[Future[Any], GivenUp] = {}

    async def run(self, work: Callable[[GivenUp], Result]) -> Result:
        """What the work gives; refused if too many wait, or if it is not done in time."""
        self._check_room()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        given_up = GivenUp()
        taken = self._threads.submit(work, given_up)
        self._taken[taken] = given_up
        taken.add_done_callback(lambda done: self._taken.pop(done, None))  # in one step, whichever thread it is
        result = asyncio.wrap_future(taken)
        try:
            await asyncio.wait({result}, timeout=self._settings.timeout)
        finally:  # even if whoever asked is gone
            if not result.done():
                given_up.set()
                result.cancel()
        if result.cancelled():
            raise Refusal(504, "timeout", f"no answer within {self._settings.timeout:g} s; search for more letters")
        return result.result()

    def _check_room(self) -> None:
        most = self._settings.limits.waiting_searches
        if len(self._taken) >= THREADS + most:
            raise too_busy(f"{most:,} searches of labels wait already; ask again in a moment")

    def stop(self) -> None:
        """Gives up what is left."""
        for given_up in list(self._taken.values()):
            given_up.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
