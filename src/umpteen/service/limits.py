"""What every request passes on its way in and out: its host, the limits of its body, the clock, counters and log."""

import asyncio
import time
from collections.abc import Iterable

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umpteen.service.schemas import Refusal, refusal_of
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings

JSON = (b"content-type", b"application/json")
_METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"})


class Front:
    """An ASGI middleware of its own: Starlette's for functions would double the cost of a small answer.

    It stands before the framework's routes, or before the application of one route, which reads its own body.
    """

    def __init__(self, app: ASGIApp, service: Service, route: Route | None = None) -> None:
        self._app = app
        self._service = service
        self._route = route
        self._hosts = frozenset(map(_name, service.settings.allowed_hosts))

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
            if self._hosts:
                _check_host(scope, self._hosts)
            if self._route is not None:
                scope["route"] = self._route
            else:
                scope = _json_whatever_it_is_called(scope)
            await self._app(scope, _limited(scope, receive, self._service.settings), noting)
        except Exception as problem:
            refusal = refusal_of(problem)
            if refusal is None:
                self._service.log.failure(problem)
                refusal = Refusal(500, "internal", "the service failed on this request; its log tells where")
            if status == 0:
                await refusal.response()(scope, receive, noting)
        finally:
            self._done(scope, status or 499, time.perf_counter() - began)  # 499: nobody waited for the answer

    def _done(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        # The route's pattern, never the path: that may hold keys and searches. And no counters for invented methods.
        pattern = "(none)" if route is None else route.path
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._service.metrics.request(method, pattern, status, seconds)
        if self._service.log.on:
            client, about = (scope.get("client") or ("",))[0], scope.get("umpteen.about", {})
            ms = round(seconds * 1000, 3)
            self._service.log.request(method=method, route=pattern, status=status, ms=ms, client=client, **about)


def _json_whatever_it_is_called(scope: Scope) -> Scope:
    """Bodies are JSON here, and curl calls each a form unless told otherwise."""
    return {**scope, "headers": [*(header for header in scope["headers"] if header[0] != JSON[0]), JSON]}


def _check_host(scope: Scope, allowed: Iterable[str]) -> None:
    """Lets pass requests whose Host header has one of these names, with any port or none."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 or _name(hosts[0]) not in allowed:
        reason = f"the service is not asked as {', '.join(hosts) or 'nobody'}; --allowed-host lets a name in"
        raise Refusal(400, "unknown_host", reason)


def _name(host: str) -> str:
    """Without the port, in small letters: `Shop.example:8000`, `[::1]:8000` and `::1` are shop.example and ::1."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).removesuffix(".")


def _limited(scope: Scope, receive: Receive, settings: ServiceSettings) -> Receive:
    """The same body, refused as soon as it is known to be too large or too slow."""
    most, seconds = settings.limits.body_bytes, settings.body_timeout
    deadline = asyncio.get_running_loop().time() + seconds
    taken = 0
    whole = False

    async def next_message() -> Message:
        nonlocal taken, whole
        if whole:
            return await receive()
        said = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if said.isdigit() and int(said) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            reason = f"the body was not there within {seconds:g} s"
            raise Refusal(408, "slow_body", reason, headers={"Connection": "close"}) from None
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most)
        whole = not message.get("more_body", False)
        return message

    return next_message


def _too_large(most: int) -> Refusal:
    reason = f"the body has more than {most:,} bytes; send fewer texts at once"
    return Refusal(413, "body_too_large", reason, headers={"Connection": "close"})  # the rest of it is not read


async def read_body(receive: Receive) -> bytes:
    """All of it; empty if whoever sends it goes away."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
