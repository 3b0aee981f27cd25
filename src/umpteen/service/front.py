"""What every request passes on its way in and out: its host, the limits of its body, the clock, counters and log."""

import time

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umpteen.service.limits import limited
from umpteen.service.refusals import Refusal, refusal_of, unforeseen
from umpteen.service.security import asked_by_name
from umpteen.service.service import Service

JSON = (b"content-type", b"application/json")
METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"})


class Front:
    """An ASGI middleware of its own: Starlette's for functions would double the cost of a small answer.

    `straight` answers one route past the framework, which would otherwise take longer than the answer.
    """

    def __init__(self, app: ASGIApp, service: Service, straight: Route | None = None) -> None:
        self._app = app
        self._service = service
        self._straight = straight
        self._check_host = asked_by_name(hosts) if (hosts := service.settings.allowed_hosts) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._check_host is not None:
                self._check_host(scope)
            app = self._app
            straight = self._straight
            if straight is not None and scope["path"] == straight.path and scope["method"] in (straight.methods or ()):
                app, scope["route"] = straight.app, straight
            else:
                scope = _json_whatever_it_is_called(scope)
            await app(scope, limited(scope, receive, self._service.settings), noting)
        except Exception as problem:
            refusal = refusal_of(problem)
            if refusal is None:
                self._service.log.failure(problem)
                refusal = unforeseen()
            if status == 0:
                await send_refusal(noting, refusal)
        finally:
            self._done(scope, status or 499, time.perf_counter() - began)  # 499: nobody waited for the answer

    def _done(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        # The route's pattern, never the path: that may hold keys and searches. And no counters for invented methods.
        pattern = "(none)" if route is None else route.path
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._service.metrics.request(method, pattern, status, seconds)
        if self._service.log.on:
            client = scope.get("client")
            about = scope.get("umpteen.about", {})
            self._service.log.request(method, pattern, status, seconds, client[0] if client else "", about)


def _json_whatever_it_is_called(scope: Scope) -> Scope:
    """Bodies are JSON here, and curl calls each a form unless told otherwise."""
    return {**scope, "headers": [*(header for header in scope["headers"] if header[0] != JSON[0]), JSON]}


async def send_json(send: Send, body: bytes) -> None:
    """A whole answer, past the framework's response classes."""
    headers = [JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """A whole refusal, the same way."""
    body = refusal.body()
    told = [(name.lower().encode(), value.encode()) for name, value in (refusal.headers or {}).items()]
    headers = [JSON, (b"content-length", b"%d" % len(body)), *told]
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
