"""A body is refused while it arrives: too large, whether it says so or not, or too slow."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from service_cases import AUTHORISED, PATIENCE, TOKEN, Running, error_of, in_service

from umpteen.service.settings import Limits, ServiceSettings

SMALL = ServiceSettings(limits=Limits(body_bytes=1000), token=TOKEN)


async def parts(count: int, taken: list[int]) -> AsyncIterator[bytes]:
    for part in range(count):
        taken.append(part)
        yield b"x" * 100


@pytest.mark.parametrize("path", ["/predict", "/labels"])
def test_a_body_that_announces_too_much_is_refused_unread(model: Path, path: str) -> None:
    async def ask(service: Running) -> None:
        answer = await service.client.post(path, content=b'"' + b"x" * 1000, headers=AUTHORISED)
        assert error_of(answer) == (413, "body_too_large") and "1,000 bytes" in answer.text
        assert answer.headers["Connection"] == "close"

    in_service(model, ask, SMALL)


@pytest.mark.parametrize("path", ["/predict", "/labels"])
def test_a_body_that_grows_too_large_is_refused_while_it_comes(model: Path, path: str) -> None:
    async def ask(service: Running) -> None:
        taken: list[int] = []
        answer = await service.client.post(path, content=parts(10_000, taken), headers=AUTHORISED)
        assert error_of(answer) == (413, "body_too_large")
        assert len(taken) < 20

    in_service(model, ask, SMALL)


@pytest.mark.parametrize("kind", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_a_body_is_json_whatever_it_is_called(model: Path, kind: dict[str, str]) -> None:
    async def ask(service: Running) -> list[int]:
        bodies = {"/predict": b'{"text": "fish"}', "/labels": b'{"labels": [{"key": "new", "text": "a new one"}]}'}
        headers = {**AUTHORISED, **kind}
        return [
            (await service.client.post(at, content=body, headers=headers)).status_code for at, body in bodies.items()
        ]

    assert in_service(model, ask, SMALL) == [200, 200]


def test_a_body_in_parts_is_put_together(shared_model: Path) -> None:
    async def in_parts() -> AsyncIterator[bytes]:
        for part in (b'{"te', b'xt": "fi', b'sh"}'):
            yield part

    async def ask(service: Running) -> int:
        return (await service.client.post("/predict", content=in_parts())).status_code

    assert in_service(shared_model, ask, SMALL) == 200


def test_a_body_that_does_not_come_is_not_waited_for(shared_model: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"text": '
        await asyncio.sleep(PATIENCE)
        yield b'"fish"}'

    async def ask(service: Running) -> None:
        answer = await service.client.post("/predict", content=slow())
        assert error_of(answer) == (408, "slow_body")

    in_service(shared_model, ask, ServiceSettings(body_timeout=0.1))


@pytest.mark.parametrize("begun", [b"", b"{}"])
def test_a_body_whose_sender_goes_away_undoes_nothing(model: Path, begun: bytes) -> None:
    async def ask(service: Running) -> None:
        new = {"labels": [{"key": "new", "text": "a new one"}]}
        assert (await service.client.post("/labels", json=new, headers=AUTHORISED)).json() == {"version": 1}
        messages: list[Any] = [{"type": "http.request", "body": begun, "more_body": True}, {"type": "http.disconnect"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0) if len(messages) > 1 else messages[0]

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", AUTHORISED["Authorization"].encode()), (b"content-length", b"17")]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "query_string": b""}
        await service.app({**scope, "path": "/labels/undo", "headers": headers}, receive, send)
        assert sent[0]["status"] == 499
        assert (await service.client.get("/labels")).json()["version"] == 1

    in_service(model, ask, SMALL)
