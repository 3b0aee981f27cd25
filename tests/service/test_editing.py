"""Labels are changed over HTTP: by whoever has the token, at once, for good, and without dropping a request."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from service_cases import AUTHORISED, EDITABLE, LABELS, PATIENCE, TOKEN, Running, error_of, in_service
from starlette.testclient import TestClient

from umpteen.model.changes import History
from umpteen.model.classifier import Classifier
from umpteen.service.settings import Limits, ServiceSettings

ClientOf = Callable[[ServiceSettings], TestClient]
ADD = {"labels": [{"key": "new", "text": "food network"}]}
CHANGES = [
    ("POST", "/labels", ADD),
    ("POST", "/labels/undo", {}),
    ("PATCH", "/labels/L1", {"text": "food"}),
    ("DELETE", "/labels/L1", None),
]


async def change(service: Running, method: str, path: str, content: Any = None, **more: Any) -> Response:
    headers = {**AUTHORISED, **more.pop("headers", {})}
    return await service.client.request(method, path, json=content, headers=headers, **more)


@pytest.mark.parametrize(("method", "path", "content"), CHANGES)
def test_without_a_token_there_are_no_routes_that_change_labels(
    client: TestClient, method: str, path: str, content: Any
) -> None:
    assert error_of(client.request(method, path, json=content, headers=AUTHORISED))[0] == 404
    document = client.get("/openapi.json").json()
    assert method.lower() not in document["paths"].get(path.replace("L1", "{key}"), {})
    about = client.get("/model").json()
    assert about["editable"] is False and about["version"] == 0


@pytest.mark.parametrize(("method", "path", "content"), CHANGES)
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN}x", "Bearer schlüssel"]
)
def test_a_wrong_token_changes_nothing(
    client_of: ClientOf, method: str, path: str, content: Any, given: str | None
) -> None:
    client = client_of(EDITABLE)
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    answer = client.request(method, path, json=content, headers=headers)
    assert error_of(answer) == (401, "unauthorized") and answer.headers["WWW-Authenticate"] == "Bearer"
    assert client.get("/model").json()["version"] == 0


def test_a_token_is_compared_in_constant_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared = []
    whole = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or whole(a, b))
    answer = in_service(model, lambda service: change(service, "POST", "/labels", ADD), EDITABLE)
    assert answer.status_code == 200 and compared == [(TOKEN.encode(), TOKEN.encode())]


def test_a_label_is_added_found_renamed_retired_and_brought_back(model: Path) -> None:
    async def ask(service: Running) -> None:
        assert (await change(service, "POST", "/labels", ADD)).json() == {"version": 1}
        assert (await service.keys("food network"))[0] == "new"
        assert (await change(service, "PATCH", "/labels/new", {"text": "trade"})).json() == {"version": 2}
        assert (await service.ask("trade")).json()["results"][0]["labels"][0]["text"] == "trade"
        assert (await change(service, "DELETE", "/labels/new")).json() == {"version": 3}
        assert "new" not in await service.keys("trade", k=100)
        assert (await change(service, "POST", "/labels/undo")).json() == {"version": 4}
        assert (await service.keys("trade"))[0] == "new"
        assert (await change(service, "POST", "/labels/undo", {"to_version": 0})).json() == {"version": 5}
        assert sorted(await service.keys("trade", k=100)) == sorted(LABELS)
        history = (await service.client.get("/labels/history", params={"count": 2})).json()
        assert history["version"] == 5 and [line["version"] for line in history["versions"]] == [5, 4]

    in_service(model, ask, EDITABLE)
    assert Classifier.load(model).version == 5  # on the disk, too


@pytest.mark.parametrize(
    ("method", "path", "content", "expected", "field"),
    [
        ("POST", "/labels", {"labels": [{"key": "L1", "text": "x"}]}, (409, "duplicate_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [*ADD["labels"] * 2]}, (409, "duplicate_key"), "labels[1].key"),
        ("POST", "/labels", {"labels": [{"key": "a/b", "text": "x"}]}, (422, "bad_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": "a\nb", "text": "x"}]}, (422, "bad_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": "a" * 600, "text": "x"}]}, (422, "bad_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": " ", "text": "x"}]}, (422, "bad_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": "a\u202eb", "text": "x"}]}, (422, "bad_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": "e\u0301", "text": "x"}]}, (422, "bad_key"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": "a", "text": "x" * 10_001}]}, (422, "bad_text"), "labels[0].text"),
        ("POST", "/labels", {"labels": [{"key": "a", "text": "x\u001b"}]}, (422, "bad_text"), "labels[0].text"),
        ("PATCH", "/labels/L1", {"text": "x" * 10_001}, (422, "bad_text"), "text"),
        ("POST", "/labels", {"labels": [{"key": "", "text": "x"}]}, (422, "wrong_message"), "labels[0].key"),
        ("POST", "/labels", {"labels": [{"key": "a", "text": " "}]}, (422, "wrong_message"), "labels[0].text"),
        ("POST", "/labels", {"labels": [{"key": "a"}]}, (422, "wrong_message"), "labels[0].text"),
        ("POST", "/labels", {"labels": [{"key": 5, "text": "x"}]}, (422, "wrong_message"), "labels[0].key"),
        ("POST", "/labels", {"labels": []}, (422, "wrong_message"), "labels"),
        (
            "POST",
            "/labels",
            {"labels": [{"key": f"{n}", "text": "x"} for n in range(4)]},
            (422, "over_limit"),
            "labels",
        ),
        ("PATCH", "/labels/nobody", {"text": "x"}, (404, "unknown_key"), "key"),
        ("PATCH", "/labels/L1", {"text": ""}, (422, "wrong_message"), "text"),
        ("DELETE", "/labels/nobody", None, (404, "unknown_key"), "key"),
        ("POST", "/labels/undo", {}, (409, "nothing_to_undo"), None),
        ("POST", "/labels/undo", {"to_version": 7}, (404, "unknown_version"), "to_version"),
        ("POST", "/labels/undo", {"to_version": -1}, (422, "wrong_message"), "to_version"),
    ],
)
def test_changes_that_cannot_be_made_are_refused_by_name_and_change_nothing(
    client_of: ClientOf, method: str, path: str, content: Any, expected: tuple[int, str], field: str | None
) -> None:
    client = client_of(ServiceSettings(token=TOKEN, limits=Limits(labels=3)))
    answer = client.request(method, path, json=content, headers=AUTHORISED)
    assert error_of(answer) == expected and answer.json()["error"].get("field") == field
    assert client.get("/model").json()["version"] == 0


def test_malformed_json_is_400_here_too(model: Path) -> None:
    async def ask(service: Running) -> Response:
        headers = {**AUTHORISED, "Content-Type": "application/json"}
        return await service.client.post("/labels", content=b'{"labels": [', headers=headers)

    assert error_of(in_service(model, ask, EDITABLE)) == (400, "malformed_json")


def test_the_last_label_stays(model: Path) -> None:
    async def ask(service: Running) -> None:
        for key in list(LABELS)[:-1]:
            assert (await change(service, "DELETE", f"/labels/{key}")).status_code == 200
        refused = await change(service, "DELETE", f"/labels/{list(LABELS)[-1]}")
        assert error_of(refused) == (409, "last_label")
        assert await service.keys("fish") == [list(LABELS)[-1]]

    in_service(model, ask, EDITABLE)


def test_trained_keys_with_slashes_and_blanks_can_be_reached(tmp_path: Path, model: Path) -> None:
    from umpteen.data.labels import LabelCatalogue

    towers = Classifier.load(model).towers
    odd = Classifier.build(towers, LabelCatalogue(["a/b c", "ключ?", "plain"], ["fish", "law", "dog"]))

    async def ask(service: Running) -> None:
        assert (await change(service, "PATCH", "/labels/a%2Fb%20c", {"text": "food"})).status_code == 200
        assert (await change(service, "DELETE", "/labels/%D0%BA%D0%BB%D1%8E%D1%87%3F")).status_code == 200
        assert await service.keys("food", k=9) == ["a/b c", "plain"]

    in_service(odd, ask, EDITABLE)


@pytest.mark.parametrize("code", ["SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR"])
def test_a_disk_that_takes_nothing_is_told_and_nothing_changes(
    code: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        problem = sqlite3.OperationalError("the disk takes nothing")
        problem.sqlite_errorcode = getattr(sqlite3, code)
        raise problem

    async def ask(service: Running) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(History, "record", fails)
            answer = await change(service, "POST", "/labels", ADD)
        assert error_of(answer) == (503, "not_saved") and "the disk takes nothing" in answer.text
        assert "new" not in await service.keys("food network", k=100)
        assert (await change(service, "POST", "/labels", ADD)).json() == {"version": 1}

    in_service(model, ask, EDITABLE)


def test_a_change_that_takes_too_long_is_told_and_may_still_come(model: Path) -> None:
    async def ask(service: Running) -> None:
        release = threading.Event()
        holding = asyncio.ensure_future(service.service.batcher.alone(lambda: release.wait(PATIENCE)))
        answer = await change(service, "POST", "/labels", ADD)
        assert error_of(answer) == (504, "timeout") and "/labels/history" in answer.text
        release.set()
        await holding
        assert (await service.keys("food network"))[0] == "new"

    in_service(model, ask, ServiceSettings(token=TOKEN, change_timeout=0.1))


def test_labels_change_under_load_without_a_failed_or_wrong_answer(model: Path) -> None:
    async def ask(service: Running) -> None:
        stop = False
        answered = 0

        async def client() -> None:
            nonlocal answered
            while not stop:
                answer = await service.ask("food network", k=100)
                assert answer.status_code == 200, answer.text
                found, version = answer.json()["results"][0]["labels"], answer.json()["version"]
                # Odd versions are those after an addition, even ones those after a retirement.
                assert ("new" in [label["key"] for label in found]) == (version % 2 == 1)
                answered += 1

        clients = [asyncio.ensure_future(client()) for _ in range(8)]
        for _ in range(5):
            assert (await change(service, "POST", "/labels", ADD)).status_code == 200
            assert (await service.keys("food network"))[0] == "new"
            assert (await change(service, "DELETE", "/labels/new")).status_code == 200
            assert "new" not in await service.keys("food network", k=100)
        stop = True
        await asyncio.gather(*clients)
        assert answered >= 8

    in_service(model, ask, EDITABLE)


def test_a_change_of_another_process_is_seen_without_asking_for_it(model: Path) -> None:
    async def ask(service: Running) -> None:
        Classifier.load(model).add_labels({"new": "food network"})
        while (await service.keys("food network"))[0] != "new":
            await asyncio.sleep(0.05)

    in_service(model, ask)


def test_a_damaged_database_is_told_once_and_the_labels_stay(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(service: Running) -> None:
        database = next(model.glob("model-*.db"))
        with database.open("r+b") as file:  # in one step: no look can find half of it
            file.write(b"no database at all")
        while "not_refreshed" not in (told := capsys.readouterr().out):
            await asyncio.sleep(0.02)
        assert database.name in told
        assert await service.keys("fish", k=1) == ["L1"]
        assert error_of(await change(service, "POST", "/labels", ADD)) == (503, "damaged_model")

    in_service(model, ask, ServiceSettings(token=TOKEN, refresh=0.02, access_log=True))
    assert "not_refreshed" not in capsys.readouterr().out
