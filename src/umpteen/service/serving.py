"""One classifier served by this process: a socket, uvicorn, and the two signals that end it."""

import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from umpteen.errors import BadInput
from umpteen.service.settings import ServiceSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from umpteen.classifier import Classifier
    from umpteen.service.metrics import Metrics

_WAITING_CONNECTIONS = 2048
_KEPT_ALIVE = 30  # seconds a connection may be silent


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; they wait until somebody answers."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError, OverflowError) as problem:
        raise BadInput(f"--host {host} --port {port}: no such address ({problem})") from problem
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_WAITING_CONNECTIONS)
    except OSError as problem:
        listener.close()
        raise BadInput(
            f"--host {host} --port {port}: cannot listen there: {os.strerror(problem.errno or 0)}; "
            "choose another port, or end what uses it"
        ) from problem
    listener.set_inheritable(True)
    return listener


def serve_here(
    classifier: "Classifier",
    settings: ServiceSettings,
    listener: socket.socket,
    started: Callable[[], None] = lambda: None,
    metrics: "Metrics | None" = None,
) -> None:
    """Serves until SIGINT or SIGTERM; requests that were taken are finished first.

    An error of the start is raised as it is.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # batches are small, and the cores have work
    from umpteen.service.app import create_app

    app = create_app(classifier, settings, metrics)
    server = _Server(configured(app), app.state.service.start, started)

    def stop(*_: Any) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)  # before uvicorn's own handlers are there, and after they have done their work
    server.run(sockets=[listener])


def configured(app: "FastAPI") -> uvicorn.Config:
    """How uvicorn runs the application, with limits to connections that bring no request."""
    from umpteen.service.connections import Connection, OpenConnections

    service = app.state.service
    http: Any = partial(Connection, OpenConnections(service.settings, service.log))
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


class _Server(uvicorn.Server):
    """Starts the service itself: of an error in the application's lifespan, uvicorn would leave a traceback only."""

    def __init__(
        self, config: uvicorn.Config, start: Callable[[], Awaitable[None]], started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._start = start
        self._tell_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._start()
        await super().startup(sockets=sockets)
        gc.collect()
        gc.freeze()  # what is loaded by now stays; looking through it again and again took a fifth of a small answer
        if self.started:
            self._tell_started()
