"""One classifier served by this process: a socket, uvicorn, limits to connections, and the two signals that end it."""

import asyncio
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from umpteen.errors import BadInput
from umpteen.service.metrics import Metrics
from umpteen.service.schemas import Refusal
from umpteen.service.settings import ServiceSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

ENDING = (signal.SIGINT, signal.SIGTERM)
_WAITING_CONNECTIONS = 2048
_KEPT_ALIVE = 30  # seconds a connection may be silent


class OpenConnections:
    """The connections of a worker that have no request under way, longest silent first, and who counts the others."""

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        self.metrics = metrics
        self.head_bytes = settings.limits.head_bytes
        self.head_seconds = settings.body_timeout
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = settings.limits.connections
        if files != resource.RLIM_INFINITY:
            self.most = max(1, min(self.most, files * 3 // 4))  # the others are for the model's own files
        self.silent: dict[Connection, None] = {}


class _WholeAnswers:
    """A transport that sends the head of an answer together with its body: uvicorn writes them apart.

    Each time something is sent costs the service a twentieth of a small answer, and whoever asked as much again.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.abort, self.is_closing = transport.abort, transport.is_closing
        self._transport = transport
        self._head: bytes | None = None  # None: an answer has not begun; empty: its head is sent

    def write(self, data: bytes) -> None:
        if self._head is not None:
            self._transport.write(self._head + data)
            self._head = b""
        elif data.startswith(b"HTTP/1.1 100 "):  # whoever asked waits for it before sending the body
            self._transport.write(data)
        else:
            self._head = data

    def end(self) -> None:
        """The answer is over, even if it had no body."""
        if self._head:
            self._transport.write(self._head)
        self._head = None

    def close(self) -> None:
        self.end()
        self._transport.close()


class Connection(HttpToolsProtocol):
    """Uvicorn's, with limits to what it may cost before there is a request: bytes and seconds of its head, and a place.

    When all places are taken, whoever has been silent for longest makes room; nobody loses a request that is under way.
    """

    def __init__(self, others: OpenConnections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._others = others
        self._chunk_bytes = 0
        self._head_bytes = 0  # that came since the last head was whole, or some of a body came: trailers, too
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport: Any = _WholeAnswers(transport)
        others = self._others
        if len(self.connections) > others.most:
            if not others.silent:
                told = f"{others.most:,} connections have requests under way, which is the most; come back in a moment"
                self._refuse(Refusal(503, "too_many_connections", told, headers={"Retry-After": "1"}))
                return
            longest_silent = next(iter(others.silent))
            del others.silent[longest_silent]
            longest_silent.transport.abort()
            others.metrics.closed("made_room").inc()
        others.silent[self] = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._chunk_bytes = len(data)
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self._others.head_bytes:
            self._refuse_head()
        if self._deadline is None and self in self._others.silent:  # a head has begun, or only blank lines came
            self._expect_head()

    def on_headers_complete(self) -> None:
        most = self._others.head_bytes
        # Counted only where it may be too much: most requests are one small chunk.
        if max(self._head_bytes, self._chunk_bytes) > most:
            exact = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if exact > most:
                self._refuse_head()
                raise ValueError("the head is too large")  # ends the parser's work
        self._head_bytes = 0
        self._head_is_here()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self.transport.end()
        if not self.pipeline:
            self._others.silent[self] = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal(400, "malformed_http", "this is not HTTP/1.1"))

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._others.head_seconds, self._head_is_late)

    def _head_is_here(self) -> None:
        self._others.silent.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.scope is not None and "method" not in self.scope:  # some of a head is here, but not the whole
            seconds = self._others.head_seconds
            self._refuse(Refusal(408, "slow_head", f"the headers were not there within {seconds:g} s"))
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        self._refuse(Refusal(431, "head_too_large", f"the headers have more than {self._others.head_bytes:,} bytes"))

    def _refuse(self, refusal: Refusal) -> None:
        """Says why, unless an answer is on its way, and closes the connection."""
        if self.transport.is_closing():
            return
        self._others.metrics.closed(refusal.told.code).inc()
        if self.cycle is None or self.cycle.response_complete:
            response = refusal.response()
            headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
            head = STATUS_LINE[refusal.status_code] + headers + b"connection: close\r\n\r\n"
            self.transport.write(head + bytes(response.body))
        self.transport.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; they wait until somebody answers."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=_WAITING_CONNECTIONS, dualstack_ipv6=both)
    except (socket.gaierror, UnicodeError, OverflowError) as problem:
        raise BadInput(f"--host {host} --port {port}: no such address ({problem})") from problem
    except OSError as problem:
        reason = f"{os.strerror(problem.errno or 0)}; choose another port, or end what uses it"
        raise BadInput(f"--host {host} --port {port}: cannot listen there: {reason}") from problem


def serve_here(app: "FastAPI", listener: socket.socket, started: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM, then finishes what was taken; an error of the start is raised as it is."""

    class Server(uvicorn.Server):
        """Starts the service itself: of an error in an application's lifespan uvicorn would leave a traceback only."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await app.state.service.start()
            await super().startup(sockets=sockets)
            gc.collect()
            gc.freeze()  # what is loaded by now stays; looking through it again took a fifth of a small answer
            if self.started:
                started()

    server = Server(configured(app))

    def stop(*_: Any) -> None:
        server.should_exit = True

    for number in ENDING:
        signal.signal(number, stop)  # before uvicorn's own handlers are there, and after they have done their work
    server.run(sockets=[listener])


def configured(app: "FastAPI") -> uvicorn.Config:
    """How uvicorn runs the application, with limits to connections that bring no request."""
    service = app.state.service
    http: Any = partial(Connection, OpenConnections(service.settings, service.metrics))
    return uvicorn.Config(app, http=http, **uvicorn_settings(service.settings))


def uvicorn_settings(settings: ServiceSettings) -> dict[str, Any]:
    """Uvicorn without what the service does itself: logs, and headers nobody needs."""
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "ws": "none",
        "lifespan": "on",
        "backlog": _WAITING_CONNECTIONS,
        "timeout_keep_alive": _KEPT_ALIVE,
        "timeout_graceful_shutdown": max(1, round(settings.shutdown_timeout)),
    }
