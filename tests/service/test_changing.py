"""Another process may change the same folder for long: label changes wait for it, predictions do not."""

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from httpx import Response
from service_cases import AUTHORISED, PATIENCE, TOKEN, Running, error_of, in_service

from umpteen.encoders.encoder import Encoder
from umpteen.model import catalogue as catalogue_module
from umpteen.model.changes import Store
from umpteen.model.folder import ModelFolder
from umpteen.service.schemas import Refusal
from umpteen.service.settings import Limits, ServiceSettings

MANY = 16  # changes at once


def adding(service: Running, key: str, text: str = "food network") -> "asyncio.Task[Response]":
    content = {"labels": [{"key": key, "text": text}]}
    return asyncio.create_task(service.client.post("/labels", json=content, headers=AUTHORISED))


def settings(**more: Any) -> ServiceSettings:
    return ServiceSettings(token=TOKEN, timeout=PATIENCE, refresh=60, **more)


def test_predictions_never_wait_for_another_process(model: Path) -> None:
    async def ask(service: Running) -> None:
        with ModelFolder(model).changing():
            changes = [adding(service, f"new {number}") for number in range(MANY)]
            for _ in range(5):
                assert "new 0" not in await service.keys("food network")
            assert not any(change.done() for change in changes)
        made = await asyncio.gather(*changes)
        assert sorted(change.json()["version"] for change in made) == list(range(1, MANY + 1))

    in_service(model, ask, settings(lock_timeout=300))


def test_a_folder_that_stays_locked_is_told_and_nothing_changes(model: Path) -> None:
    async def ask(service: Running) -> None:
        with ModelFolder(model).changing():
            answer = await adding(service, "new")
        assert error_of(answer) == (503, "locked") and int(answer.headers["Retry-After"]) >= 1
        assert "another process has been changing the labels for 0.1 s" in answer.text
        assert str(model) not in answer.text
        assert (await service.client.get("/model")).json()["version"] == 0
        assert (await adding(service, "new")).json() == {"version": 1}

    in_service(model, ask, settings(lock_timeout=0.1))


def test_a_change_that_has_to_be_tried_again_encodes_its_texts_once(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if another one is tried between its tries."""
    encoded: list[str] = []
    tries = 0
    whole, store = catalogue_module.encode_new, Store.changing

    def encode(tower: Encoder, texts: list[str], **options: Any) -> torch.Tensor:
        encoded.extend(texts)
        return whole(tower, texts, **options)

    async def ask(service: Running) -> None:
        monkeypatch.setattr(catalogue_module, "encode_new", encode)
        loop = asyncio.get_running_loop()
        with ExitStack() as others:
            others.enter_context(ModelFolder(model).changing())

            def changing(self: Store, patience: float) -> object:
                nonlocal tries
                tries += 1
                if tries == 6:  # each of the two has lost twice
                    loop.call_soon_threadsafe(others.close)
                return store(self, patience)

            monkeypatch.setattr(Store, "changing", changing)
            changes = (("a", "food network"), ("b", "dog network"))
            made = await asyncio.gather(*(adding(service, key, text) for key, text in changes))
        assert sorted(change.json()["version"] for change in made) == [1, 2] and tries >= 6
        assert sorted(encoded) == ["dog network", "food network"]
        assert (await service.keys("dog network"))[0] == "b" and (await service.keys("food network"))[0] == "a"

    in_service(model, ask, settings(lock_timeout=300))


def test_changes_that_wait_for_their_turn_are_limited_and_nothing_else_is(model: Path) -> None:
    async def ask(service: Running) -> None:
        release, began = threading.Event(), threading.Event()
        works = asyncio.ensure_future(service.service.change(lambda _: began.set() or release.wait(PATIENCE)))
        await asyncio.to_thread(began.wait, PATIENCE)
        late = await adding(service, "late")  # and keeps its place, as it may still be made
        assert error_of(late) == (504, "timeout")
        assert error_of(await adding(service, "other")) == (429, "too_busy")
        with pytest.raises(Refusal, match="wait already"):
            await service.service.change(lambda _: None)
        own = [asyncio.ensure_future(service.service.batcher.alone(lambda: "done")) for _ in range(3)]
        assert (await service.client.get("/labels/history")).status_code == 200
        release.set()
        assert await asyncio.gather(*own) == ["done"] * 3
        with pytest.raises(Refusal, match="may still be made"):
            await works
        answer = await adding(service, "other")
        assert answer.status_code == 200 or error_of(answer) == (504, "timeout")  # a busy machine may take longer
        while (await service.client.get("/model")).json()["version"] != 2:
            await asyncio.sleep(0.05)

    limits = Limits(waiting_changes=1)
    in_service(model, ask, ServiceSettings(token=TOKEN, refresh=60, change_timeout=0.5, limits=limits))


def test_changes_that_wait_for_another_process_are_limited(model: Path) -> None:
    async def ask(service: Running) -> None:
        with ModelFolder(model).changing():
            waiting = [adding(service, key) for key in ("one", "two")]
            await service.keys("fish")  # its turn came after that of the changes, which wait by now
            refused = await adding(service, "other")
        assert error_of(refused) == (429, "too_busy") and refused.headers["Retry-After"] == "1"
        assert sorted([(await change).json()["version"] for change in waiting]) == [1, 2]
        assert (await adding(service, "other")).json() == {"version": 3}

    in_service(model, ask, settings(lock_timeout=300, change_timeout=300, limits=Limits(waiting_changes=1)))
