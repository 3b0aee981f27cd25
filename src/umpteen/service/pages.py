"""What there is to look at: the page at / and /docs with its files, the model, its report, its health."""

import hashlib
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from umpteen.model.classifier import Classifier
from umpteen.model.folder import CALIBRATION, INDEX
from umpteen.model.index import CERTIFICATE
from umpteen.service.schemas import Health, IndexAbout, ModelAbout, Refusal, ReportAbout, errors
from umpteen.service.service import Service

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and sent again only if it has changed
}


def add_pages(app: FastAPI) -> None:
    folder = resources.files("umpteen.service") / "page"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in _TYPES}
    marks = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in files.items()}  # the ETags

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    @app.get("/page/{name:path}", include_in_schema=False)
    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "docs.html" if request.url.path.endswith("/docs") else "index.html")
        if name not in files:
            raise Refusal(404, "not_found", "there is no such page")
        headers = {**_PAGE_HEADERS, "ETag": marks[name]}
        if request.headers.get("if-none-match") == marks[name]:
            return Response(status_code=304, headers=headers)
        return Response(files[name], media_type=_TYPES[Path(name).suffix], headers=headers)


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
            runtime=classifier.runtime,
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
        )

    @app.get("/health", summary="The process lives")
    async def health() -> Health:
        return Health()

    @app.get("/ready", responses=errors(503), summary="The model is loaded and answers")
    async def ready() -> Health:
        if not service.ready:
            raise Refusal(503, "not_ready", "the service starts or ends")
        return Health()

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @app.get("/metrics", response_class=Response, responses=text, summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _read(classifier: Classifier, part: str, file: str) -> dict[str, Any] | None:
    written = classifier.part_file(part, file)
    try:
        content = None if written is None else json.loads(written)
    except (ValueError, RecursionError):  # whoever made the model
        return None
    return content if isinstance(content, dict) else None
