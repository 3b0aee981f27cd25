"""Corrections over HTTP: with the token, at once, and undone."""

from pathlib import Path
from typing import Any

import pytest
from service_cases import AUTHORISED, EDITABLE, Running, error_of, in_service

from umpteen.model.classifier import Classifier

TEXT = "fish and law"


def test_a_correction_changes_the_next_answer_and_is_undone(model: Path) -> None:
    async def work(service: Running) -> None:
        async def post(path: str, content: Any = None) -> Any:
            answer = await service.client.post(path, json=content, headers=AUTHORISED)
            assert answer.status_code == 200, answer.text
            return answer.json()

        before = await service.keys(TEXT, k=5)
        given = {"text": TEXT, "labels": before[-1:], "wrong": before[:1]}
        assert await post("/examples", {"examples": [given], "note": "by hand"}) == {"learnt": 1, "count": 1}
        after = await service.keys(TEXT, k=5)
        assert after[0] == before[-1] and after[-1] == before[0]
        other = {"text": "tax", "labels": ["L2"]}
        assert await post("/examples", {"examples": [other, other | {"text": "law"}]}) == {"learnt": 2, "count": 3}
        found = (await service.client.get("/examples?limit=2", headers=AUTHORISED)).json()
        assert found["count"] == 3 and [one["text"] for one in found["examples"]] == ["law", "tax"]
        shown = (await service.client.get("/examples", headers=AUTHORISED)).json()["examples"][-1]
        assert shown.pop("time") and shown == given | {"note": "by hand"}
        assert await post("/examples/undo") == {"undone": 2, "count": 1}
        assert await post("/examples/undo") == {"undone": 1, "count": 0}
        assert await service.keys(TEXT, k=5) == before
        answer = await service.client.post("/examples/undo", headers=AUTHORISED)
        assert error_of(answer) == (409, "nothing_to_undo")

    in_service(model, work, EDITABLE)
    assert Classifier.load(model).examples() == []


@pytest.mark.parametrize(
    ("example", "refusal"),
    [
        ({"text": "a", "labels": ["nobody"]}, (404, "unknown_key")),
        ({"text": "a", "labels": ["L1"], "wrong": ["L1"]}, (409, "contradiction")),
        ({"text": "a"}, (409, "contradiction")),
        ({"text": "a" * 10_001, "labels": ["L1"]}, (422, "bad_input")),
        ({"text": " ", "labels": ["L1"]}, (422, "wrong_message")),
    ],
)
def test_what_cannot_be_learnt_is_refused(model: Path, example: dict[str, Any], refusal: tuple[int, str]) -> None:
    async def work(service: Running) -> None:
        good = {"text": "fish", "labels": ["L1"]}
        for headers, expected in ((AUTHORISED, refusal), ({}, (401, "unauthorized"))):
            content = {"examples": [good, example]}
            assert error_of(await service.client.post("/examples", json=content, headers=headers)) == expected
        assert error_of(await service.client.get("/examples")) == (401, "unauthorized")
        assert service.service.classifier.examples() == []

    in_service(model, work, EDITABLE)
