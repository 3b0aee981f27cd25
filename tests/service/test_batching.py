"""Requests that come together are encoded together; one that fails, waits too long or is one too many stands alone."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from service_cases import LABELS, PATIENCE, Running, answered, error_of, in_service

from umpteen.errors import BadInput
from umpteen.model.classifier import Classifier
from umpteen.search.ranking import Ranking
from umpteen.service.batching import SHORT
from umpteen.service.settings import Limits, ServiceSettings


class Watched(Classifier):
    """Notes what is ranked together, in which thread, and whether two things ever happen at once."""

    calls: list[tuple[list[str], str]]
    at_work = 0

    def rank(self, texts: Sequence[str], k: int, *args: Any, **kwargs: Any) -> Ranking:
        assert self.at_work == 0, "two searches at once"
        self.at_work += 1
        try:
            if "poison" in texts:
                raise BadInput("poison cannot be ranked")
            self.calls.append((list(texts), threading.current_thread().name))
            return super().rank(texts, k, *args, **kwargs)
        finally:
            self.at_work -= 1


@pytest.fixture
def watched(shared_model: Path) -> Watched:
    classifier = Watched.load(shared_model)
    assert isinstance(classifier, Watched)
    classifier.calls = []
    return classifier


def held(service: Running) -> tuple[threading.Event, "asyncio.Future[bool]"]:
    """The inference thread waits until the event is set, and everybody with it."""
    release = threading.Event()
    return release, asyncio.ensure_future(service.service.batcher.alone(lambda: release.wait(PATIENCE)))


def test_requests_that_wait_are_one_call_of_the_encoder(watched: Watched) -> None:
    async def ask(service: Running) -> list[list[str]]:
        release, holding = held(service)
        asked = [asyncio.ensure_future(service.keys(text, k=1)) for text in LABELS.values()]
        await service.until_waiting(5)
        watched.calls.clear()
        release.set()
        await holding
        return list(await asyncio.gather(*asked))

    assert in_service(watched, ask) == [[key] for key in LABELS]
    assert [texts for texts, _ in watched.calls] == [list(LABELS.values())]


def test_a_request_whose_sender_has_gone_away_is_dropped_from_the_queue(watched: Watched) -> None:
    async def ask(service: Running) -> None:
        release, holding = held(service)
        body = [{"type": "http.request", "body": b'{"text": "fish"}', "more_body": False}]
        left = asyncio.Event()
        sent: list[Any] = []

        async def receive() -> Any:
            if body:
                return body.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [], "query_string": b""}
        gone = asyncio.ensure_future(service.app(scope, receive, send))
        stays = asyncio.ensure_future(service.keys("tax law", k=1))
        await service.until_waiting(2)
        watched.calls.clear()
        left.set()
        await asyncio.wait_for(gone, PATIENCE)  # while the thread is still at work on something else
        release.set()
        await holding
        assert await stays == ["L2"] and sent[0]["status"] == 499

    in_service(watched, ask)
    assert [texts for texts, _ in watched.calls] == [["tax law"]]


def test_a_batch_holds_no_more_texts_than_it_may_and_a_large_request_goes_alone(watched: Watched) -> None:
    async def ask(service: Running) -> None:
        release, holding = held(service)
        asked = [asyncio.ensure_future(service.ask(text)) for text in ("fish", "law", "tax", "dog")]
        await service.until_waiting(4)
        many = {"texts": ["book", "food", "tree", "network"]}
        asked.append(asyncio.ensure_future(service.client.post("/predict", json=many)))
        await service.until_waiting(8)
        watched.calls.clear()
        release.set()
        await holding
        assert all(answer.status_code == 200 for answer in await asyncio.gather(*asked))

    in_service(watched, ask, ServiceSettings(timeout=PATIENCE, batch_texts=3))
    assert [len(texts) for texts, _ in watched.calls] == [3, 1, 4]


def test_short_work_is_done_at_once_and_long_work_in_the_thread(watched: Watched) -> None:
    async def ask(service: Running) -> None:
        for short_texts, thread in ((10, "MainThread"), (0, "inference_0")):
            kept = service.service
            kept.batcher.measured = (kept.batcher._served, short_texts)
            watched.calls.clear()
            assert await service.keys("fish", k=1) == ["L1"]
            assert [name for _, name in watched.calls] == [thread]

    in_service(watched, ask)


def test_a_request_that_fails_does_not_take_the_others_with_it(watched: Watched) -> None:
    async def ask(service: Running) -> list[int]:
        release, holding = held(service)
        asked = [asyncio.ensure_future(service.ask(text)) for text in ("fish", "poison", "law")]
        await service.until_waiting(3)
        release.set()
        await holding
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert in_service(watched, ask) == [200, 422, 200]


def test_one_text_too_many_is_told_to_come_back(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        release, holding = held(service)
        asked = [asyncio.ensure_future(service.ask(text)) for text in ("fish", "law", "tax")]
        await service.until_waiting(3)
        refused = await service.ask("dog")
        assert error_of(refused) == (429, "too_busy") and refused.headers["Retry-After"] == "1"
        assert "3 texts wait, 3 are the most" in refused.json()["error"]["reason"]
        release.set()
        await holding
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 3
        assert (await service.ask("dog")).status_code == 200

    in_service(shared_model, ask, ServiceSettings(timeout=PATIENCE, limits=Limits(waiting_texts=3)))


def test_long_texts_that_wait_are_limited_by_their_length(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        release, holding = held(service)
        waits = asyncio.ensure_future(service.ask("fish " * 10))
        await service.until_waiting(1)
        assert error_of(await service.ask("law " * 10)) == (429, "too_busy")
        release.set()
        await holding
        assert (await waits).status_code == 200 and service.service.batcher.waiting_characters == 0

    in_service(shared_model, ask, ServiceSettings(timeout=PATIENCE, limits=Limits(waiting_characters=60)))


def test_an_empty_queue_takes_a_request_larger_than_itself(shared_model: Path) -> None:
    async def ask(service: Running) -> int:
        return (await service.client.post("/predict", json={"texts": ["fish"] * 5})).status_code

    assert in_service(shared_model, ask, ServiceSettings(limits=Limits(waiting_texts=3))) == 200


def test_a_request_that_waits_too_long_is_told_so_and_never_encoded(watched: Watched) -> None:
    async def ask(service: Running) -> None:
        release, holding = held(service)
        late = await service.ask("fish")
        assert error_of(late) == (504, "timeout")
        watched.calls.clear()
        release.set()
        await holding
        await answered(service, ["law"])
        assert {text for texts, _ in watched.calls for text in texts} == {"law"}
        assert service.service.batcher.waiting_texts == 0

    in_service(watched, ask, ServiceSettings(timeout=0.1))


@pytest.mark.parametrize("limits", [Limits(waiting_texts=3), Limits(waiting_characters=12)])
def test_requests_that_were_given_up_leave_their_places_to_others(watched: Watched, limits: Limits) -> None:
    async def ask(service: Running) -> None:
        batcher = service.service.batcher
        release, holding = held(service)
        late = await asyncio.gather(*(service.ask("fish") for _ in range(3)))
        assert [error_of(answer) for answer in late] == [(504, "timeout")] * 3
        assert batcher.waiting_texts == batcher.waiting_characters == len(batcher._asked) == 0
        watched.calls.clear()
        others = await service.client.post("/predict", json={"texts": ["dog", "law", "tax"]})
        assert error_of(others) == (504, "timeout")  # they had the places
        release.set()
        await holding
        await answered(service, ["dog", "law", "tax"])
        assert {tuple(texts) for texts, _ in watched.calls} == {("dog", "law", "tax")}
        assert batcher.waiting_texts == batcher.waiting_characters == 0

    in_service(watched, ask, ServiceSettings(timeout=0.2, limits=limits, refresh=60))


def test_texts_that_keep_coming_are_waited_for_and_a_lonely_one_is_not(watched: Watched) -> None:
    async def ask(service: Running) -> None:
        batcher = service.service.batcher
        batcher.measured = None
        # As after a batch of three texts that took a while and has just ended.
        batcher._last_texts, batcher._last_seconds, batcher._last_end = 3, PATIENCE, time.perf_counter()
        watched.calls.clear()
        first = asyncio.ensure_future(batcher.predict(["fish"], 1))
        await asyncio.sleep(0.02)
        assert watched.calls == []
        others = [asyncio.ensure_future(batcher.predict([text], 1)) for text in ("law", "tax")]
        await asyncio.gather(first, *others)
        assert [texts for texts, _ in watched.calls] == [["fish", "law", "tax"]]  # long before the wait is over
        batcher._last_texts, batcher._last_seconds, batcher._last_end = 3, SHORT / 2, time.perf_counter()
        await batcher.predict(["fish"], 1)  # if it were waited for, its time would be over before

    in_service(watched, ask, ServiceSettings(gather=2 * PATIENCE, timeout=PATIENCE))


def test_nothing_is_started_before_the_service_is(shared_model: Path) -> None:
    from umpteen.service.app import create_app

    before = set(threading.enumerate())
    create_app(Classifier.load(shared_model))
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("texts", [1, 200])
def test_a_search_that_dies_leaves_the_next_one_its_turn(
    shared_model: Path, monkeypatch: pytest.MonkeyPatch, texts: int
) -> None:
    class Panic(BaseException):
        """As libraries in other languages end with."""

    dying: list[bool] = []
    rank = Classifier.rank

    def dies(self: Classifier, *asked: Any, **named: Any) -> Any:
        if dying:
            raise Panic
        return rank(self, *asked, **named)

    async def ask(service: Running) -> None:
        monkeypatch.setattr(Classifier, "rank", dies)
        dying.append(True)
        lost = await service.client.post("/predict", json={"texts": ["fish"] * texts})
        assert error_of(lost)[0] == 500
        dying.clear()
        assert (await service.ask("law")).status_code == 200

    in_service(shared_model, ask, ServiceSettings(timeout=PATIENCE, limits=Limits(texts=200)))


def test_what_waits_when_the_service_ends_is_never_begun(shared_model: Path) -> None:
    begun: list[str] = []

    async def ask(service: Running) -> None:
        release, busy = threading.Event(), threading.Event()
        alone = service.service.batcher.alone
        holding = asyncio.ensure_future(alone(lambda: busy.set() or release.wait(PATIENCE)))
        await asyncio.to_thread(busy.wait, PATIENCE)
        waiting = asyncio.ensure_future(alone(lambda: begun.append("late")))
        await asyncio.sleep(0)
        service.service.batcher.end()
        release.set()
        await holding
        with pytest.raises(asyncio.CancelledError):
            await waiting

    in_service(shared_model, ask)
    assert begun == []
