"""Before anybody asks, the service finds out whether answers are short, and whether threads help."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from service_cases import PATIENCE, Running, in_service, until

from umpteen.data.labels import LabelCatalogue
from umpteen.model.classifier import Classifier
from umpteen.search.engine import ExactIndex
from umpteen.search.index import LiveVectors
from umpteen.search.ranking import Ranking
from umpteen.service.batching import SHORT
from umpteen.service.schemas import Refusal, too_busy
from umpteen.service.service import MANY, Seconds, Service, Trial
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")


async def at_once(work: Callable[[], Result]) -> Result:
    return work()


class Timed(Trial):
    """A trial on a machine whose seconds follow from texts and threads."""

    def __init__(self, classifier: Classifier, first: float, more: float, speed_up: float = 1.0) -> None:
        super().__init__(classifier, at_once)
        self._first, self._more, self._speed_up = first, more, speed_up
        self.spent = 0.0

    def _seconds(self, texts: int) -> Seconds:
        seconds = (self._first + (texts - 1) * self._more) / (self._speed_up if torch.get_num_threads() > 1 else 1)
        self.spent += 1.1 * seconds
        return Seconds(seconds, 1.1 * seconds)


@pytest.fixture
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("same_threads")
def test_short_work_is_as_many_texts_as_a_small_and_a_larger_batch_say(shared_model: Path) -> None:
    classifier = Classifier.load(shared_model)
    assert asyncio.run(Timed(classifier, 0.002, 0.001).texts_within(0.0199, 1)) == 1 + 17  # the first takes 2.2 ms
    assert asyncio.run(Timed(classifier, 0.5, 0.1).texts_within(0.01, 1)) == 0
    assert asyncio.run(Timed(classifier, 0.001, 0.0).texts_within(0.01, 1)) > 100


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize(("speed_up", "threads"), [(1.9, 2), (1.0, 1), (0.3, 1)])
def test_threads_are_used_where_they_help(shared_model: Path, speed_up: float, threads: int) -> None:
    trial = Timed(Classifier.load(shared_model), 0.02, 0.01, speed_up)
    assert asyncio.run(trial.choose_threads(2)) == threads


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("a_text", [0.0001, 0.0005, 0.002, 0.008, 0.02, 0.05, 0.09, 0.2, 0.4])
def test_a_trial_is_over_in_three_seconds_however_slow_a_text_is(shared_model: Path, a_text: float) -> None:
    trial = Timed(Classifier.load(shared_model), a_text, a_text)

    async def whole() -> int:
        await trial.texts_within(SHORT, 1)
        return await trial.choose_threads(2)

    assert asyncio.run(whole()) == 1 and trial.spent <= 3


def test_texts_are_answered_while_another_index_is_measured(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        kept: Service = service.service
        slow(kept.classifier, 0.02)
        measuring = asyncio.create_task(kept.measure())
        answered = 0
        while not measuring.done():
            assert await service.keys("fish", k=1) == ["L1"]
            answered += 1
        await measuring
        assert answered > 1 and kept.batcher.short_texts == 0

    in_service(shared_model, ask, ServiceSettings(timeout=PATIENCE))


def slow(classifier: Classifier, a_text: float) -> None:
    """Each text takes so many seconds from now on."""
    rank = classifier.rank

    def slowly(texts: Sequence[str], k: int) -> Ranking:
        time.sleep(a_text * len(texts))
        return rank(texts, k)

    classifier.rank = slowly  # type: ignore[method-assign,assignment]


@pytest.fixture
def all_work_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr("umpteen.service.service.SHORT", PATIENCE)


@pytest.mark.usefixtures("all_work_is_short")
def test_a_trial_that_fails_is_made_again(shared_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = 0

    def fail(*_: object) -> Ranking:
        nonlocal failed
        failed += 1
        raise OSError("the disk is away")

    async def ask(service: Running) -> None:
        kept: Service = service.service
        with monkeypatch.context() as patch:
            patch.setattr(kept.classifier, "rank", fail)
            monkeypatch.setattr(Classifier, "index", ExactIndex(LiveVectors(kept.classifier.vectors)))  # another index
            await until(lambda: failed > 1)
        assert kept.batcher.short_texts == 0
        await until(lambda: kept.batcher.is_measured and kept.batcher.short_texts >= MANY)

    in_service(shared_model, ask, ServiceSettings(refresh=0.02))


@pytest.mark.usefixtures("all_work_is_short")
def test_a_trial_that_is_refused_is_made_again(shared_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(service: Running) -> None:
        kept: Service = service.service
        with monkeypatch.context() as patch:
            patch.setattr(kept.batcher, "alone", refuse)
            monkeypatch.setattr(Classifier, "index", ExactIndex(LiveVectors(kept.classifier.vectors)))
            with pytest.raises(Refusal):
                await kept.measure()
        await until(lambda: kept.batcher.is_measured and kept.batcher.short_texts >= MANY)

    async def refuse(work: Callable[[], object]) -> None:
        raise too_busy("16 label changes wait already")

    in_service(shared_model, ask, ServiceSettings(refresh=0.02))


@pytest.mark.usefixtures("all_work_is_short")
def test_short_work_is_answered_at_once_and_one_behind_a_network_never(shared_model: Path) -> None:
    async def texts_at_once(service: Running) -> int:
        return service.service.batcher.short_texts

    assert in_service(shared_model, texts_at_once) >= MANY
    remote = Classifier.load(shared_model)
    remote.index.kind = "milvus"  # type: ignore[misc]
    assert in_service(remote, texts_at_once) == 0


def test_another_model_in_the_folder_is_served_and_measured_again(model: Path, tmp_path: Path) -> None:
    async def ask(service: Running) -> None:
        kept: Service = service.service
        assert kept.batcher.is_measured and await service.keys("fish", k=1) == ["L1"]
        towers = Classifier.load(model).towers
        Classifier.build(towers, LabelCatalogue(["other"], ["fish"])).save(model)
        await until(lambda: kept.classifier.labels.count() == 1 and kept.batcher.is_measured)
        assert await service.keys("fish", k=1) == ["other"]

    in_service(model, ask, ServiceSettings(refresh=0.02))


def test_a_model_that_is_moved_into_the_place_of_the_served_one_is_served(model: Path, tmp_path: Path) -> None:
    async def ask(service: Running) -> None:
        assert await service.keys("fish", k=1) == ["L1"]
        towers = Classifier.load(model).towers
        Classifier.build(towers, LabelCatalogue(["other"], ["fish"])).save(tmp_path / "new")
        model.rename(tmp_path / "old")
        assert await service.keys("fish", k=1) == ["L1"]
        (tmp_path / "new").rename(model)
        await until(lambda: service.service.classifier.labels.count() == 1)
        assert await service.keys("fish", k=1) == ["other"]

    in_service(model, ask, ServiceSettings(refresh=0.02))


def test_an_index_that_is_built_meanwhile_is_searched_and_measured(model: Path) -> None:
    from umpteen.model.index import build_index

    async def ask(service: Running) -> None:
        kept: Service = service.service
        assert kept.classifier.index.kind == "exact"
        await asyncio.to_thread(build_index, model, "faiss-flat", recall=1, k=1)
        await until(lambda: kept.classifier.index.kind == "faiss-flat" and kept.batcher.is_measured)
        assert await service.keys("fish", k=1) == ["L1"]

    in_service(model, ask, ServiceSettings(refresh=0.02))
