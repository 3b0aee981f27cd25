"""Requests that come together are answered by one call of the encoder; label changes take their turn between batches.

Everything here runs in the event loop but the work itself, which the inference thread does. Work that is shorter than
the way to another thread and back is done at once, while that thread is idle: two pieces of work never overlap.
"""

import asyncio
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence, Set
from json.encoder import encode_basestring_ascii as quoted
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from starlette.types import Receive

from umpteen.model.classifier import Classifier
from umpteen.model.labels import FirstLabels, LiveLabels
from umpteen.search.ranking import NO_LABEL
from umpteen.service.metrics import Metrics
from umpteen.service.refusals import Refusal, too_busy
from umpteen.service.settings import ServiceSettings

Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]


# One thread that does one piece of work after another, so that searches and label changes never meet.
#
# The event loop stays free meanwhile, and hears of each result in its own thread.
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


AFTER = 0.05  # seconds; most answers are there by then, and a look would cost more than it saves


class Presence:
    """Looks after a while whether the sender is still there, until `forget`."""

    __slots__ = ("_answer", "_look", "_receive", "_timer")

    def __init__(self, answer: "asyncio.Future[Any]", receive: Receive) -> None:
        self._answer = answer
        self._receive = receive
        self._look: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(AFTER, self._begin)

    def forget(self) -> None:
        """The request is answered."""
        self._timer.cancel()
        if self._look is not None:
            self._look.cancel()

    def _begin(self) -> None:
        self._look = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answer.done():
            self._answer.set_exception(Refusal(499, "gone", "whoever asked has gone away"))


MOST_KEPT = 50_000  # labels, some 10 MB


class Found(NamedTuple):
    """Rows, scores and probabilities of some texts' labels, best first, and the labels whose rows they are."""

    labels: LiveLabels
    rows: list[list[int]]
    scores: list[list[float]]
    probabilities: list[list[float]] | None

    def some(self, start: int, stop: int, k: int) -> "Found":
        """Of these texts, the best k."""
        rows = [one[:k] for one in self.rows[start:stop]]
        scores = [one[:k] for one in self.scores[start:stop]]
        probable = None if self.probabilities is None else [one[:k] for one in self.probabilities[start:stop]]
        return Found(self.labels, rows, scores, probable)


def find(classifier: Classifier, texts: list[str], k: int) -> Found:
    """The k best labels of each text, or all if there are fewer."""
    labels = classifier.labels
    ranking = classifier.rank(texts, min(k, labels.count()))
    probable = None if classifier.calibration is None else classifier.calibration.probabilities(ranking.scores).tolist()
    return Found(labels, ranking.rows.tolist(), ranking.scores.tolist(), probable)


class AnswerWriter:
    """Writes answers of one classifier's labels, whatever version they are of."""

    def __init__(self) -> None:
        self._kept: dict[int, str] = {}  # of rows that are as the model was written
        self._first: FirstLabels | None = None
        self._labels: LiveLabels | None = None
        self._changed: Set[int] = frozenset()

    def write(self, found: Found, least: float) -> bytes:
        """The body of an answer, without labels that are less probable than this."""
        self._turn_to(found.labels)
        results = []
        for place, (rows, scores) in enumerate(zip(found.rows, found.scores, strict=True)):
            if found.probabilities is None:
                shown = [
                    f'{self._label(row)}{score},"probability":null}}'
                    for row, score in zip(rows, scores, strict=True)
                    if row != NO_LABEL
                ]
            else:
                shown = [
                    f'{self._label(row)}{score},"probability":{probability}}}'
                    for row, score, probability in zip(rows, scores, found.probabilities[place], strict=True)
                    if row != NO_LABEL and probability >= least
                ]
            results.append(f'{{"labels":[{",".join(shown)}]}}')
        return f'{{"version":{found.labels.version},"results":[{",".join(results)}]}}'.encode()

    def _turn_to(self, labels: LiveLabels) -> None:
        if labels is self._labels:
            return
        if labels.first is not self._first:  # another model
            self._kept.clear()
            self._first = labels.first
        self._labels = labels
        self._changed = frozenset(labels.changed().tolist())

    def _label(self, row: int) -> str:
        """What comes before a label's score."""
        stored = row not in self._changed
        if stored and (kept := self._kept.get(row)) is not None:
            return kept
        assert self._labels is not None and self._first is not None
        made = f'{{"key":{quoted(self._labels.keys[row])},"text":{quoted(self._labels.texts[row])},"score":'
        if stored and row < len(self._first):
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[row] = made
        return made


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
