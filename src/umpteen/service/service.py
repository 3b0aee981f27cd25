"""What all routes of one worker share: the classifier, the batcher, the metrics and the log; its start and its end."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import torch

from umpteen.errors import UmpteenError
from umpteen.model.catalogue import Encoded
from umpteen.model.changes import Locked
from umpteen.model.classifier import Classifier
from umpteen.service.batching import Batcher
from umpteen.service.metrics import Log, Metrics
from umpteen.service.schemas import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")
Work = Callable[[Encoded], Result]  # makes the change without waiting for others, or raises Locked
_BETWEEN_TRIES = 0.05  # seconds
GivenUp = threading.Event  # set: nobody waits for the result any more
THREADS = 2  # of lookups, which share the processor with texts; the second, so that a long search holds up no other
_BETWEEN_LOOKS = 0.002  # seconds
_PATIENCE = 1.0  # seconds; where texts come faster than they are answered, fewer never wait


class Service:
    """One worker's model, and whether it is ready to be asked."""

    def __init__(self, classifier: Classifier, settings: ServiceSettings, metrics: Metrics | None = None) -> None:
        self.classifier = classifier
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.log = Log(on=settings.access_log, texts=settings.log_texts)
        self.batcher = batcher = Batcher(classifier, settings, self.metrics)
        self.ready = False
        self.waiting: Counter[str] = Counter()  # changes, explanations and lookups without a result yet
        self._lookups = ThreadPoolExecutor(THREADS, "lookup")  # start with the first
        self._explaining = asyncio.Lock()
        self._watching: list[asyncio.Task[None]] = []
        self.metrics.version.set_function(lambda: classifier.version)
        self.metrics.labels.set_function(lambda: classifier.labels.count())
        self.metrics.waiting.set_function(lambda: batcher.waiting_texts)
        self.metrics.index_away.set_function(lambda: classifier.index.away is not None)

    async def start(self) -> None:
        """Answers some texts before anybody asks."""
        torch.set_num_threads(self.settings.threads or 1)  # of this thread, in which short work is done
        await self.batcher.alone(partial(self._with_what_follows, lambda: None))
        await self.batcher.alone(self.batcher.measure)
        tell = partial(asyncio.to_thread, self.metrics.tell)
        looks = (self._refresh, self._keep_measured, tell)  # apart: each may take long while many ask
        self._watching = [asyncio.create_task(self._watch(look)) for look in looks]
        self.ready = True
        self._log_labels("ready")

    async def stop(self) -> None:
        """Finishes what was taken, then closes the index."""
        self.ready = False
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._lookups.shutdown(wait=False, cancel_futures=True)
        self._lookups = ThreadPoolExecutor(THREADS, "lookup")  # an application may be started again
        self.batcher.end()
        await asyncio.to_thread(self.batcher.stop)
        self.classifier.index.close()
        self.log.event("stopped")

    async def _watch(self, look: Callable[[], Awaitable[None]]) -> None:
        """Looks until the end. A version that cannot be read is told once; the labels stay as they were."""
        told = ""
        while self.ready:  # Python 3.11's wait_for may swallow a cancellation
            await asyncio.sleep(self.settings.refresh)
            try:
                await look()
                told = ""
            except Exception as problem:  # the next look may be luckier
                if str(problem) == told:
                    continue
                told = str(problem)
                if isinstance(problem, UmpteenError | OSError):
                    self.log.event("not_refreshed", reason=told)
                else:
                    self.log.failure(problem)

    async def _keep_measured(self) -> None:
        if not self.batcher.is_measured:
            await self._after_texts(self.batcher.measure)

    async def _after_texts(self, work: Callable[[], Result]) -> Result:
        """Work that is in no hurry, alone: some of the texts that wait go first."""
        waiting, until = self.batcher.waiting_texts, time.monotonic() + _PATIENCE
        while 0 < waiting <= self.batcher.waiting_texts and time.monotonic() < until:
            await asyncio.sleep(_BETWEEN_LOOKS)
        return await self.batcher.alone(work)

    @asynccontextmanager
    async def _place(self, what: str, at_once: int, advice: str) -> AsyncIterator[None]:
        """For what is made so many at once; refused if too many wait, or if it is not done in time."""
        most, seconds = self.settings.limits.waiting_searches, self.settings.timeout
        if self.waiting[what] >= at_once + most:
            raise too_busy(f"{most:,} {what} wait already")
        self.waiting[what] += 1
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Refusal(504, "timeout", f"no answer within {seconds:g} s; {advice}") from None
        finally:
            self.waiting[what] -= 1

    async def look_up(self, work: Callable[[GivenUp], Result]) -> Result:
        """What labels, their history or examples say: snapshots, read in threads that nothing else waits for."""
        given_up = GivenUp()
        try:
            async with self._place("searches of labels", THREADS, "search for more letters"):
                return await asyncio.get_running_loop().run_in_executor(self._lookups, work, given_up)
        finally:  # even if whoever asked is gone
            given_up.set()

    async def explain(self, work: Callable[[], Result]) -> Result:
        """An explanation, in the inference thread, one at a time: texts that wait go between two."""
        async with self._place("explanations", 1, "give a shorter text"), self._explaining:
            return await self._after_texts(work)

    async def change(self, work: Work[Result]) -> Result:
        """A change of the labels, between two batches; when this returns, the next request finds it."""
        limit, seconds = self.settings.limits.waiting_changes, self.settings.change_timeout
        if self.waiting["changes"] > limit:  # one of them is being made
            raise too_busy(f"{limit:,} label changes wait already")
        self.waiting["changes"] += 1
        making = asyncio.ensure_future(self._make(work))  # which goes on even if whoever asked has given it up
        making.add_done_callback(lambda made: made.cancelled() or made.exception())
        done, _ = await asyncio.wait({making}, timeout=seconds)
        if not done:
            reason = f"the change is not done after {seconds:g} s and may still be made; look at GET /labels/history"
            raise Refusal(504, "timeout", reason)
        return making.result()

    async def _make(self, work: Work[Result]) -> Result:
        """While another process changes the same folder, it waits here, so that no prediction waits with it."""
        make = partial(self._with_what_follows, partial(work, Encoded()))  # tried again, it encodes nothing twice
        seconds, until = self.settings.lock_timeout, time.monotonic() + self.settings.change_timeout
        waited = 0.0  # our own encoding takes nothing of what others may take
        try:
            while True:
                with suppress(Locked):
                    result = await self.batcher.alone(make)
                    self._log_labels("labels")
                    return result
                if waited >= seconds or time.monotonic() > until:
                    locked = f"another process has been changing the labels for {seconds:g} s"
                    advice = "as `umpteen labels compact` may for longer; nothing was changed, try again in a moment"
                    raise Refusal(503, "locked", f"{locked}, {advice}", headers={"Retry-After": "5"})
                await asyncio.sleep(_BETWEEN_TRIES)
                waited += _BETWEEN_TRIES
        finally:
            self.waiting["changes"] -= 1

    async def _refresh(self) -> None:
        """Takes in what other processes did to the folder: other labels, another index, calibration or model."""
        refresh = partial(self._with_what_follows, self.classifier.refresh)
        if self.classifier.path is not None and await self.batcher.alone(refresh):
            self._log_labels("refreshed")

    def _with_what_follows(self, work: Callable[[], Result]) -> Result:
        """Work that may change the classifier, and what the next text, in the event loop, would have to wait for."""
        try:
            return work()
        finally:  # even if it was refused: other processes' changes may have come in meanwhile
            _, corrections = self.classifier.ranker, self.classifier.corrections
            self.batcher.examples = 0 if corrections is None else len(corrections.vectors)

    def _log_labels(self, event: str) -> None:
        served = self.classifier
        self.log.event(event, labels=served.labels.count(), version=served.version, index=served.index.kind)
