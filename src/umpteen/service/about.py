"""GET /model, /report and its figures, /health, /ready, /metrics: what the service says about itself."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from umpteen.model.classifier import Classifier
from umpteen.model.folder import CALIBRATION, INDEX
from umpteen.model.index import CERTIFICATE
from umpteen.service.metrics import CONTENT_TYPE
from umpteen.service.refusals import Refusal
from umpteen.service.schemas import Figure, Health, IndexAbout, ModelAbout, ReportAbout, errors
from umpteen.service.service import Service

FIGURE_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
# A figure is a picture: whatever stands in an SVG file, nothing in it runs.
_FIGURE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_about(app: FastAPI, service: Service) -> None:
    """Adds the routes."""
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
            index=IndexAbout(kind=kind, certificate=_read(classifier, INDEX, CERTIFICATE), away=service.index_away()),
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
            figures=[Figure(name=name, url=f"/report/figures/{name}") for name in figures(classifier)],
        )

    @app.get(
        "/report/figures/{name}",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in FIGURE_TYPES.values()}}, **errors(404, 422)},
        summary="A figure of the report",
    )
    async def figure(name: str) -> Response:
        found = figures(classifier).get(name)
        picture = None if found is None else classifier.part_file(*found)
        if found is None or picture is None:
            raise Refusal(404, "unknown_figure", "there is no such figure; GET /report lists them", field="name")
        return Response(picture, media_type=FIGURE_TYPES[Path(name).suffix], headers=_FIGURE_HEADERS)

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


def figures(classifier: Classifier) -> dict[str, tuple[str, str]]:
    """The pictures of the parts in use by name, as part and file; only these can be asked for."""
    return {
        file: (name, file)
        for name, part in classifier.parts.items()
        for file in part.files
        if Path(file).suffix in FIGURE_TYPES and "/" not in file
    }


def _read(classifier: Classifier, part: str, file: str) -> dict[str, Any] | None:
    written = classifier.part_file(part, file)
    try:
        content = None if written is None else json.loads(written)
    except (ValueError, RecursionError):  # whoever made the model
        return None
    return content if isinstance(content, dict) else None
