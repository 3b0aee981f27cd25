"""A classifier as an ASGI application: every route, every error in one form, the start and the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from umpteen.errors import UmpteenError
from umpteen.model.classifier import Classifier
from umpteen.service.labels import add_editing, add_labels
from umpteen.service.limits import Front
from umpteen.service.metrics import Metrics
from umpteen.service.pages import add_about, add_pages
from umpteen.service.predict import add_predict
from umpteen.service.schemas import Refusal, refusal_of, write_in_limits
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings
from umpteen.version import __version__


class App(FastAPI):
    """Answers `straight`, a method and a path, past the framework, which would take longer than the answer."""

    straight: tuple[str, str, ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.straight and (scope["method"], scope["path"]) == self.straight[:2]:
            await self.straight[2](scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    classifier: Classifier, settings: ServiceSettings | None = None, metrics: Metrics | None = None
) -> FastAPI:
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
    add_labels(app, service)
    if settings.token is not None:
        add_editing(app, service, settings.token)
    add_about(app, service)
    add_pages(app)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    else:  # answers to other origins carry headers that only the middleware for them knows
        app.straight = "POST", predict.path, Front(predict.app, service, predict)
    app.add_middleware(Front, service=service)
    for kind in (HTTPException, RequestValidationError, ValidationError, UmpteenError, MemoryError, RuntimeError):
        app.add_exception_handler(kind, _refuse)
    write_in_limits(app.openapi(), settings.limits)
    return app


async def _refuse(request: Request, problem: Exception) -> Response:
    refusal = refusal_of(problem)
    if refusal is None:
        raise problem
    if refusal.status_code == 405:
        refusal = _wrong_method(refusal, request.url.path, request.app)
    return refusal.response()


def _wrong_method(refusal: Refusal, path: str, app: FastAPI) -> Refusal:
    """With the methods of all routes of this address; the framework knows those of one of them."""
    if path.startswith("/labels") and not app.state.service.settings.editable:
        return Refusal(404, "not_found", "labels cannot be changed: the service was started without a token")
    routes = (route for route in app.router.routes if isinstance(route, Route) and route.path_regex.match(path))
    refusal.headers = {"Allow": ", ".join(sorted({method for route in routes for method in route.methods or ()}))}
    return refusal
