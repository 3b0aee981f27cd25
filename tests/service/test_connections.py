"""What a connection may cost before there is a request: the size and the time of its head, and a place."""

import json
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from service_cases import PATIENCE

from umpteen.model.classifier import Classifier
from umpteen.service.app import create_app
from umpteen.service.metrics import Metrics
from umpteen.service.server import OpenConnections, configured, listening_socket
from umpteen.service.settings import Limits, ServiceSettings

BODY = b'{"text": "fish", "k": 1}'
ASKED = b"POST /predict HTTP/1.1\r\nHost: service\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


class Caller:
    """A connection that sends bytes and reads answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._stream = self._socket.makefile("rb")

    def send(self, content: bytes) -> None:
        self._socket.sendall(content)

    def answer(self) -> tuple[int, Any]:
        """Status and message; 0 if the connection was closed without one."""
        with suppress(ConnectionResetError):
            status = self._stream.readline()
            if status:
                headers = dict(line.lower().split(b": ", 1) for line in iter(self._stream.readline, b"\r\n"))
                content = self._stream.read(int(headers.get(b"content-length", b"0")))
                return int(status.split()[1]), json.loads(content) if content else None
        return 0, None

    def ask(self) -> int:
        self.send(ASKED)
        return self.answer()[0]

    def refused(self) -> tuple[int, str]:
        """Status and code of an error, after which the connection is closed."""
        status, message = self.answer()
        assert self.answer() == (0, None)
        return status, message["error"]["code"]


@contextmanager
def service_on_a_port(model: Path, settings: ServiceSettings) -> Iterator[Any]:
    """Makes connections to a service that runs in another thread."""
    app = create_app(Classifier.load(model), settings)
    with listening_socket("127.0.0.1", 0) as listener, ExitStack() as connections:
        port = listener.getsockname()[1]
        server = uvicorn.Server(configured(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()

        def connect() -> Caller:
            caller = Caller(port)
            connections.callback(caller._socket.close)
            connections.callback(caller._stream.close)
            return caller

        try:
            assert connect().ask() == 200
            yield connect
        finally:
            connections.close()
            server.should_exit = True
            thread.join()


def test_a_head_is_refused_as_soon_as_it_is_too_large(shared_model: Path) -> None:
    begun = b"GET /health HTTP/1.1\r\nHost: service\r\nA: "
    with service_on_a_port(shared_model, ServiceSettings(limits=Limits(head_bytes=1000))) as connect:
        endless = connect()
        endless.send(begun + b"x" * (1001 - len(begun)))
        assert endless.refused() == (431, "head_too_large")
        later = connect()
        assert later.ask() == 200
        later.send(begun + b"x" * 1000 + b"\r\n\r\n")
        assert later.refused() == (431, "head_too_large")
        long_address = connect()
        long_address.send(b"GET /health?" + b"x" * 1000 + b" HTTP/1.1\r\nHost: service\r\n\r\n")
        assert long_address.refused() == (431, "head_too_large")
        fits = connect()
        fits.send(begun + b"x" * 900 + b"\r\n\r\n")
        assert fits.answer()[0] == 200


def test_a_hundred_megabytes_of_headers_are_not_taken(shared_model: Path) -> None:
    with service_on_a_port(shared_model, ServiceSettings()) as connect:
        endless = connect()
        endless.send(b"GET /health HTTP/1.1\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for number in range(100):
                endless.send(b"H%d: " % number + b"x" * 2**20 + b"\r\n")
        assert connect().ask() == 200


def test_a_head_behind_a_request_under_way_is_limited_as_well(
    shared_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, release = threading.Event(), threading.Event()

    def history(_: Classifier) -> list[Any]:
        asked.set()
        release.wait(PATIENCE)
        return []

    monkeypatch.setattr(Classifier, "history", history)
    with service_on_a_port(shared_model, ServiceSettings(timeout=PATIENCE)) as connect:
        caller = connect()
        caller.send(b"GET /labels/history HTTP/1.1\r\nHost: service\r\n\r\n")
        assert asked.wait(PATIENCE)
        caller.send(b"GET /")
        try:
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for _ in range(100):
                    caller.send(b"x" * 2**20)
        finally:
            release.set()


def test_a_body_is_no_head_even_if_its_request_is_answered_before(shared_model: Path) -> None:
    with service_on_a_port(shared_model, ServiceSettings(limits=Limits(head_bytes=1000))) as connect:
        caller = connect()
        for _ in range(2):
            caller.send(b"POST /nowhere HTTP/1.1\r\nHost: service\r\nContent-Length: 100000\r\n\r\n")
            assert caller.answer()[0] == 404
            for _ in range(10):
                caller.send(b"x" * 10_000)
            assert caller.ask() == 200
        caller.send(ASKED + ASKED)
        assert [caller.answer()[0], caller.answer()[0]] == [200, 200]


def test_what_follows_a_body_in_chunks_is_limited_as_its_head_is(shared_model: Path) -> None:
    begun = b"POST /predict HTTP/1.1\r\nHost: service\r\nTransfer-Encoding: chunked\r\n\r\n"
    settings = ServiceSettings(limits=Limits(head_bytes=1000), body_timeout=PATIENCE, timeout=PATIENCE)
    with service_on_a_port(shared_model, settings) as connect:
        for trailers in (b"x" * 2**20, b"A: b\r\n" * 2**17):
            endless = connect()
            endless.send(begun + b"%x\r\n%s\r\n0\r\nA: " % (len(BODY), BODY))
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for _ in range(100):
                    endless.send(trailers)
        small = connect()
        small.send(begun)
        for letter in BODY.replace(b"fish", b"fish " * 100):
            small.send(b"1\r\n")
            small.send(b"%c\r\n" % letter)
        small.send(b"0\r\nA: b\r\n\r\n")
        assert small.answer()[0] == small.ask() == 200


def test_a_head_that_does_not_come_is_not_waited_for(shared_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenConnections(ServiceSettings(body_timeout=3), Metrics()).head_seconds == 3
    seconds = PATIENCE
    monkeypatch.setattr(OpenConnections, "head_seconds", property(lambda _: seconds, lambda *_: None), raising=False)
    with service_on_a_port(shared_model, ServiceSettings()) as connect:
        slow_again, blank = connect(), connect()
        assert slow_again.ask() == blank.ask() == 200
        seconds = 0.1
        slow_again.send(b"GET /hea")
        blank.send(b"\r\n")
        assert slow_again.refused() == (408, "slow_head")
        assert blank.answer() == connect().answer() == (0, None)
        for longer in (0.1, 1.0, 10.0, 100.0):  # until a head has begun in time, on however slow a machine
            seconds = longer
            slow = connect()
            slow.send(b"GET /health HT")
            status, message = slow.answer()
            if status:
                break
        assert (status, message["error"]["code"]) == (408, "slow_head") and slow.answer() == (0, None)


def test_what_is_not_http_is_refused_in_the_form_of_every_error(shared_model: Path) -> None:
    with service_on_a_port(shared_model, ServiceSettings()) as connect:
        caller = connect()
        caller.send(b"\x16\x03\x01 hello\r\n\r\n")
        assert caller.refused() == (400, "malformed_http")


def test_when_all_places_are_taken_the_longest_silent_makes_room_and_is_counted(shared_model: Path) -> None:
    settings = ServiceSettings(limits=Limits(connections=3), body_timeout=PATIENCE)
    with service_on_a_port(shared_model, settings) as connect:
        first, second, third = (connect() for _ in range(3))
        assert [caller.ask() for caller in (second, first, third)] == [200] * 3
        assert connect().ask() == 200
        assert second.answer() == (0, None)  # the others have spoken since
        assert first.ask() == 200
        for _ in range(20):
            connect()
        last = connect()
        assert last.ask() == 200
        assert first.answer() == third.answer() == (0, None)
        last.send(b"GET /metrics HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n")
        told = last._stream.read().decode().splitlines()
        (closed,) = [line for line in told if line.startswith('umpteen_connections_closed_total{why="made_room"}')]
        assert float(closed.split()[1]) >= 20


def test_requests_under_way_keep_their_places_and_newcomers_are_told_to_come_back(shared_model: Path) -> None:
    settings = ServiceSettings(limits=Limits(connections=2), body_timeout=PATIENCE, timeout=PATIENCE)
    with service_on_a_port(shared_model, settings) as connect:
        under_way = [connect(), connect()]
        for caller in under_way:
            caller.send(ASKED.replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1)[: -len(BODY)])
            assert caller.answer()[0] == 100
        assert connect().refused() == (503, "too_many_connections")
        for caller in under_way:
            caller.send(BODY)
            assert caller.answer()[0] == 200
        assert connect().ask() == 200


@pytest.mark.parametrize(
    ("files", "most"), [(256, 192), (1024, 768), (100_000, 1000), (resource.RLIM_INFINITY, 1000), (1, 1)]
)
def test_connections_leave_files_for_the_model(monkeypatch: pytest.MonkeyPatch, files: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert OpenConnections(ServiceSettings(), Metrics()).most == most


def test_answers_are_whole_whatever_they_consist_of(shared_model: Path) -> None:
    with service_on_a_port(shared_model, ServiceSettings()) as connect:
        careful = connect()  # sends the body once it is asked for it
        careful.send(ASKED.removesuffix(BODY).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert careful.answer() == (100, None)
        careful.send(BODY)
        assert careful.answer()[0] == 200
        careful.send(b"GET /page/api.js HTTP/1.1\r\nHost: service\r\n\r\n")
        head = dict(line.split(b": ", 1) for line in iter(careful._stream.readline, b"\r\n") if b": " in line)
        assert careful._stream.read(int(head[b"content-length"])).startswith(b"/")
        known = head[b"etag"].strip()
        careful.send(b"GET /page/api.js HTTP/1.1\r\nHost: service\r\nIf-None-Match: %s\r\n\r\n" % known)
        assert careful.answer() == (304, None)  # there is no body to wait for
        careful.send(ASKED + ASKED)
        assert [careful.answer()[0], careful.answer()[0]] == [200, 200]
        last = connect()
        last.send(ASKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert last.answer()[0] == 200
        assert last.answer() == (0, None)
