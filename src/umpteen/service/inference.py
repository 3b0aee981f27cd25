"""One thread that does one piece of work after another, so that searches and label changes never meet.

The event loop stays free meanwhile, and hears of each result in its own thread.
"""

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]


class _Job(NamedTuple):
    work: Work
    done: Done
    loop: AbstractEventLoop


class InferenceThread:
    """Starts with its first work; `stop` waits for what it was given."""

    def __init__(self, prepare: Callable[[], None] = lambda: None) -> None:
        self._prepare = prepare  # runs first in the thread: settings that hold for a thread
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, done: Done, loop: AbstractEventLoop) -> None:
        """Does the work when its turn comes, then calls done(result, error) in the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
            self._thread.start()
        self._jobs.put(_Job(work, done, loop))

    def stop(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        self._prepare()
        while (job := self._jobs.get()) is not None:
            result, error = attempt(job.work)
            if not job.loop.is_closed():  # nobody waits any more
                job.loop.call_soon_threadsafe(job.done, result, error)


def attempt(work: Work) -> tuple[Any, Exception | None]:
    """What the work gives, or what it raises."""
    try:
        return work(), None
    except Exception as problem:  # whatever it is, it belongs to whoever asked
        return None, problem
