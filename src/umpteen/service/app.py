"""A classifier as an ASGI application: what every request passes, every route, every error in one form."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from umpteen import __version__
from umpteen.errors import UmpteenError
from umpteen.model.classifier import Classifier
from umpteen.service.labels import add_editing, add_labels
from umpteen.service.metrics import Metrics
from umpteen.service.pages import add_about, add_pages
from umpteen.service.predict import JSON, add_explain, add_predict
from umpteen.service.schemas import Refusal, refusal_of, write_in_limits
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings

_METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"})


class App(FastAPI):
    """Before the framework: every request's host, the limits of its body, its clock, counters and log."""

    straight: Route | None = None  # answered past the framework, which would take longer than the answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        service: Service = self.state.service
        began, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if allowed := {_name(host) for host in service.settings.allowed_hosts}:
                hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
                if len(hosts) != 1 or _name(hosts[0]) not in allowed:
                    asked = f"the service is not asked as {', '.join(hosts) or 'nobody'}"
                    raise Refusal(400, "unknown_host", f"{asked}; --allowed-host lets a name in")
            limited = _limited(scope, receive, service.settings)
            if self.straight and (scope["method"], scope["path"]) == ("POST", self.straight.path):
                scope["route"] = self.straight
                await self.straight.app(scope, limited, send)
                status = 200
            else:  # bodies are JSON here, and curl calls each a form unless told otherwise
                scope = {**scope, "headers": [*(header for header in scope["headers"] if header[0] != JSON[0]), JSON]}
                await super().__call__(scope, limited, noting)
        except Exception as problem:
            refusal = refusal_of(problem)
            if refusal is None:
                service.log.failure(problem)
                refusal = Refusal(500, "internal", "the service failed on this request; its log tells where")
            if status == 0:
                await refusal.response()(scope, receive, noting)
        finally:
            _note(service, scope, status or 499, time.perf_counter() - began)  # 499: nobody waited for the answer


def _note(service: Service, scope: Scope, status: int, seconds: float) -> None:
    # The route's pattern, never the path: that may hold keys and searches. And no counters for invented methods.
    route = scope["route"].path if "route" in scope else "(none)"
    method = scope["method"] if scope["method"] in _METHODS else "other"
    service.metrics.request(method, route, status, seconds)
    if service.log.on:
        client, about = (scope.get("client") or ("",))[0], scope.get("umpteen.about", {})
        ms = round(seconds * 1000, 3)
        service.log.request(method=method, route=route, status=status, ms=ms, client=client, **about)


def _name(host: str) -> str:
    """Without the port, in small letters: `Shop.example:8000`, `[::1]:8000` and `::1` are shop.example and ::1."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).removesuffix(".")


def _limited(scope: Scope, receive: Receive, settings: ServiceSettings) -> Receive:
    """The same body in one message, refused as soon as it is known to be too large or too slow."""
    most, seconds = settings.limits.body_bytes, settings.body_timeout
    asked = False

    async def next_message() -> Message:
        nonlocal asked
        if asked:
            return await receive()
        asked = True
        said = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        too_large = said.isdigit() and int(said) > most
        body, more = bytearray(), True
        closes = {"Connection": "close"}  # what is left of it is not read
        try:
            async with asyncio.timeout(seconds):
                while more and not too_large:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(499, "gone", "whoever asked went away before the end of the body")
                    body += message.get("body", b"")
                    more, too_large = message.get("more_body", False), len(body) > most
        except TimeoutError:
            raise Refusal(408, "slow_body", f"the body was not there within {seconds:g} s", headers=closes) from None
        if too_large:
            reason = f"the body has more than {most:,} bytes; send fewer texts at once"
            raise Refusal(413, "body_too_large", reason, headers=closes)
        return {"type": "http.request", "body": bytes(body)}

    return next_message


def create_app(classifier: Classifier, settings: ServiceSettings | None = None, metrics: Metrics | None = None) -> App:
    """The application of a loaded classifier, which from now on belongs to it alone."""
    settings = settings or ServiceSettings()
    service = Service(classifier, settings, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if not service.ready:  # else whoever runs the application has started it
            await service.start()
        yield
        await service.stop()

    app = App(
        title="umpteen",
        description="Text in, the right few out of umpteen labels.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # theirs load scripts from elsewhere; ours does not
        redoc_url=None,
    )
    app.state.service = service
    predict = add_predict(app, service)
    add_explain(app, service)
    add_labels(app, service)
    if settings.token is not None:
        add_editing(app, service, settings.token)
    add_about(app, service)
    add_pages(app)
    if settings.cors:
        allowed: dict[str, Any] = {"allow_headers": ["Authorization", "Content-Type"], "allow_origins": settings.cors}
        app.add_middleware(CORSMiddleware, allow_methods=["GET", "POST", "PATCH", "DELETE"], **allowed)
    else:  # answers to other origins carry headers that only the middleware for them knows
        app.straight = predict
    known = (HTTPException, RequestValidationError, ValidationError, UmpteenError, MemoryError, RuntimeError)
    for kind in (*known, Exception):  # of the last, the framework would send an answer of its own
        app.add_exception_handler(kind, _refuse)
    write_in_limits(app.openapi(), settings.limits)
    return app


async def _refuse(request: Request, problem: Exception) -> Response:
    refusal = refusal_of(problem)
    if refusal is None:
        raise problem
    path, app = request.url.path, request.app
    if refusal.status_code == 405 and path.startswith("/labels") and not app.state.service.settings.editable:
        refusal = Refusal(404, "not_found", "labels cannot be changed: the service was started without a token")
    elif refusal.status_code == 405:  # the framework knows the methods of one of this address's routes
        routes = (route for route in app.router.routes if isinstance(route, Route) and route.path_regex.match(path))
        refusal.headers = {"Allow": ", ".join(sorted({method for route in routes for method in route.methods or ()}))}
    return refusal.response()
