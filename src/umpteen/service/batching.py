"""Requests that come together are answered by one call of the encoder; label changes take their turn between batches.

Everything here runs in the event loop but the work itself, which the inference thread does. Work that is shorter than
the way to another thread and back is done at once, while that thread is idle: two pieces of work never overlap.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from starlette.types import Receive

from umpteen.classifier import Classifier
from umpteen.service.answers import Found, find
from umpteen.service.inference import InferenceThread
from umpteen.service.metrics import Metrics
from umpteen.service.presence import Presence
from umpteen.service.refusals import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")

SHORT = 0.01  # seconds the event loop may be kept from its sockets
_CHARACTERS_OF_SHORT_WORK = 50_000


class Cost(NamedTuple):
    """Seconds that a batch of n texts takes, as measured: first + (n − 1) · more."""

    first: float
    more: float

    def texts_within(self, seconds: float) -> int:
        """The largest batch that takes no longer."""
        return 0 if self.first > seconds else 1 + int((seconds - self.first) / max(self.more, 1e-6))


class _Asked:
    """A request that waits."""

    __slots__ = ("characters", "future", "k", "queued", "texts")

    def __init__(self, texts: Sequence[str], k: int, future: "asyncio.Future[Found]") -> None:
        self.texts = texts
        self.characters = sum(map(len, texts))
        self.k = k
        self.future = future
        self.queued = True


class Batcher:
    """Who waits, who is being answered, and what comes next."""

    def __init__(
        self, classifier: Classifier, settings: ServiceSettings, metrics: Metrics, thread: InferenceThread
    ) -> None:
        self.short_texts = 0  # the largest batch that is done at once; 0: all go to the thread
        self.waiting_texts = 0
        self.waiting_characters = 0
        self._classifier = classifier
        self._settings = settings
        self._metrics = metrics
        self._thread = thread
        self._asked: deque[_Asked] = deque()
        self._changes: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._busy = False  # the thread has work
        self._next: asyncio.Handle | None = None  # when the next work begins
        self._gathers = False  # it begins later, so that more texts can come
        self._seen_texts = 0  # that waited when it was last looked
        self._last_texts, self._last_seconds, self._last_end = 0, 0.0, 0.0  # of the last batch

    async def predict(self, texts: Sequence[str], k: int, receive: Receive | None = None) -> Found:
        """The k best labels of each text, or fewer where there are fewer; given up if whoever sends goes away."""
        loop = asyncio.get_running_loop()
        asked = _Asked(texts, k, loop.create_future())
        self._check_room(asked)
        self._asked.append(asked)
        self.waiting_texts += len(texts)
        self.waiting_characters += asked.characters
        self._schedule(loop)
        timer = loop.call_later(self._settings.timeout, _expire, asked.future, self._settings.timeout)
        presence = None if receive is None else Presence(asked.future, receive)
        try:
            return await asked.future
        finally:
            timer.cancel()
            if presence is not None:
                presence.forget()
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
            most = f"{limits.waiting_texts:,}"
            raise too_busy(f"{self.waiting_texts:,} texts wait, {most} are the most; ask again in a moment")
        if self.waiting_texts and self.waiting_characters + asked.characters > limits.waiting_characters:
            most = f"{limits.waiting_characters:,} characters"
            raise too_busy(f"the texts that wait and yours have more than {most} together; ask again in a moment")

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Does work on the classifier while no batch runs; it comes before the texts that wait.

        Nobody is refused here: `Changing` limits the changes, and the service's own work is never much.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._changes.append((work, future))
        self._schedule(loop)
        return await future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """The next work begins at the end of this turn of the loop: whatever came with it is in the queue by then."""
        if self._busy or not (self._asked or self._changes):
            return
        if self._next is None:
            self._next = loop.call_soon(self._start, loop)
        elif self._gathers and (self._changes or self.waiting_texts >= self._last_texts):
            self._gathers = False
            self._next.cancel()
            self._next = loop.call_soon(self._start, loop)

    def _start(self, loop: asyncio.AbstractEventLoop, gathered: bool = False) -> None:
        self._next = None
        self._gathers = False
        if self._changes:
            self._start_change(loop)
        elif self._seen_texts < self.waiting_texts < self._settings.batch_texts:
            # This turn of the loop has brought texts, so the next may bring more: it takes microseconds to see.
            self._seen_texts = self.waiting_texts
            self._next = loop.call_soon(self._start, loop, gathered)
        elif not gathered and self._worth_waiting():
            self._gathers = True
            patience = max(self._settings.gather, self._last_seconds / 10)
            self._next = loop.call_later(patience, self._start, loop, True)
        elif batch := self._next_batch():
            began = time.perf_counter()
            if self._is_short(batch):
                self._answered(loop, batch, began, self._search(batch), None)
            else:
                self._busy = True
                self._thread.submit(
                    lambda: self._search(batch),
                    lambda found, error: self._answered(loop, batch, began, found, error),
                    loop,
                )

    def _worth_waiting(self) -> bool:
        """While requests keep coming, a batch smaller than the one before can wait a moment for the others."""
        return (
            self._last_seconds > SHORT
            and self.waiting_texts < min(self._last_texts, self._settings.batch_texts)
            and time.perf_counter() - self._last_end < self._last_seconds
        )

    def _is_short(self, batch: list[_Asked]) -> bool:
        if sum(len(asked.texts) for asked in batch) > self.short_texts:
            return False
        return sum(asked.characters for asked in batch) <= _CHARACTERS_OF_SHORT_WORK

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
        texts = [text for asked in batch for text in asked.texts]
        try:
            found = find(self._classifier, texts, max(asked.k for asked in batch))
        except Exception as problem:
            return [problem] if len(batch) == 1 else [self._search([asked])[0] for asked in batch]
        answers: list[Found | Exception] = []
        start = 0
        for asked in batch:
            answers.append(found.some(start, start + len(asked.texts), asked.k))
            start += len(asked.texts)
        return answers

    def _answered(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_Asked],
        began: float,
        answers: list[Found | Exception] | None,
        error: Exception | None,
    ) -> None:
        self._busy = False
        self._last_end = time.perf_counter()
        self._last_seconds = self._last_end - began
        self._last_texts = sum(len(asked.texts) for asked in batch)
        self._metrics.batch(self._last_texts, self._last_seconds)
        lost = error or RuntimeError("the inference thread gave no answer")
        for asked, answer in zip(batch, answers or [lost] * len(batch), strict=True):
            if asked.future.done():
                continue
            if isinstance(answer, Found):
                asked.future.set_result(answer)
            else:
                asked.future.set_exception(answer)
        self._schedule(loop)

    def _start_change(self, loop: asyncio.AbstractEventLoop) -> None:
        work, future = self._changes.popleft()

        def changed(result: Any, error: Exception | None) -> None:
            self._busy = False
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)
            self._schedule(loop)

        self._busy = True
        self._thread.submit(work, changed, loop)


def _expire(future: "asyncio.Future[Found]", seconds: float) -> None:
    if not future.done():
        future.set_exception(Refusal(504, "timeout", f"no answer within {seconds:g} s; ask for less at once"))
