"""What every request passes on its way in and out: its host, the limits of its body, the clock, counters and log."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umpteen.service.refusals import Refusal, asked_by_name, refusal_of, unforeseen
from umpteen.service.schemas import PredictRequest
from umpteen.service.service import Service
from umpteen.service.settings import Limits, ServiceSettings


def limited(scope: Scope, receive: Receive, settings: ServiceSettings) -> Receive:
    """The same body, refused as soon as it is known to be too large or too slow."""
    most = settings.limits.body_bytes
    deadline = asyncio.get_running_loop().time() + settings.body_timeout
    taken = 0
    whole = False

    async def next_message() -> Message:
        nonlocal taken, whole
        if whole:
            return await receive()
        if taken == 0:
            _check_announced(scope, most)
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise _closing(408, "slow_body", f"the body was not there within {settings.body_timeout:g} s") from None
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most)
        whole = not message.get("more_body", False)
        return message

    return next_message


async def read_body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    """All of it; empty if whoever sends it goes away."""
    message = await receive()
    if not message.get("more_body", False):
        return bytes(message.get("body", b""))
    parts = [message["body"]]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)


def texts_of(message: PredictRequest, limits: Limits) -> list[str]:
    """The texts of a request, each with something in it and none too long."""
    single = "text" in message.model_fields_set
    texts = [message.text] if single else message.texts
    _at_most(message.k, limits.k, "k", "labels of a text")
    _at_most(len(texts), limits.texts, "texts", "texts at once")
    if not texts:
        raise Refusal(422, "no_texts", "texts is empty; give at least one text", field="texts")
    for place, text in enumerate(texts):
        name = "text" if single else f"texts[{place}]"
        if not text.strip():
            raise Refusal(422, "empty_text", f"{name} is empty; leave it out or give it words", field=name)
        _at_most(len(text), limits.text_characters, name, "characters in a text")
    if not single:
        _at_most(sum(map(len, texts)), limits.characters, "texts", "characters in all texts of a request")
    return texts


def check_answers(texts: int, k: int, limits: Limits) -> None:
    """Refuses an answer that would be too large."""
    if texts > 1:
        _at_most(texts * k, limits.answers, "texts", "labels in an answer (texts × k)")


def _at_most(value: int, limit: int, field: str, what: str) -> None:
    if value > limit:
        raise Refusal(422, "over_limit", f"{field}: {value:,} {what}, {limit:,} are the most", field=field)


def _check_announced(scope: Scope, most: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
            raise _too_large(most)


def _too_large(most: int) -> Refusal:
    return _closing(413, "body_too_large", f"the body has more than {most:,} bytes; send fewer texts at once")


def _closing(status: int, code: str, reason: str) -> Refusal:
    """What is still to come of the body is not read."""
    return Refusal(status, code, reason, headers={"Connection": "close"})


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
