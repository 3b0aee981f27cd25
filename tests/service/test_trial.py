"""Before anybody asks, the service finds out whether answers are short."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from service_cases import AUTHORISED, PATIENCE, TOKEN, Running, in_service, until

from umpteen.data.labels import LabelCatalogue
from umpteen.model.classifier import Classifier
from umpteen.rerank.memory import Corrections
from umpteen.search.index import ExactIndex, LiveVectors
from umpteen.search.ranking import Ranking
from umpteen.service.batching import MANY
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings


class Timed(Classifier):
    """A classifier on a machine whose processor's seconds follow from the texts; notes torch's threads."""

    first, more = 0.0, 0.0
    spent = 0.0
    threads: set[int]

    def rank(self, texts: Sequence[str], k: int, *args: Any, **named: Any) -> Ranking:
        self.spent += self.first + (len(texts) - 1) * self.more
        self.threads.add(torch.get_num_threads())
        return super().rank(texts, k, *args, **named)


@pytest.fixture
def timed(shared_model: Path, monkeypatch: pytest.MonkeyPatch) -> Timed:
    classifier = Timed.load(shared_model)
    assert isinstance(classifier, Timed)
    classifier.threads = set()
    monkeypatch.setattr("umpteen.service.batching.time.thread_time", lambda: classifier.spent)
    return classifier


@pytest.mark.parametrize(
    ("first", "more", "texts"), [(0.002, 0.0002, 32), (0.002, 0.001, 0), (0.5, 0.1, 0), (0.001, 0.0, 160)]
)
def test_short_work_is_as_many_texts_as_a_batch_says(timed: Timed, first: float, more: float, texts: int) -> None:
    async def ask(service: Running) -> None:
        assert service.service.batcher.short_texts == texts
        timed.threads.clear()
        await service.service.batcher.alone(lambda: timed.rank(["fish"], 1))

    timed.first, timed.more = first, more
    in_service(timed, ask, ServiceSettings(threads=2))
    assert timed.spent <= 4 * first + 3 * (first + MANY * more) and timed.threads == {2}


def test_only_work_in_the_inference_thread_is_divided_among_threads(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(service: Running) -> None:
        assert timed.threads == {1} and torch.get_num_threads() == 1
        assert await service.service.batcher.alone(torch.get_num_threads) == 3
        monkeypatch.setattr(service.service.batcher, "measured", None)
        timed.threads.clear()
        await service.keys("fish")
        assert timed.threads == {3}

    monkeypatch.setattr("umpteen.service.batching.cores", lambda: 7)
    in_service(timed, ask, ServiceSettings(workers=2, refresh=60))


@pytest.fixture
def all_work_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr("umpteen.service.batching.SHORT", PATIENCE)


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
def test_short_work_is_answered_at_once_and_one_behind_a_network_never(shared_model: Path) -> None:
    async def texts_at_once(service: Running) -> int:
        return service.service.batcher.short_texts

    assert in_service(shared_model, texts_at_once) >= MANY
    remote = Classifier.load(shared_model)
    remote.index.has_address = True  # type: ignore[misc]
    assert in_service(remote, texts_at_once) == 0


@pytest.mark.usefixtures("all_work_is_short")
def test_many_examples_are_made_ready_in_the_inference_thread_and_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    make = Corrections.of

    def noted(*given: Any) -> Corrections:
        threads.add(threading.current_thread().name)
        return make(*given)

    async def ask(service: Running) -> None:
        kept, content = service.service, {"examples": [{"text": text, "labels": ["L2"]} for text in ("cod", "trout")]}
        before = kept.batcher.measured
        assert (await service.client.post("/examples", json=content, headers=AUTHORISED)).status_code == 200
        assert (await service.keys("trout"))[0] == "L2"
        await until(lambda: kept.batcher.is_measured and kept.batcher.measured is not before)
        other = Classifier.load(model)
        other.learn(["tax"], ["L1"])
        await until(lambda: kept.batcher.examples == 3)
        assert (await service.keys("tax"))[0] == "L1"

    monkeypatch.setattr(Corrections, "of", noted)
    monkeypatch.setattr("umpteen.service.batching.FEW_EXAMPLES", 1)
    in_service(model, ask, ServiceSettings(refresh=0.02, token=TOKEN))
    assert {name.partition("_")[0] for name in threads} == {"inference"}


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
