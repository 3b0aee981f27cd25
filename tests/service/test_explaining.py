"""POST /explain: the explanation that Python gives, within the service's limits."""

import asyncio
import threading
from pathlib import Path
from unittest import mock

import pytest
from service_cases import LABELS, PATIENCE, Running, answered, error_of, in_service, until
from starlette.testclient import TestClient

from umpteen.model.classifier import Classifier
from umpteen.service.settings import Limits, ServiceSettings


def test_an_explanation_is_the_one_that_python_gives(client: TestClient, shared_model: Path) -> None:
    asked = {"text": "library of fish", "key": "L1"}
    expected = Classifier.load(shared_model).explain(**asked).to_dict()
    answer = client.post("/explain", json=asked)
    assert answer.status_code == 200 and answer.json() == {**expected, "probability": None}
    predicted = client.post("/predict", json={"text": asked["text"]}).json()["results"][0]["labels"]
    assert answer.json()["score"] == pytest.approx({one["key"]: one["score"] for one in predicted}["L1"], abs=1e-6)
    assert answer.json()["method"] == "exact" and answer.json()["label"] == LABELS["L1"]
    fish = answer.json()["words"][-1]
    assert (fish["text"], fish["start"], fish["end"]) == ("fish", 11, 15)


def test_what_cannot_be_explained_is_refused_by_name(client: TestClient) -> None:
    answer = client.post("/explain", json={"text": "a fish", "key": "L"})
    assert error_of(answer) == (404, "unknown_key") and "did you mean 'L" in answer.json()["error"]["reason"]
    assert error_of(client.post("/explain", json={"text": " ", "key": "L1"})) == (422, "empty_text")
    assert error_of(client.post("/explain", json={"text": "x" * 100_001, "key": "L1"})) == (422, "over_limit")
    assert error_of(client.post("/explain", json={"text": "a fish"})) == (422, "wrong_message")


def test_few_explanations_wait_and_texts_are_answered_between_two(shared_model: Path) -> None:
    classifier, go_on, explained = Classifier.load(shared_model), threading.Event(), []
    real = classifier.explain

    def slow(text: str, key: str) -> object:
        explained.append(text)
        assert go_on.wait(60)
        return real(text, key)

    async def ask(service: Running) -> None:
        def explain(text: str) -> "asyncio.Task[object]":
            return asyncio.ensure_future(service.client.post("/explain", json={"text": text, "key": "L1"}))  # type: ignore[arg-type]

        first = explain("one")
        await until(lambda: explained == ["one"])
        second = explain("two")
        await until(lambda: service.service.waiting["explanations"] == 2)
        assert error_of(await explain("three")) == (429, "too_busy")
        predicted = asyncio.ensure_future(service.ask("a fish"))
        await service.until_waiting(1)
        go_on.set()
        assert (await predicted).status_code == 200
        for answer in (await first, await second):
            assert answer.status_code == 200  # type: ignore[attr-defined]

    with mock.patch.object(classifier, "explain", slow):
        in_service(classifier, ask, ServiceSettings(limits=Limits(waiting_searches=1), timeout=60))
    assert explained == ["one", "two"]


def test_an_explanation_that_nobody_waits_for_any_more_is_not_made(shared_model: Path) -> None:
    classifier, began, go_on = Classifier.load(shared_model), threading.Event(), threading.Event()

    async def ask(service: Running) -> None:
        held = asyncio.ensure_future(service.service.batcher.alone(lambda: (began.set(), go_on.wait(PATIENCE))))
        await until(began.is_set)
        answer = await service.client.post("/explain", json={"text": "a fish", "key": "L1"})
        assert error_of(answer) == (504, "timeout")
        go_on.set()
        assert await held
        assert await service.service.batcher.alone(lambda: True)  # its turn would have come by now
        await answered(service, ["fish"])

    with mock.patch.object(classifier, "explain") as explain:
        in_service(classifier, ask, ServiceSettings(timeout=0.2))
    explain.assert_not_called()
