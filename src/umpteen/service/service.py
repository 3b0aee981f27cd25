"""What all routes of one worker share: the classifier, the batcher, the metrics and the log; its start and its end."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from umpteen.catalogue.live_catalogue import Encoded
from umpteen.classifier import Classifier
from umpteen.encoders.towers import Towers
from umpteen.parallel.world import cores
from umpteen.retrieval.index import LabelIndex
from umpteen.service.batching import SHORT, Batcher
from umpteen.service.changing import Changing
from umpteen.service.inference import InferenceThread
from umpteen.service.log import Log
from umpteen.service.lookups import Lookups
from umpteen.service.metrics import Metrics
from umpteen.service.settings import ServiceSettings
from umpteen.service.trial import MANY, Trial
from umpteen.service.watching import watch

Result = TypeVar("Result")

_BETWEEN_LOOKS = 0.002  # seconds
_PATIENCE = 1.0  # seconds; where texts come faster than they are answered, fewer never wait


class Service:
    """One worker's model, and whether it is ready to be asked."""

    def __init__(self, classifier: Classifier, settings: ServiceSettings, metrics: Metrics | None = None) -> None:
        self.classifier = classifier
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.log = Log(on=settings.access_log, texts=settings.log_texts)
        self.thread = InferenceThread()
        self.batcher = Batcher(classifier, settings, self.metrics, self.thread)
        self.lookups = Lookups(settings)
        self.ready = False
        self._changing = Changing(settings, self.batcher)
        self._measured: tuple[Towers, LabelIndex] | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Answers some texts before anybody asks."""
        await self.measure()
        self.show_labels()
        looks = (self._refresh, self._measure_again, self.metrics.tell)  # apart: each may take long while many ask
        self._watching = [asyncio.create_task(watch(look, self.settings.refresh, self.log)) for look in looks]
        self.ready = True
        self._log_labels("ready")

    async def measure(self) -> None:
        """Brings the vectors into memory, and finds out how answers come fastest: short ones from one thread alone."""
        measured = self.classifier.towers, self.classifier.index
        self.batcher.short_texts = 0
        threads = self.settings.threads or 1
        torch.set_num_threads(threads)  # for this thread, in which short work is done
        trial = Trial(self.classifier, self._after_texts)
        cost = await trial.cost(threads)
        over_a_network = measured[1].kind == "milvus"  # its answers may take long at any time
        short = 0 if cost is None or over_a_network else cost.texts_within(SHORT)
        if short < MANY and self.settings.threads is None and (share := cores() // self.settings.workers) > 1:
            await trial.choose_threads(share)
        self._measured = measured  # not before: what fails or is refused is tried again
        if short >= MANY and self.is_measured:
            self.batcher.short_texts = short

    async def _measure_again(self) -> None:
        if not self.is_measured:
            await self.measure()

    async def _after_texts(self, work: Callable[[], Result]) -> Result:
        """Work that is in no hurry, alone: some of the texts that wait go first."""
        waiting, until = self.batcher.waiting_texts, time.monotonic() + _PATIENCE
        while 0 < waiting <= self.batcher.waiting_texts and time.monotonic() < until:
            await asyncio.sleep(_BETWEEN_LOOKS)
        return await self.batcher.alone(work)

    @property
    def is_measured(self) -> bool:
        """False once another model or index has taken the place of the one that was measured."""
        towers, index = self._measured or (None, None)
        return towers is self.classifier.towers and index is self.classifier.index

    async def stop(self) -> None:
        """Finishes what was taken, then closes the index."""
        self.ready = False
        for watching in self._watching:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self._watching = []
        self.lookups.stop()
        await asyncio.to_thread(self.thread.stop)
        self.classifier.index.close()
        await self.metrics.tell()
        self.log.event("stopped")

    async def change(self, work: Callable[[Encoded], Result]) -> Result:
        """A change of the labels, between two batches; when this returns, the next request finds it."""
        try:
            result = await self._changing.make(work)
        finally:
            self._distrust()
        self.show_labels()
        self._log_labels("labels")
        return result

    async def _refresh(self) -> None:
        """Takes in what other processes did to the folder: other labels, another index, calibration or model."""
        try:
            changed = self.classifier.path is not None and await self.batcher.alone(self.classifier.refresh)
        finally:  # a new model may be here, even if its index cannot be used
            self._distrust()
        self.show_labels()
        if changed:
            self._log_labels("refreshed")

    def _distrust(self) -> None:
        """Nothing is done at once with a model or an index that may take long; it is measured soon."""
        if not self.is_measured:
            self.batcher.short_texts = 0

    def _log_labels(self, event: str) -> None:
        about = self.classifier
        self.log.event(event, labels=about.labels.count(), version=about.version, index=about.index.kind)

    def index_away(self) -> str | None:
        """Why exact search stands in for the index, if it cannot be reached."""
        absence = getattr(self.classifier.index, "absence", None)
        return None if absence is None else str(absence.reason)

    def show_labels(self) -> None:
        """Brings the gauges up to date."""
        self.metrics.version.set(self.classifier.version)
        self.metrics.labels.set(self.classifier.labels.count())
        self.metrics.waiting.set(self.batcher.waiting_texts)
        self.metrics.index_away.set(self.index_away() is not None)
