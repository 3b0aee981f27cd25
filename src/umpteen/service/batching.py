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

from starlette.types import Receive

from umpteen.encoders.towers import Towers
from umpteen.model.classifier import Classifier
from umpteen.model.labels import LiveLabels
from umpteen.search.engine import LabelIndex
from umpteen.service.metrics import Metrics
from umpteen.service.schemas import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")

SHORT = 0.01  # seconds the event loop may be kept from its sockets
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
    queued: bool = True
    look: "asyncio.Task[None] | None" = None  # whether whoever asked is still there

    def expire(self, seconds: float) -> None:
        _settle(self.future, Refusal(504, "timeout", f"no answer within {seconds:g} s; ask for less at once"))

    def look_for_sender(self, receive: Receive) -> None:
        async def look() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            _settle(self.future, Refusal(499, "gone", "whoever asked has gone away"))

        self.look = asyncio.get_running_loop().create_task(look())


def _settle(future: "asyncio.Future[Any]", answer: Any) -> None:
    """Gives the answer, or raises it there, unless the future has one by now."""
    if not future.done():
        future.set_exception(answer) if isinstance(answer, BaseException) else future.set_result(answer)


class Batcher:
    """Who waits, who is being answered, and what comes next."""

    def __init__(self, classifier: Classifier, settings: ServiceSettings, metrics: Metrics) -> None:
        self.measured: tuple[Towers, LabelIndex, int] | None = None  # and how many texts of theirs are short work
        self.waiting_texts = 0
        self.waiting_characters = 0
        self._classifier = classifier
        self._settings = settings
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "inference")  # starts with its first work
        self._asked: deque[_Asked] = deque()
        self._changes: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._ended = False
        self._busy = False  # the thread has work
        self._next: asyncio.Handle | None = None  # begins the next work; a timer: later, so that more texts can come
        self._seen_texts = 0  # that waited when it was last looked
        self._last_texts, self._last_seconds, self._last_end = 0, 0.0, 0.0  # of the last batch

    @property
    def is_measured(self) -> bool:
        """False once another model or index has taken the place of the one that was measured."""
        towers, index, _ = self.measured or (None, None, 0)
        return towers is self._classifier.towers and index is self._classifier.index

    @property
    def short_texts(self) -> int:
        """The largest batch that is done at once; 0: all go to the thread, as with a model that may take long."""
        return self.measured[2] if self.measured is not None and self.is_measured else 0

    async def predict(self, texts: Sequence[str], k: int, receive: Receive | None = None) -> Found:
        """The k best labels of each text, or fewer where there are fewer; given up if whoever sends goes away."""
        loop = asyncio.get_running_loop()
        asked = _Asked(texts, k, sum(map(len, texts)), loop.create_future())
        self._check_room(asked)
        self._asked.append(asked)
        self.waiting_texts += len(texts)
        self.waiting_characters += asked.characters
        self._schedule()
        timers = [loop.call_later(self._settings.timeout, asked.expire, self._settings.timeout)]
        if receive is not None:
            timers.append(loop.call_later(_BEFORE_A_LOOK, asked.look_for_sender, receive))
        try:
            return await asked.future
        finally:
            for timer in timers:
                timer.cancel()
            if asked.look is not None:
                asked.look.cancel()
            if asked.queued:  # given up: its place, and the memory of its texts, are for others
                self._asked.remove(asked)
                self._leaves_queue(asked)

    def _leaves_queue(self, asked: _Asked) -> None:
        asked.queued = False
        self.waiting_texts -= len(asked.texts)
        self.waiting_characters -= asked.characters

    def _check_room(self, asked: _Asked) -> None:
        """An empty queue takes any request."""
        limits = self._settings.limits
        if self.waiting_texts and self.waiting_texts + len(asked.texts) > limits.waiting_texts:
            raise too_busy(f"{self.waiting_texts:,} texts wait, {limits.waiting_texts:,} are the most")
        if self.waiting_texts and self.waiting_characters + asked.characters > limits.waiting_characters:
            most = f"{limits.waiting_characters:,} characters"
            raise too_busy(f"the texts that wait and yours have more than {most} together")

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Does work on the classifier while no batch runs; it comes before the texts that wait.

        Nobody is refused here: `Changing` limits the changes, and the service's own work is never much.
        """
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
        self._thread = ThreadPoolExecutor(1, "inference")  # starts with its first work
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
        if self._changes:
            self._busy = True
            work, future = self._changes.popleft()
            loop.run_in_executor(self._thread, work).add_done_callback(partial(self._changed, future))
        elif self._seen_texts < self.waiting_texts < self._settings.batch_texts:
            # This turn of the loop has brought texts, so the next may bring more: it takes microseconds to see.
            self._seen_texts = self.waiting_texts
            self._next = loop.call_soon(self._start, gathered)
        elif not gathered and self._worth_waiting():
            patience = max(self._settings.gather, self._last_seconds / 10)
            self._next = loop.call_later(patience, self._start, True)
        elif batch := self._next_batch():
            began = time.perf_counter()
            if self._is_short(batch):
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

    def _is_short(self, batch: list[_Asked]) -> bool:
        texts, characters = sum(len(one.texts) for one in batch), sum(one.characters for one in batch)
        return texts <= self.short_texts and characters <= _CHARACTERS_OF_SHORT_WORK

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
            found = self._find([text for asked in batch for text in asked.texts], max(asked.k for asked in batch))
            each = iter(found.texts)
            return [Found(found.labels, [one[: asked.k] for one in islice(each, len(asked.texts))]) for asked in batch]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # even a library's panic belongs to whoever asked
            if len(batch) > 1:
                return [self._search([asked])[0] for asked in batch]
            return [problem if isinstance(problem, Exception) else RuntimeError(f"the search ended with {problem!r}")]

    def _find(self, texts: list[str], k: int) -> Found:
        """The k best labels of each text, or all if there are fewer."""
        labels, calibration = self._classifier.labels, self._classifier.calibration
        ranking = self._classifier.rank(texts, min(k, labels.count()))
        given = calibration.probabilities(ranking.scores).tolist() if calibration is not None else repeat(repeat(None))
        columns = zip(ranking.rows.tolist(), ranking.scores.tolist(), given, strict=False)
        return Found(labels, [list(zip(*text, strict=False)) for text in columns])

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
