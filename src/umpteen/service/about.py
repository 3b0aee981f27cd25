"""GET /model, /report and its figures, /health, /ready, /metrics: what the service says about itself."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from umpteen.service.documentation import errors
from umpteen.service.messages import Figure, Health, IndexAbout, ModelAbout, ReportAbout
from umpteen.service.metrics import CONTENT_TYPE
from umpteen.service.refusals import Refusal
from umpteen.service.service import Service

FIGURE_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
_PARTS_WITH_FIGURES = ("calibration", "index", "figures")
# A figure is a picture: whatever stands in an SVG file, nothing in it runs.
_FIGURE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_about(app: FastAPI, service: Service) -> None:
    """Adds the routes."""
    classifier, settings = service.classifier, service.settings
    folder = classifier.path

    @app.get("/model", summary="The model and the limits of its service")
    async def model() -> ModelAbout:
        kind, certificate = classifier.index.kind, _read(folder, "index/certificate.json")
        if certificate is not None and certificate.get("kind") != kind:
            certificate = None  # of an index that is not in use: not yet, or one that cannot be used
        return ModelAbout(
            name=folder.resolve().name if folder is not None else str(classifier.data.get("name", "model")),
            labels=classifier.labels.count(),
            dimension=classifier.towers.dimension,
            encoder=classifier.towers.describe(),
            version=classifier.version,
            calibrated=classifier.calibration is not None,
            ranker=classifier.has_ranker,
            index=IndexAbout(kind=kind, certificate=certificate, away=service.index_away()),
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
            calibration=_read(folder, "calibration/calibration.json"),
            certificate=_read(folder, "index/certificate.json"),
            figures=[Figure(name=name, url=f"/report/figures/{name}") for name in figures(folder)],
        )

    @app.get(
        "/report/figures/{name}",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in FIGURE_TYPES.values()}}, **errors(404, 422)},
        summary="A figure of the report",
    )
    async def figure(name: str) -> Response:
        found = figures(folder).get(name)
        picture = None if found is None else _content(found)
        if found is None or picture is None:
            raise Refusal(404, "unknown_figure", "there is no such figure; GET /report lists them", field="name")
        return Response(picture, media_type=FIGURE_TYPES[found.suffix], headers=_FIGURE_HEADERS)

    @app.get("/health", summary="The process lives")
    async def health() -> Health:
        return Health(status="ok")

    @app.get("/ready", responses=errors(503), summary="The model is loaded and answers")
    async def ready() -> Health:
        if not service.ready:
            raise Refusal(503, "not_ready", "the service starts or ends")
        return Health(status="ok")

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Counters for Prometheus",
    )
    async def metrics() -> Response:
        service.show_labels()
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def figures(folder: Path | None) -> dict[str, Path]:
    """The pictures of a model folder by name; only these can be asked for."""
    if folder is None:
        return {}
    found: list[Path] = []
    for part in _PARTS_WITH_FIGURES:
        with suppress(FileNotFoundError, NotADirectoryError):
            found += (folder / part).iterdir()
    return {file.name: file for file in sorted(found) if file.suffix in FIGURE_TYPES and file.is_file()}


def _read(folder: Path | None, name: str) -> dict[str, Any] | None:
    written = None if folder is None else _content(folder / name)
    content = None if written is None else json.loads(written)
    return content if isinstance(content, dict) else None


def _content(file: Path) -> bytes | None:
    """None if it is not there, or no more: other processes exchange parts of a model folder."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
