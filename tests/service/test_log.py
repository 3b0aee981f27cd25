"""The log: JSON lines that say what happened and never what was asked, unless they are told to."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from service_cases import AUTHORISED, TOKEN, Running, error_of, in_service

from umpteen.model.classifier import Classifier
from umpteen.service.metrics import Log
from umpteen.service.settings import ServiceSettings

SECRET = "zebra crossing"


async def asked_everything(service: Running) -> None:
    await service.ask(SECRET)
    await service.ask(SECRET, k=0)
    await service.client.post("/predict", json={"texts": [SECRET, ""]})
    await service.client.get("/labels", params={"search": SECRET})
    added = {"labels": [{"key": SECRET, "text": SECRET}]}
    assert (await service.client.post("/labels", json=added, headers=AUTHORISED)).status_code == 200
    await service.client.post("/labels", json=added, headers=AUTHORISED)
    assert (await service.client.delete(f"/labels/{SECRET}", headers=AUTHORISED)).status_code == 200
    await service.client.get(f"/{SECRET}")


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_requests_are_logged_without_texts_keys_searches_and_tokens(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_service(model, asked_everything, ServiceSettings(token=TOKEN, access_log=True))
    said = capsys.readouterr().out
    assert "zebra" not in said and TOKEN not in said
    lines = lines_of(said)
    assert [line["event"] for line in lines if line["event"] != "request"] == ["ready", "labels", "labels", "stopped"]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) == 8
    first = requests[0]
    assert (first["method"], first["route"], first["status"], first["texts"], first["k"]) == (
        "POST",
        "/predict",
        200,
        1,
        5,
    )
    assert first["ms"] > 0 and first["client"] and first["time"].endswith("Z")
    assert {line["route"] for line in requests} == {"/predict", "/labels", "/labels/{key:path}", "(none)"}


def test_texts_are_logged_when_asked_for(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_service(model, asked_everything, ServiceSettings(token=TOKEN, access_log=True, log_texts=True))
    asked = [line["asked"] for line in lines_of(capsys.readouterr().out) if "asked" in line]
    assert asked == [[SECRET]]


def test_nothing_is_logged_when_it_is_off(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_service(model, asked_everything, ServiceSettings(token=TOKEN))
    assert capsys.readouterr().out == ""


def test_an_error_of_ours_is_500_and_says_where_but_not_what(
    shared_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError(f"cannot rank {SECRET}")

    async def ask(service: Running) -> None:
        monkeypatch.setattr(service.service.classifier, "rank", broken, raising=False)
        assert error_of(await service.ask(SECRET)) == (500, "internal")
        monkeypatch.setattr(Classifier, "history", broken)
        assert error_of(await service.client.get("/labels/history")) == (500, "internal")

    in_service(shared_model, ask)
    said = capsys.readouterr().out
    failures = lines_of(said)
    assert [line["error"] for line in failures] == ["ValueError"] * 2
    assert "zebra" not in said and "broken" in failures[0]["where"][-1]


def test_whoever_reads_the_log_may_go_away() -> None:
    stream = io.BytesIO()
    log = Log(on=True, stream=stream)
    log.event("ready")
    stream.close()
    log.event("stopped")
