"""Before anybody asks, the service finds out whether answers are short, and whether threads help."""

import asyncio
from pathlib import Path

import pytest
import torch
from service_cases import Running, in_service

from umpteen.classifier import Classifier
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings
from umpteen.service.trial import MANY, Trial


class Timed(Trial):
    """A trial on a machine whose seconds follow from texts and threads."""

    def __init__(self, classifier: Classifier, first: float, more: float, speed_up: float = 1.0) -> None:
        super().__init__(classifier)
        self._first, self._more, self._speed_up = first, more, speed_up

    def _seconds(self, count: int) -> tuple[float, float]:
        seconds = (self._first + (count - 1) * self._more) / (self._speed_up if torch.get_num_threads() > 1 else 1)
        return seconds, 1.1 * seconds


def test_costs_are_what_a_small_and_a_larger_batch_take(shared_model: Path) -> None:
    cost = Timed(Classifier.load(shared_model), 0.002, 0.001).cost(1)
    assert cost is not None
    assert cost.first == pytest.approx(0.0022) and cost.more == pytest.approx(0.001)
    assert Timed(Classifier.load(shared_model), 0.5, 0.1).cost(1) is None


@pytest.mark.parametrize(("speed_up", "threads"), [(1.9, 2), (1.0, 1), (0.3, 1)])
def test_threads_are_used_where_they_help(shared_model: Path, speed_up: float, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        assert Timed(Classifier.load(shared_model), 0.02, 0.01, speed_up).choose_threads(2) == threads
    finally:
        torch.set_num_threads(before)


def test_a_tiny_model_is_answered_at_once_and_one_behind_a_network_never(shared_model: Path) -> None:
    async def texts_at_once(service: Running) -> int:
        return service.service.batcher.short_texts

    assert in_service(shared_model, texts_at_once) >= MANY
    remote = Classifier.load(shared_model)
    remote.index.kind = "milvus"  # type: ignore[misc]
    assert in_service(remote, texts_at_once) == 0


def test_another_model_in_the_folder_is_served_and_measured_again(model: Path, tmp_path: Path) -> None:
    from umpteen.data.labels import LabelCatalogue

    async def ask(service: Running) -> None:
        kept: Service = service.service
        assert kept.is_measured and await service.keys("fish", k=1) == ["L1"]
        towers = Classifier.load(model).towers
        Classifier.build(towers, LabelCatalogue(["other"], ["fish"])).save(model)
        for _ in range(200):
            if await service.keys("fish", k=1) == ["other"] and kept.is_measured:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the new model is not served, or not measured")

    in_service(model, ask, ServiceSettings(refresh=0.02))


def test_an_index_that_is_built_meanwhile_is_searched_and_measured(model: Path) -> None:
    from umpteen.index_building import build_index

    async def ask(service: Running) -> None:
        kept: Service = service.service
        assert kept.classifier.index.kind == "exact"
        await asyncio.to_thread(build_index, model, "faiss-flat", recall=1, k=1)
        for _ in range(200):
            if kept.classifier.index.kind == "faiss-flat" and kept.is_measured:
                assert await service.keys("fish", k=1) == ["L1"]
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the new index is not searched, or not measured")

    in_service(model, ask, ServiceSettings(refresh=0.02))
