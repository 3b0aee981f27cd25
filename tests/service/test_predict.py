"""POST /predict: answers as the classifier gives them, limits and bad input answered by name."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_cases import LABELS, HalfCertain, Running, error_of, in_service
from starlette.testclient import TestClient

from umpteen.model.classifier import Classifier
from umpteen.service.app import create_app
from umpteen.service.settings import Limits, ServiceSettings

ClientOf = Callable[[ServiceSettings], TestClient]
TEXTS = ["the fish trade", "a tax in law", "library network"]


def test_an_answer_is_what_the_classifier_predicts(client: TestClient, shared_model: Path) -> None:
    answer = client.post("/predict", json={"texts": TEXTS, "k": 3})
    predicted = Classifier.load(shared_model).predict(TEXTS, 3)
    assert answer.status_code == 200 and answer.json()["version"] == 0
    shown = [[(one["key"], one["text"]) for one in result["labels"]] for result in answer.json()["results"]]
    assert shown == [[(one.key, one.text) for one in labels] for labels in predicted]
    for result, labels in zip(answer.json()["results"], predicted, strict=True):
        assert [one["score"] for one in result["labels"]] == pytest.approx([one.score for one in labels])
        assert all(one["probability"] is None for one in result["labels"])


def test_one_text_is_answered_as_a_list_of_one_and_five_labels_unless_asked_otherwise(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        assert await service.keys("fish") == (await service.keys("fish", k=5))
        assert (await service.keys("tax law", k=1)) == (await service.keys("tax law", k=1.0)) == ["L2"]
        assert len((await service.ask("fish")).json()["results"]) == 1

    in_service(shared_model, ask)


def test_more_labels_than_there_are_gives_all_of_them(client: TestClient) -> None:
    answer = client.post("/predict", json={"text": "fish", "k": 100})
    assert sorted(label["key"] for label in answer.json()["results"][0]["labels"]) == sorted(LABELS)


def test_concurrent_requests_with_different_k_get_what_each_asked(shared_model: Path) -> None:
    async def ask(service: Running) -> list[list[str]]:
        return await asyncio.gather(*(service.keys(text, k=k) for k, text in enumerate(LABELS.values(), 1)))

    answers = in_service(shared_model, ask)
    assert [len(keys) for keys in answers] == [1, 2, 3, 4, 5]
    assert [keys[0] for keys in answers] == list(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "a\x00b",
        "\x00",
        "\x1b[31mred\x07",
        "图書館",
        "e\u0301" * 50,
        "👩‍👩‍👧",
        "\u202eright to left",
        "a" * 5000,
        "\ufffe",
    ],
    ids=ascii,
)
def test_odd_texts_are_answered(client: TestClient, text: str) -> None:
    answer = client.post("/predict", json={"text": text})
    assert answer.status_code == 200 and len(answer.json()["results"][0]["labels"]) == 5


@pytest.mark.parametrize(
    "body", [b'{"text": "\\ud800"}', b'{"text": "\\udfff and more"}', b'{"texts": ["a", "\\ud83d"]}']
)
def test_half_a_surrogate_pair_is_malformed(client: TestClient, body: bytes) -> None:
    assert error_of(client.post("/predict", content=body)) == (400, "malformed_json")


@pytest.mark.parametrize("body", [b"", b"{", b"[1", b"\xff\xfe", b'{"text": "a"} b', b"[" * 100_000])
def test_what_is_not_json_is_malformed(client: TestClient, body: bytes) -> None:
    assert error_of(client.post("/predict", content=body)) == (400, "malformed_json")


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, None),
        ([], None),
        ("fish", None),
        ({"text": 5}, "text"),
        ({"text": None}, "text"),
        ({"texts": "fish"}, "texts"),
        ({"texts": ["fish", 5]}, "texts[1]"),
        ({"text": "fish", "texts": ["fish"]}, None),
        ({"text": "fish", "k": "5"}, "k"),
        ({"text": "fish", "k": True}, "k"),
        ({"text": "fish", "k": 0}, "k"),
        ({"text": "fish", "k": 2.5}, "k"),
        ({"text": "fish", "min_probability": 1.5}, "min_probability"),
        ({"text": "fish", "rule": "best"}, "rule"),
        ({"text": "fish", "kk": 5}, "kk"),
    ],
)
def test_messages_of_the_wrong_form_are_refused_by_field(client: TestClient, sent: Any, field: str | None) -> None:
    answer = client.post("/predict", json=sent)
    assert error_of(answer) == (422, "wrong_message")
    assert answer.json()["error"].get("field") == field


@pytest.mark.parametrize(
    ("sent", "code", "field"),
    [
        ({"text": ""}, "empty_text", "text"),
        ({"text": " \n\t"}, "empty_text", "text"),
        ({"texts": ["fish", "\u3000"]}, "empty_text", "texts[1]"),
        ({"texts": []}, "no_texts", "texts"),
        ({"texts": ["fish"] * 5}, "over_limit", "texts"),
        ({"texts": ["fish", "a" * 101]}, "over_limit", "texts[1]"),
        ({"texts": ["a" * 60] * 4}, "over_limit", "texts"),
        ({"text": "fish", "k": 11}, "over_limit", "k"),
        ({"text": "fish", "k": 10**30}, "over_limit", "k"),
        ({"texts": ["fish"] * 4, "k": 8}, "over_limit", "texts"),
    ],
)
def test_empty_texts_and_everything_over_a_limit_are_refused_with_the_field(
    client_of: ClientOf, sent: dict[str, Any], code: str, field: str
) -> None:
    limits = Limits(texts=4, text_characters=100, characters=200, k=10, answers=30)
    answer = client_of(ServiceSettings(limits=limits)).post("/predict", json=sent)
    assert error_of(answer) == (422, code) and answer.json()["error"]["field"] == field


def test_a_text_of_a_megabyte_is_refused_by_the_limit_or_answered(client_of: ClientOf) -> None:
    long = {"text": "fish and trade " * 70_000}
    assert error_of(client_of(ServiceSettings()).post("/predict", json=long)) == (422, "over_limit")
    larger = ServiceSettings(limits=Limits(text_characters=2_000_000))
    assert client_of(larger).post("/predict", json=long).status_code == 200


def test_probabilities_come_with_calibration_and_cut_answers_short(shared_model: Path) -> None:
    loaded = Classifier.load(shared_model)
    classifier = Classifier(loaded.towers, loaded.labels.catalogue(), loaded.vectors, calibration=HalfCertain())

    async def ask(service: Running) -> None:
        labels = (await service.ask("fish")).json()["results"][0]["labels"]
        assert [one["probability"] for one in labels] == pytest.approx([(one["score"] + 1) / 2 for one in labels])
        assert await service.keys("fish", min_probability=0.99) == ["L1"]
        assert await service.keys("fish", min_probability=0) == [one["key"] for one in labels]
        assert await service.keys("fish", precision=0.9) == ["L1"]
        assert await service.keys("fish", precision=0.9, min_probability=0.1) == ["L1"]
        assert await service.keys("fish", rule="f1") == [one["key"] for one in labels][:2]
        assert await service.keys("fish", rule="f1", k=1) == ["L1"]
        unreachable = await service.ask("fish", precision=0.99)
        assert error_of(unreachable) == (409, "unreachable") and "0.95 is the best" in unreachable.text

    in_service(classifier, ask)


@pytest.mark.parametrize("asked", [{"min_probability": 0.5}, {"precision": 0.9}, {"rule": "f1"}])
def test_probabilities_of_a_model_that_has_none_are_refused(client: TestClient, asked: dict[str, Any]) -> None:
    answer = client.post("/predict", json={"text": "fish", **asked})
    assert error_of(answer) == (409, "not_calibrated") and answer.json()["error"]["field"] in asked


def test_the_same_answer_with_and_without_other_origins(client: TestClient, client_of: ClientOf) -> None:
    other = client_of(ServiceSettings(cors=("https://page.example",)))
    asked = {"text": "fish"}
    assert client.post("/predict", json=asked).json() == other.post("/predict", json=asked).json()
    assert error_of(other.post("/predict", json={"text": ""})) == (422, "empty_text")


def test_curl_s_own_content_type_is_good_enough(client: TestClient) -> None:
    content = json.dumps({"text": "fish"}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/predict", content=content, headers=headers).status_code == 200


def test_an_application_can_be_started_again(shared_model: Path) -> None:
    app = create_app(Classifier.load(shared_model))
    for _ in range(2):
        with TestClient(app) as again:
            assert again.post("/predict", json={"text": "fish"}).status_code == 200
            assert again.get("/labels/history").status_code == 200
