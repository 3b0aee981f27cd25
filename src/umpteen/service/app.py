"""A classifier as an ASGI application: every route, every error in one form, the start and the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from umpteen.errors import UmpteenError
from umpteen.model.classifier import Classifier
from umpteen.service.about import add_about
from umpteen.service.labels import add_editing, add_labels
from umpteen.service.limits import Front
from umpteen.service.metrics import Metrics
from umpteen.service.pages import add_page, add_reference
from umpteen.service.predict import add_predict
from umpteen.service.refusals import Refusal, refusal_of
from umpteen.service.schemas import write_in_limits
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings
from umpteen.version import __version__

NO_DOCS: dict[str, Any] = {"docs_url": None, "redoc_url": None}  # theirs load scripts from elsewhere; ours does not
ABOUT = "Text in, the right few out of umpteen labels."


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

    app = FastAPI(title="umpteen", description=ABOUT, version=__version__, lifespan=lifespan, **NO_DOCS)
    app.state.service = service
    predict = add_predict(app, service)
    add_labels(app, service)
    if settings.token is not None:
        add_editing(app, service, settings.token)
    add_about(app, service)
    add_reference(app)
    add_page(app)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    # Answers to other origins carry headers that only the middleware for them knows.
    app.add_middleware(Front, service=service, straight=None if settings.cors else predict)
    _answer_errors(app, settings)
    _document(app, settings)
    return app


def _answer_errors(app: FastAPI, settings: ServiceSettings) -> None:
    async def refuse(request: Request, problem: Exception) -> Response:
        refusal = refusal_of(problem)
        if refusal is None:
            raise problem
        if refusal.status_code == 405:
            refusal = _wrong_method(refusal, request.url.path, app, settings)
        return Response(refusal.body(), refusal.status_code, refusal.headers, media_type="application/json")

    for kind in (HTTPException, RequestValidationError, UmpteenError, MemoryError, RuntimeError):
        app.add_exception_handler(kind, refuse)


def _wrong_method(refusal: Refusal, path: str, app: FastAPI, settings: ServiceSettings) -> Refusal:
    """With the methods of all routes of this address; the framework knows those of one of them."""
    if path.startswith("/labels") and not settings.editable:
        return Refusal(404, "not_found", "labels cannot be changed: the service was started without a token")
    routes = (route for route in app.router.routes if isinstance(route, Route) and route.path_regex.match(path))
    methods = {method for route in routes for method in route.methods or ()}
    return Refusal(405, refusal.code, refusal.reason, headers={"Allow": ", ".join(sorted(methods))})


def _document(app: FastAPI, settings: ServiceSettings) -> None:
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            write_in_limits(made(), settings.limits)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
