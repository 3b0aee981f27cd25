"""A service may answer to its own names only: a page elsewhere whose name leads here (DNS rebinding) gets nothing."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from service_cases import Running, error_of, in_service

from umpteen.cli.predict import serve
from umpteen.service.settings import ServiceSettings

OURS = ServiceSettings(allowed_hosts=("shop.example", "127.0.0.1", "::1"))
ROUTES = [("POST", "/predict"), ("GET", "/health"), ("GET", "/"), ("GET", "/nowhere")]


@pytest.mark.parametrize("cors", [(), ("https://shop.example",)])
@pytest.mark.parametrize(
    "host", ["evil.example", "shop.example.evil.example", "shop.example@evil.example", "[::2]:80", ""]
)
def test_requests_for_other_hosts_are_refused_on_every_route(
    shared_model: Path, host: str, cors: tuple[str, ...]
) -> None:
    async def ask(service: Running) -> None:
        for method, path in ROUTES:
            answer = await service.client.request(method, path, json={"text": "fish"}, headers={"Host": host})
            assert error_of(answer) == (400, "unknown_host")

    in_service(shared_model, ask, ServiceSettings(allowed_hosts=OURS.allowed_hosts, cors=cors))


@pytest.mark.parametrize(
    "host", ["shop.example", "SHOP.example:8000", "shop.example.", "127.0.0.1:80", "[::1]", "[::1]:8000"]
)
def test_our_own_names_are_taken_with_any_port(shared_model: Path, host: str) -> None:
    async def ask(service: Running) -> list[int]:
        asked = [
            await service.client.request(method, path, json={"text": "fish"}, headers={"Host": host})
            for method, path in ROUTES
        ]
        return [answer.status_code for answer in asked]

    assert in_service(shared_model, ask, OURS) == [200, 200, 200, 404]


def test_two_hosts_or_none_are_no_host_of_ours(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        for hosts in ([], [b"shop.example", b"evil.example"]):
            scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b""}
            headers = [(b"host", host) for host in hosts]
            sent: list[dict[str, int]] = []

            async def send(message: dict[str, int], sent: list[dict[str, int]] = sent) -> None:
                sent.append(message)

            await service.app({**scope, "headers": headers}, None, send)  # type: ignore[arg-type]
            assert sent[0]["status"] == 400

    in_service(shared_model, ask, OURS)


def test_any_host_is_taken_unless_names_are_given(shared_model: Path) -> None:
    async def ask(service: Running) -> int:
        return (await service.client.get("/health", headers={"Host": "any.example"})).status_code

    assert in_service(shared_model, ask) == 200


def test_names_are_given_on_the_command_line(shared_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("umpteen.service.run.serve", lambda model, settings, *_, **__: asked.append(settings))
    names = ["--allowed-host", "shop.example", "--allowed-host", "::1"]
    assert CliRunner().invoke(serve, [str(shared_model), *names]).exit_code == 0
    assert asked[0].allowed_hosts == ("shop.example", "::1")
