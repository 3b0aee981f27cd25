"""Another process may change the same folder for long: label changes wait for it, predictions do not."""

import asyncio
from pathlib import Path

import pytest
from httpx import Response
from service_cases import AUTHORISED, TOKEN, Running, error_of, in_service

from umpteen.catalogue.lock import locked
from umpteen.service import changing
from umpteen.service.settings import Limits, ServiceSettings

MANY = 16  # changes at once


def adding(service: Running, key: str) -> "asyncio.Task[Response]":
    content = {"labels": [{"key": key, "text": "food network"}]}
    return asyncio.create_task(service.client.post("/labels", json=content, headers=AUTHORISED))


def settings(**more: float) -> ServiceSettings:
    return ServiceSettings(token=TOKEN, timeout=4, refresh=60, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("too_late", [False, True])
def test_predictions_never_wait_for_another_process(
    model: Path, monkeypatch: pytest.MonkeyPatch, too_late: bool
) -> None:
    """Whether the folder is found locked, or is locked between that look and the change."""
    looks = 0
    look = changing.is_locked

    def first_looks(folder: Path) -> bool:
        nonlocal looks
        looks += 1
        return look(folder) if looks > MANY else False

    async def ask(service: Running) -> None:
        with locked(model):
            if too_late:
                monkeypatch.setattr(changing, "is_locked", first_looks)
            changes = [adding(service, f"new {number}") for number in range(MANY)]
            await asyncio.sleep(0.05)
            assert "new 0" not in await service.keys("food network")
            assert not any(change.done() for change in changes)
        made = await asyncio.gather(*changes)
        assert sorted(change.json()["version"] for change in made) == list(range(1, MANY + 1))

    in_service(model, ask, settings())
    assert looks >= MANY * too_late


def test_a_folder_that_stays_locked_is_told_and_nothing_changes(model: Path) -> None:
    async def ask(service: Running) -> None:
        with locked(model):
            answer = await adding(service, "new")
        assert error_of(answer) == (503, "locked") and int(answer.headers["Retry-After"]) >= 1
        assert "another process has been changing the labels for 0.1 s" in answer.text
        assert str(model) not in answer.text
        assert (await service.client.get("/model")).json()["version"] == 0
        assert (await adding(service, "new")).json() == {"version": 1}

    in_service(model, ask, settings(lock_timeout=0.1))


def test_changes_that_wait_for_another_process_are_limited(model: Path) -> None:
    async def ask(service: Running) -> None:
        with locked(model):
            waits = adding(service, "one")
            await asyncio.sleep(0.1)
            refused = await adding(service, "other")
        assert error_of(refused) == (429, "too_busy") and refused.headers["Retry-After"] == "1"
        assert (await waits).json() == {"version": 1}
        assert (await adding(service, "other")).json() == {"version": 2}

    in_service(model, ask, ServiceSettings(token=TOKEN, refresh=60, limits=Limits(waiting_changes=1)))
