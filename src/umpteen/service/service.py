"""What all routes of one worker share: the classifier, the batcher, the metrics and the log; its start and its end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

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


class Service:
    """One worker's model, and whether it is ready to be asked."""

    def __init__(self, classifier: Classifier, settings: ServiceSettings) -> None:
        self.classifier = classifier
        self.settings = settings
        self.metrics = Metrics()
        self.log = Log(on=settings.access_log, texts=settings.log_texts)
        self.thread = InferenceThread()
        self.batcher = Batcher(classifier, settings, self.metrics, self.thread)
        self.lookups = Lookups(settings)
        self.ready = False
        self._changing = Changing(classifier.path, settings, self.batcher)
        self._measured: tuple[Towers, LabelIndex] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answers some texts before anybody asks."""
        await self.measure()
        self.show_labels()
        self._watching = asyncio.create_task(watch(self._refresh, self.settings.refresh, self.log))
        self.ready = True
        self.log.event("ready", labels=self.classifier.labels.count(), version=self.classifier.version)

    async def measure(self) -> None:
        """Brings the vectors into memory, and finds out how answers come fastest: short ones from one thread alone."""
        self._measured = self.classifier.towers, self.classifier.index
        self.batcher.short_texts = 0
        threads = self.settings.threads or 1
        torch.set_num_threads(threads)  # for this thread, in which short work is done
        trial = Trial(self.classifier)
        cost = await self.batcher.alone(lambda: trial.cost(threads))
        over_a_network = self.classifier.index.kind == "milvus"  # its answers may take long at any time
        short = 0 if cost is None or over_a_network else cost.texts_within(SHORT)
        if short >= MANY:
            self.batcher.short_texts = short
        elif self.settings.threads is None and (share := cores() // self.settings.workers) > 1:
            await self.batcher.alone(lambda: trial.choose_threads(share))

    @property
    def is_measured(self) -> bool:
        """False once another model or index has taken the place of the one that was measured."""
        towers, index = self._measured or (None, None)
        return towers is self.classifier.towers and index is self.classifier.index

    async def stop(self) -> None:
        """Finishes what was taken, then closes the index."""
        self.ready = False
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        self.lookups.stop()
        await asyncio.to_thread(self.thread.stop)
        self.classifier.index.close()
        self.log.event("stopped")

    async def change(self, work: Callable[[], Result]) -> Result:
        """A change of the labels, between two batches; when this returns, the next request finds it."""
        result = await self._changing.make(work)
        self.show_labels()
        self.log.event("labels", version=self.classifier.version, labels=self.classifier.labels.count())
        return result

    async def _refresh(self) -> None:
        """Takes in what other processes did to the folder: other labels, another index, calibration or model."""
        try:
            changed = self.classifier.path is not None and await self.batcher.alone(self.classifier.refresh)
        finally:  # a new model may be here, even if its index cannot be used
            if not self.is_measured:
                await self.measure()
        self.show_labels()
        if changed:
            self.log.event("labels", version=self.classifier.version, labels=self.classifier.labels.count())

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
