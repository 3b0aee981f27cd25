"""Searches of the labels are limited in number and time, and nothing else waits for them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx import Response
from service_cases import PATIENCE, Running, error_of, in_service, until

from umpteen.model import labels as stored
from umpteen.model.classifier import Classifier
from umpteen.model.labels import LiveLabels
from umpteen.service.service import THREADS
from umpteen.service.settings import Limits, ServiceSettings


class Slow:
    """Searches and looks at the history last until they are released; matches come as long as somebody wants them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.began = self.ended = 0
        monkeypatch.setattr(LiveLabels, "find_rows", self.find_rows)
        monkeypatch.setattr(Classifier, "history", self.history)

    def history(self, *_: object) -> list[object]:
        self.began += 1
        self.release.wait(PATIENCE)
        self.ended += 1
        return []

    def find_rows(self, *_: object, **__: object) -> Iterator[int]:
        self.began += 1
        try:
            while not self.release.wait(0.01):
                yield 0
        finally:
            self.ended += 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow(monkeypatch)
    yield slow
    slow.release.set()


def asking(service: Running, path: str) -> "asyncio.Task[Response]":
    return asyncio.create_task(service.client.get(path))


@pytest.mark.parametrize("path", ["/labels?search=fish", "/labels/history"])
def test_a_search_too_many_is_told_to_come_back(shared_model: Path, slow: Slow, path: str) -> None:
    async def ask(service: Running) -> None:
        waiting = [asking(service, path) for _ in range(THREADS + 3)]
        await until(lambda: service.service.waiting["searches of labels"] == THREADS + 3)
        refused = await service.client.get(path)
        assert error_of(refused) == (429, "too_busy") and refused.headers["Retry-After"] == "1"
        assert "3 searches" in refused.json()["error"]["reason"]
        for sort in ("newest", "rare"):
            assert error_of(await service.client.get("/labels", params={"sort": sort})) == (429, "too_busy")
        assert (await service.client.get("/labels")).status_code == 200  # browsing is no search
        slow.release.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * (THREADS + 3)
        assert (await service.client.get(path)).status_code == 200

    in_service(shared_model, ask, ServiceSettings(timeout=PATIENCE, limits=Limits(waiting_searches=3)))


def test_a_search_that_takes_too_long_is_told_so_and_given_up(shared_model: Path, slow: Slow) -> None:
    async def ask(service: Running) -> None:
        late = await asyncio.gather(*(asking(service, "/labels?search=fish") for _ in range(THREADS + 1)))
        assert [error_of(answer) for answer in late] == [(504, "timeout")] * (THREADS + 1)
        await until(lambda: slow.ended == slow.began >= THREADS)  # nobody waits for them, so they do not go on
        assert error_of(await service.client.get("/labels/history")) == (504, "timeout")

    in_service(shared_model, ask, ServiceSettings(timeout=0.2))


@pytest.mark.parametrize("search", ["zz", "nowhere"])
def test_a_search_that_finds_nothing_is_given_up_too(
    shared_model: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    """Whether all labels have to be read for it, or an index."""
    monkeypatch.setattr(stored, "STEPS_BETWEEN_LOOKS", 1)
    labels = Classifier.load(shared_model).labels

    def looks(most: float) -> int:
        count = 0

        def stop() -> bool:
            nonlocal count
            count += 1
            return count > most

        assert list(labels.find_rows(search, stop=stop)) == []
        return count

    assert looks(2) < looks(float("inf"))


def test_the_end_of_a_service_waits_for_no_search(shared_model: Path, slow: Slow) -> None:
    async def ask(service: Running) -> None:
        for _ in range(40):  # more than asyncio's own threads, which the end needs
            asking(service, "/labels/history")
        await until(lambda: slow.began == THREADS and service.service.waiting["searches of labels"] == 40)
        assert (await service.ask("fish")).status_code == 200

    in_service(shared_model, ask, ServiceSettings(timeout=PATIENCE, limits=Limits(waiting_searches=100)))
    assert slow.ended == 0  # they are still at it


def test_a_service_ends_however_often_it_looks_for_changes(shared_model: Path) -> None:
    classifier = Classifier.load(shared_model)

    async def wait(service: Running) -> None:
        await asyncio.sleep(0.02)

    for _ in range(8):  # one of the first few never ended when a look could miss its cancellation
        in_service(classifier, wait, ServiceSettings(refresh=0.0005))
