"""What there is to look at: the page at / with its files, the routes at /docs, the model, its report, its health."""

import hashlib
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment
from prometheus_client import CONTENT_TYPE_LATEST

from umpteen.model.classifier import Classifier
from umpteen.model.folder import CALIBRATION, INDEX
from umpteen.model.index import CERTIFICATE
from umpteen.service.schemas import Figure, Health, IndexAbout, ModelAbout, Refusal, ReportAbout, errors
from umpteen.service.service import Service

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_FIGURES = (".svg", ".png")
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and sent again only if it has changed
}
# The reference and figures: whatever stands in an SVG file, nothing in it runs.
_STILL_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_pages(app: FastAPI) -> None:
    folder = resources.files("umpteen.service") / "page"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in _TYPES}
    marks = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in files.items()}  # the ETags

    @app.get("/", include_in_schema=False)
    @app.get("/page/{name:path}", include_in_schema=False)
    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise Refusal(404, "not_found", "there is no such page")
        headers = {**_PAGE_HEADERS, "ETag": marks[name]}
        if request.headers.get("if-none-match") == marks[name]:
            return Response(status_code=304, headers=headers)
        return Response(files[name], media_type=_TYPES[Path(name).suffix], headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference(app.openapi()), headers=_STILL_HEADERS)


def reference(document: dict[str, Any]) -> str:
    """The OpenAPI document as a page that loads nothing from elsewhere."""
    template = (resources.files("umpteen.service") / "reference.html").read_text(encoding="utf-8")

    def outline(schema: dict[str, Any]) -> str:
        return json.dumps(_outline(schema, document["components"]["schemas"]), indent=2, ensure_ascii=False)

    return Environment(autoescape=True).from_string(template).render(document, outline=outline)


def _outline(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """A schema as an example of itself, with types in place of values."""
    if "$ref" in schema:
        return _outline(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return " or ".join(str(_outline(one, schemas)) for one in schema["anyOf"])
    if schema.get("properties"):
        return {name: _outline(one, schemas) for name, one in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_outline(schema["items"], schemas)]
    return schema.get("type", "anything")


def add_about(app: FastAPI, service: Service) -> None:
    classifier, settings = service.classifier, service.settings

    @app.get("/model", summary="The model and the limits of its service")
    async def model() -> ModelAbout:
        path, kind = classifier.path, classifier.index.kind
        return ModelAbout(
            name=path.resolve().name if path is not None else str(classifier.data.get("name", "model")),
            labels=classifier.labels.count(),
            dimension=classifier.towers.dimension,
            encoder=classifier.towers.describe(),
            version=classifier.version,
            calibrated=classifier.calibration is not None,
            ranker=classifier.has_ranker,
            index=IndexAbout(kind=kind, certificate=_read(classifier, INDEX, CERTIFICATE), away=classifier.index.away),
            editable=settings.editable,
            limits=asdict(settings.limits),
            timeouts={"answer": settings.timeout, "change": settings.change_timeout},
        )

    @app.get("/report", summary="How good the model is")
    async def report() -> ReportAbout:
        return ReportAbout(
            report=classifier.report.to_dict() if classifier.report is not None else None,
            data=classifier.data,
            training=classifier.training,
            calibration=_read(classifier, CALIBRATION, "calibration.json"),
            certificate=_read(classifier, INDEX, CERTIFICATE),
            figures=[Figure(name=name, url=f"/report/figures/{name}") for name in _figures(classifier)],
        )

    @app.get(
        "/report/figures/{name}",
        response_class=Response,
        responses={200: {"content": {_TYPES[kind]: {} for kind in _FIGURES}}, **errors(404, 422)},
        summary="A figure of the report",
    )
    async def figure(name: str) -> Response:
        part = _figures(classifier).get(name)
        picture = None if part is None else classifier.part_file(part, name)
        if picture is None:
            raise Refusal(404, "unknown_figure", "there is no such figure; GET /report lists them", field="name")
        return Response(picture, media_type=_TYPES[Path(name).suffix], headers=_STILL_HEADERS)

    @app.get("/health", summary="The process lives")
    async def health() -> Health:
        return Health()

    @app.get("/ready", responses=errors(503), summary="The model is loaded and answers")
    async def ready() -> Health:
        if not service.ready:
            raise Refusal(503, "not_ready", "the service starts or ends")
        return Health()

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Counters for Prometheus",
    )
    async def metrics() -> Response:
        await service.metrics.tell()  # and hear what the others counted
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _figures(classifier: Classifier) -> dict[str, str]:
    """The pictures of the parts in use, and whose they are; only these can be asked for."""
    pairs = ((file, name) for name, part in classifier.parts.items() for file in part.files)
    return {file: name for file, name in pairs if Path(file).suffix in _FIGURES and "/" not in file}


def _read(classifier: Classifier, part: str, file: str) -> dict[str, Any] | None:
    written = classifier.part_file(part, file)
    try:
        content = None if written is None else json.loads(written)
    except (ValueError, RecursionError):  # whoever made the model
        return None
    return content if isinstance(content, dict) else None
