"""What all routes of one worker share: the classifier, the batcher, the metrics and the log; its start and its end."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from umpteen.errors import UmpteenError
from umpteen.model.catalogue import Encoded
from umpteen.model.changes import Locked
from umpteen.model.classifier import Classifier
from umpteen.parallel.world import cores
from umpteen.service.batching import SHORT, Batcher
from umpteen.service.metrics import Log, Metrics
from umpteen.service.schemas import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")
Work = Callable[[Encoded], Result]  # makes the change without waiting for others, or raises Locked
_BETWEEN_TRIES = 0.05  # seconds


GivenUp = threading.Event  # set: nobody waits for the result any more
THREADS = 2  # they share the processor with predictions; the second, so that one long search does not hold up the next


class Lookups:
    """Searches of the labels, and looks at their history: in threads of their own, so that nothing else waits for them.

    They read snapshots and need no turn between batches. As many as the limit says may wait; one that takes too long is
    given up, and so is what is left at the end.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(THREADS, "lookup")  # start with the first
        self._taken: dict[Future[Any], GivenUp] = {}

    async def run(self, work: Callable[[GivenUp], Result]) -> Result:
        """What the work gives; refused if too many wait, or if it is not done in time."""
        most, seconds = self._settings.limits.waiting_searches, self._settings.timeout
        if len(self._taken) >= THREADS + most:
            raise too_busy(f"{most:,} searches of labels wait already")
        given_up = GivenUp()
        taken = self._threads.submit(work, given_up)
        self._taken[taken] = given_up
        taken.add_done_callback(lambda done: self._taken.pop(done, None))  # in one step, whichever thread it is
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(taken)
        except TimeoutError:
            raise Refusal(504, "timeout", f"no answer within {seconds:g} s; search for more letters") from None
        finally:  # even if whoever asked is gone
            given_up.set()

    def stop(self) -> None:
        for given_up in list(self._taken.values()):
            given_up.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = ThreadPoolExecutor(THREADS, "lookup")  # an application may be started again


MANY = 16  # texts of the larger of two batches
_TRIES = 10
_CLEARLY_LONG = 3 * SHORT  # of the processor
_TOO_LONG_TO_REPEAT = 10 * SHORT  # of the clock, which other programs make longer, too
_TURNS = 5
_LONGEST = 0.4  # seconds of a search that compares threads, if one text takes no longer
_MOST = 1.0  # seconds after which threads are compared no further
_WORTH_A_THREAD = 0.8  # of the time without it: a machine that has other work makes threads wait for each other


class Seconds(NamedTuple):
    """What a search takes of the processor, and of the clock."""

    processor: float
    passed: float


class Trial:
    """Answers tried before anybody asks: how long they take, and with how many threads.

    Each search is a turn of its own in the inference thread, so that a service goes on answering meanwhile; all of them
    take 3 seconds, or a few texts' time if that is longer.
    """

    def __init__(self, classifier: Classifier, turn: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._classifier = classifier
        self._turn = turn  # has work done in the inference thread
        self._texts = [classifier.labels.texts[row % len(classifier.labels)] for row in range(MANY)]
        self._k = min(5, classifier.labels.count())
        self._one_text = 0.0  # seconds, if known

    async def texts_within(self, seconds: float, threads: int) -> int:
        """The largest batch that takes no longer, on the line through one text and MANY; 0 if one text takes longer.

        Processor time, so that a machine busy with other things changes little, and what one text waits for besides.
        """
        one = await self._shortest(1, threads)
        self._one_text = one.passed
        if max(one) > seconds:
            return 0
        many = await self._shortest(MANY, threads)
        more = max(1e-6, (many.processor - one.processor) / (MANY - 1))
        return 1 + int((seconds - max(one)) / more)

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

        seconds: Seconds = await self._turn(search)
        return seconds

    def _seconds(self, texts: int) -> Seconds:
        began = time.thread_time(), time.perf_counter()
        self._classifier.rank(self._texts[:texts], self._k)
        return Seconds(time.thread_time() - began[0], time.perf_counter() - began[1])


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
        self.lookups = Lookups(settings)
        self.ready = False
        self._changes = 0  # of the labels, that wait for others or for their turn, and the one that is being made
        self._at_work = 0  # 1 while one is being made
        self._watching: list[asyncio.Task[None]] = []
        self.metrics.version.set_function(lambda: classifier.version)
        self.metrics.labels.set_function(lambda: classifier.labels.count())
        self.metrics.waiting.set_function(lambda: batcher.waiting_texts)
        self.metrics.index_away.set_function(lambda: classifier.index.away is not None)

    async def start(self) -> None:
        """Answers some texts before anybody asks."""
        await self.measure()
        looks = (self._refresh, self._keep_measured, self.metrics.tell)  # apart: each may take long while many ask
        self._watching = [asyncio.create_task(self._watch(look)) for look in looks]
        self.ready = True
        self._log_labels("ready")

    async def stop(self) -> None:
        """Finishes what was taken, then closes the index."""
        self.ready = False
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self.lookups.stop()
        self.batcher.end()
        await asyncio.to_thread(self.batcher.stop)
        self.classifier.index.close()
        await self.metrics.tell()
        self.log.event("stopped")

    async def _watch(self, look: Callable[[], Awaitable[None]]) -> None:
        """Looks until it is cancelled. A version that cannot be read is told once; the labels stay as they were."""
        told = ""
        while True:
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

    async def measure(self) -> None:
        """Brings the vectors into memory, and finds out how answers come fastest: short ones from one thread alone."""
        towers, index = self.classifier.towers, self.classifier.index
        self.batcher.measured = None  # until the end: what fails or is refused is tried again
        threads = self.settings.threads or 1
        torch.set_num_threads(threads)  # for this thread, in which short work is done
        trial = Trial(self.classifier, self._after_texts)
        within = await trial.texts_within(SHORT, threads)
        short = 0 if index.kind == "milvus" else within  # over a network, answers may take long at any time
        if short < MANY and self.settings.threads is None and (share := cores() // self.settings.workers) > 1:
            await trial.choose_threads(share)
        self.batcher.measured = towers, index, short if short >= MANY else 0

    async def _keep_measured(self) -> None:
        if not self.batcher.is_measured:
            await self.measure()

    async def _after_texts(self, work: Callable[[], Result]) -> Result:
        """Work that is in no hurry, alone: some of the texts that wait go first."""
        waiting, until = self.batcher.waiting_texts, time.monotonic() + _PATIENCE
        while 0 < waiting <= self.batcher.waiting_texts and time.monotonic() < until:
            await asyncio.sleep(_BETWEEN_LOOKS)
        return await self.batcher.alone(work)

    async def change(self, work: Work[Result]) -> Result:
        """A change of the labels, between two batches; when this returns, the next request finds it.

        Refused if too many wait, if others keep the model locked, or if it takes too long.
        """
        limit, seconds = self.settings.limits.waiting_changes, self.settings.change_timeout
        if self._changes - self._at_work >= limit:
            raise too_busy(f"{limit:,} label changes wait already")
        self._changes += 1
        making = asyncio.ensure_future(self._make(work))  # which goes on even if whoever asked has given it up
        making.add_done_callback(lambda made: made.cancelled() or made.exception())
        done, _ = await asyncio.wait({making}, timeout=seconds)
        if not done:
            reason = f"the change is not done after {seconds:g} s and may still be made; look at GET /labels/history"
            raise Refusal(504, "timeout", reason)
        return making.result()

    async def _make(self, work: Work[Result]) -> Result:
        """While another process changes the same folder, it waits here, so that no prediction waits with it."""
        encoded = Encoded()

        def make() -> Result:
            self._at_work = 1
            try:
                return work(encoded)
            finally:
                self._at_work = 0

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
            self._changes -= 1

    async def _refresh(self) -> None:
        """Takes in what other processes did to the folder: other labels, another index, calibration or model."""
        if self.classifier.path is not None and await self.batcher.alone(self.classifier.refresh):
            self._log_labels("refreshed")

    def _log_labels(self, event: str) -> None:
        served = self.classifier
        self.log.event(event, labels=served.labels.count(), version=served.version, index=served.index.kind)
