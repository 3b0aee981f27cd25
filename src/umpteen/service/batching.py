"""Requests that come together are answered by one call of the encoder; label changes take their turn between batches.

Everything here runs in the event loop but the work itself, which one inference thread does. Work that is shorter than
the way to another thread and back is done at once, while that thread is idle: two pieces of work never overlap.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeVar

import torch
from starlette.types import Receive

from umpteen.encoders.encoder import Encoder
from umpteen.model.classifier import Classifier
from umpteen.model.labels import LiveLabels
from umpteen.parallel.world import cores
from umpteen.search.index import LabelIndex
from umpteen.service.metrics import Metrics
from umpteen.service.schemas import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")

SHORT = 0.01  # seconds the event loop may be kept from its sockets
FEW_EXAMPLES = 500  # take no time
MANY = 16  # texts; work is short if as many are
_TRIES = 3  # the first may have to read vectors from the disk
_CHARACTERS_OF_SHORT_WORK = 50_000
_BEFORE_A_LOOK = 0.05  # seconds; most answers are there by then, and a look for the sender costs more than it saves


class Found(NamedTuple):
    """Row, score and probability of each text's labels, best first, and the labels whose rows they are."""

    labels: LiveLabels
    texts: list[list[tuple[int, float, float | None]]]  # None: the model is not calibrated


@dataclass(slots=True, eq=False)
class _Asked:
    """A request that waits."""

    texts: Sequence[str]
    k: int
    characters: int
    future: "asyncio.Future[Found]"
    receive: Receive | None
    since: float
    queued: bool = True
    look: "asyncio.Task[None] | None" = None  # whether whoever asked is still there


def _settle(future: "asyncio.Future[Any]", answer: Any) -> None:
    """Gives the answer, or raises it there, unless the future has one by now."""
    if not future.done():
        future.set_exception(answer) if isinstance(answer, BaseException) else future.set_result(answer)


async def _until_gone(receive: Receive, future: "asyncio.Future[Any]") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _settle(future, Refusal(499, "gone", "whoever asked has gone away"))


class Batcher:
    """Who waits, who is being answered, and what comes next."""

    def __init__(self, classifier: Classifier, settings: ServiceSettings, metrics: Metrics) -> None:
        self.measured: tuple[tuple[Encoder, LabelIndex, int], int] | None = None  # how many texts of what was served
        self.examples = 0  # that every text is compared with
        self.waiting_texts = 0
        self.waiting_characters = 0
        self._classifier = classifier
        self._settings = settings
        self._metrics = metrics
        self._threads = settings.threads or max(1, cores() // settings.workers)  # of work that is not short
        self._thread = self._new_thread()
        self._asked: deque[_Asked] = deque()
        self._open: dict[_Asked, None] = {}  # whoever has no answer yet, oldest first
        self._changes: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._watching: asyncio.Task[None] | None = None
        self._ended = False
        self._busy = False  # the thread has work
        self._next: asyncio.Handle | None = None  # begins the next work; a timer: later, so that more texts can come
        self._seen_texts = 0  # that waited when it was last looked
        self._last_texts, self._last_seconds, self._last_end = 0, 0.0, 0.0  # of the last batch

    def _new_thread(self) -> ThreadPoolExecutor:
        """Starts with its first work. How many threads torch divides work among holds for the thread that says so."""
        return ThreadPoolExecutor(1, "inference", torch.set_num_threads, (self._threads,))

    @property
    def _served(self) -> tuple[Encoder, LabelIndex, int]:
        """What answers, and how many examples, to a power of 2: with others, texts may take another time."""
        return self._classifier.query_tower, self._classifier.index, max(self.examples, FEW_EXAMPLES).bit_length()

    @property
    def is_measured(self) -> bool:
        return self.measured is not None and self.measured[0] == self._served

    @property
    def short_texts(self) -> int:
        """The largest batch that is done at once; 0: all go to the thread, as with a model that may take long."""
        return self.measured[1] if self.measured is not None and self.is_measured else 0

    def measure(self) -> None:
        """Brings the vectors into memory, and finds out, in the inference thread, how many texts are short work."""
        served, labels = self._served, self._classifier.labels
        texts = [labels.texts[row % len(labels)] for row in range(MANY)]

        def seconds(count: int) -> float:
            began = time.thread_time()  # of the processor, which other programs change little
            self._classifier.rank(texts[:count], min(5, labels.count()))
            return time.thread_time() - began

        torch.set_num_threads(self._settings.threads or 1)  # as the event loop, which would do it
        try:
            short = 0
            # Over a network, answers may take long at any time.
            if any(seconds(1) <= SHORT for _ in range(_TRIES)) and not self._classifier.index.has_address:
                short = int(MANY * SHORT / max(1e-6, min(seconds(MANY) for _ in range(_TRIES))))
        finally:
            torch.set_num_threads(self._threads)
        self.measured = served, short if short >= MANY else 0

    async def predict(self, texts: Sequence[str], k: int, receive: Receive | None = None) -> Found:
        """The k best labels of each text, or fewer where there are fewer; given up if whoever sends goes away."""
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        asked = _Asked(texts, k, sum(map(len, texts)), future, receive, time.monotonic())
        limits = self._settings.limits  # an empty queue takes any request
        if self.waiting_texts and self.waiting_texts + len(texts) > limits.waiting_texts:
            raise too_busy(f"{self.waiting_texts:,} texts wait, {limits.waiting_texts:,} are the most")
        if self.waiting_texts and self.waiting_characters + asked.characters > limits.waiting_characters:
            most = f"{limits.waiting_characters:,} characters"
            raise too_busy(f"the texts that wait and yours have more than {most} together")
        self._asked.append(asked)
        self._open[asked] = None
        self.waiting_texts += len(texts)
        self.waiting_characters += asked.characters
        self._schedule()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        try:
            return await future
        finally:
            del self._open[asked]
            if asked.look is not None:
                asked.look.cancel()
            if asked.queued:  # given up: its place, and the memory of its texts, are for others
                self._asked.remove(asked)
                self._leaves_queue(asked)

    async def _watch(self) -> None:
        """Gives up requests that wait too long or that nobody waits for; a timer for each would cost more than this."""
        while self._open:
            await asyncio.sleep(_BEFORE_A_LOOK)
            now = time.monotonic()
            for asked in self._open:
                if now - asked.since >= self._settings.timeout:
                    reason = f"no answer within {self._settings.timeout:g} s; ask for less at once"
                    _settle(asked.future, Refusal(504, "timeout", reason))
                elif asked.receive is not None and asked.look is None and now - asked.since >= _BEFORE_A_LOOK:
                    asked.look = asyncio.ensure_future(_until_gone(asked.receive, asked.future))

    def _leaves_queue(self, asked: _Asked) -> None:
        asked.queued = False
        self.waiting_texts -= len(asked.texts)
        self.waiting_characters -= asked.characters

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Does work on the classifier while no batch runs, before the texts that wait; `Service` limits how much."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._changes.append((work, future))
        self._schedule()
        return await future

    def end(self) -> None:
        """Nothing new begins from now on; what waits for its turn is given up."""
        self._ended = True
        for _, future in self._changes:
            future.cancel()
        self._changes.clear()

    def stop(self) -> None:
        """Waits for what the thread was given; an application may be started again."""
        self._thread.shutdown()
        self._thread = self._new_thread()
        self._ended = False

    def _schedule(self) -> None:
        """The next work begins at the end of this turn of the loop: whatever came with it is in the queue by then."""
        if self._ended or self._busy or not (self._asked or self._changes):
            return
        due = self._changes or self.waiting_texts >= self._last_texts
        if due and isinstance(self._next, asyncio.TimerHandle):
            self._next.cancel()
            self._next = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._start)

    def _start(self, gathered: bool = False) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        while self._changes and self._changes[0][1].done():  # nobody waits for it any more
            self._changes.popleft()
        if not (self._asked or self._changes):
            return
        if self._changes:
            self._busy = True
            work, future = self._changes.popleft()
            loop.run_in_executor(self._thread, work).add_done_callback(partial(self._changed, future))
        elif self._seen_texts < self.waiting_texts < self._settings.batch_texts:
            # This turn of the loop has brought texts, so the next may bring more: it takes microseconds to see.
            self._seen_texts = self.waiting_texts
            self._next = loop.call_soon(self._start, gathered)
        elif not gathered and self._worth_waiting():
            self._next = loop.call_later(max(self._settings.gather, self._last_seconds / 10), self._start, True)
        elif batch := self._next_batch():
            began = time.perf_counter()
            texts, characters = sum(len(one.texts) for one in batch), sum(one.characters for one in batch)
            if texts <= self.short_texts and characters <= _CHARACTERS_OF_SHORT_WORK:
                self._answered(batch, began, self._search(batch))
            else:
                self._busy = True
                searching = loop.run_in_executor(self._thread, self._search, batch)
                searching.add_done_callback(lambda done: self._answered(batch, began, done.result()))

    def _worth_waiting(self) -> bool:
        """While requests keep coming, a batch smaller than the one before can wait a moment for the others."""
        return (
            self._last_seconds > SHORT
            and self.waiting_texts < min(self._last_texts, self._settings.batch_texts)
            and time.perf_counter() - self._last_end < self._last_seconds
        )

    def _next_batch(self) -> list[_Asked]:
        """As many waiting requests as fit, at least one; those whose time is over are dropped."""
        batch: list[_Asked] = []
        texts = self._seen_texts = 0
        most = min(self._settings.batch_texts, self.short_texts or self._settings.batch_texts)
        while self._asked and (not batch or texts + len(self._asked[0].texts) <= most):
            asked = self._asked.popleft()
            self._leaves_queue(asked)
            if not asked.future.done():
                texts += len(asked.texts)
                batch.append(asked)
        return batch

    def _search(self, batch: list[_Asked]) -> list[Found | Exception]:
        """What each request is answered; one that fails does not take the others with it."""
        try:
            labels, calibration = self._classifier.labels, self._classifier.calibration
            texts, k = [text for asked in batch for text in asked.texts], max(asked.k for asked in batch)
            ranking = self._classifier.rank(texts, min(k, labels.count()))
            rows, scores = ranking.rows, ranking.scores
            given = calibration.probabilities(scores).tolist() if calibration is not None else repeat(repeat(None))
            columns = zip(rows.tolist(), scores.tolist(), given, strict=False)
            found = Found(labels, [list(zip(*text, strict=False)) for text in columns])
            each = iter(found.texts)
            return [Found(labels, [one[: asked.k] for one in islice(each, len(asked.texts))]) for asked in batch]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # even a library's panic belongs to whoever asked
            if len(batch) > 1:
                return [self._search([asked])[0] for asked in batch]
            return [problem if isinstance(problem, Exception) else RuntimeError(f"the search ended with {problem!r}")]

    def _answered(self, batch: list[_Asked], began: float, answers: list[Found | Exception]) -> None:
        self._busy = False
        self._last_end = time.perf_counter()
        self._last_seconds = self._last_end - began
        self._last_texts = sum(len(asked.texts) for asked in batch)
        self._metrics.batch(self._last_texts, self._last_seconds)
        for asked, answer in zip(batch, answers, strict=True):
            _settle(asked.future, answer)
        self._schedule()

    def _changed(self, future: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
        self._busy = False
        _settle(future, done.exception() or done.result())
        self._schedule()
