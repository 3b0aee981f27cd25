"""POST /predict: the one route that has to be fast, so it is documented by FastAPI but answers by itself."""

from typing import NamedTuple

import numpy as np
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from umpteen.errors import BadInput
from umpteen.service.batching import AnswerWriter
from umpteen.service.limits import check_answers, read_body, send_json, texts_of
from umpteen.service.log import shortened
from umpteen.service.refusals import Refusal, refusal_of
from umpteen.service.schemas import PredictRequest, PredictResponse, errors
from umpteen.service.service import Service


def add_predict(app: FastAPI, service: Service) -> Route:
    """Adds the route, and returns it."""
    writer = AnswerWriter()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        message = _message(await read_body(receive))
        texts = texts_of(message, service.settings.limits)
        scope["umpteen.about"] = {"texts": len(texts), "k": message.k}
        if service.settings.log_texts:
            scope["umpteen.about"]["asked"] = shortened(texts)
        wanted = _wanted(message, service)
        check_answers(len(texts), wanted.k, service.settings.limits)
        found = await service.batcher.predict(texts, wanted.k, receive)
        await send_json(send, writer.write(found, wanted.least))

    @app.post(
        "/predict",
        response_model=PredictResponse,
        responses=errors(400, 408, 409, 413, 422, 429, 503, 504),
        summary="The best labels of one or many texts",
    )
    async def predict(message: PredictRequest) -> None:
        """Texts that come at the same time, from whomever, are encoded together."""

    route = next(route for route in app.router.routes if isinstance(route, Route) and route.path == "/predict")
    route.app = answer
    return route


def _message(body: bytes) -> PredictRequest:
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as problem:
        raise refusal_of(problem) or problem from None


class _Wanted(NamedTuple):
    """How many labels of a text, and how probable they have to be."""

    k: int
    least: float


def _wanted(message: PredictRequest, service: Service) -> _Wanted:
    field = next((name for name in ("rule", "precision", "min_probability") if getattr(message, name)), None)
    if field is None:
        return _Wanted(message.k, 0.0)
    calibration = service.classifier.calibration
    if calibration is None:
        reason = f"{field}: the model gives no probabilities yet; `umpteen calibrate` fits them"
        raise Refusal(409, "not_calibrated", reason, field=field)
    try:
        line = calibration.line(
            min_probability=message.min_probability, precision=message.precision or None, rule=message.rule or None
        )
    except BadInput as problem:
        raise Refusal(409, "unreachable", str(problem), field=field) from problem
    most = line.at_most or message.k
    k = min(most, message.k if "k" in message.model_fields_set else service.settings.limits.k)
    return _Wanted(k, float(np.float32(line.least)))
