"""POST /predict, the one route that has to be fast, so it is documented by FastAPI but answers by itself; /explain."""

from functools import lru_cache

import numpy as np
import orjson
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from umpteen.errors import BadInput
from umpteen.model.explain import Explanation
from umpteen.search.ranking import NO_LABEL
from umpteen.service.batching import Found
from umpteen.service.schemas import SENT, ExplainRequest, PredictRequest, PredictResponse, Refusal, at_most, errors
from umpteen.service.service import Service
from umpteen.service.settings import Limits

JSON = (b"content-type", b"application/json")
_LOGGED = 200  # characters of each text, in a log that was asked to hold them
_MOST_KEPT = 50_000  # labels, some 10 MB


def add_predict(app: FastAPI, service: Service) -> Route:
    limits, log_texts = service.settings.limits, service.settings.log_texts
    labels = service.classifier.labels

    @lru_cache(_MOST_KEPT)
    def label(row: int) -> dict[str, str]:
        """Kept: reading keys and texts of labels would take longer than all else."""
        return {"key": labels.keys[row], "text": labels.texts[row]}

    def written(found: Found, least: float) -> bytes:
        """The body of an answer, without labels that are less probable than this."""
        nonlocal labels
        if found.labels is not labels:
            labels = found.labels
            label.cache_clear()
        results = []
        for text in found.texts:
            kept = [one for one in text if one[0] != NO_LABEL and (one[2] is None or one[2] >= least)]
            shown = [{**label(row), "score": score, "probability": probability} for row, score, probability in kept]
            results.append({"labels": shown})
        return orjson.dumps({"version": labels.version, "results": results})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        message = PredictRequest.model_validate_json((await receive())["body"])
        texts = _texts_of(message, limits)
        scope["umpteen.about"] = {"texts": len(texts), "k": message.k}
        if log_texts:
            scope["umpteen.about"]["asked"] = [text[:_LOGGED] for text in texts]
        k, least = _wanted(message, service)
        if len(texts) > 1:
            at_most(len(texts) * k, limits.answers, "texts", "labels in an answer (texts × k)")
        body = written(await service.batcher.predict(texts, k, receive), least)
        headers = [JSON, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    about = "The best labels of one or many texts"

    @app.post("/predict", response_model=PredictResponse, responses=errors(*SENT), summary=about)
    async def predict(message: PredictRequest) -> None:
        """Texts that come at the same time, from whomever, are encoded together."""

    route = next(route for route in app.router.routes if isinstance(route, Route) and route.path == "/predict")
    route.app = answer
    return route


def _texts_of(message: PredictRequest, limits: Limits) -> list[str]:
    single = "text" in message.model_fields_set
    texts = [message.text] if single else message.texts
    at_most(message.k, limits.k, "k", "labels of a text")
    at_most(len(texts), limits.texts, "texts", "texts at once")
    if not texts:
        raise Refusal(422, "no_texts", "texts is empty; give at least one text", field="texts")
    for place, text in enumerate(texts):
        _check_text("text" if single else f"texts[{place}]", text, limits)
    if not single:
        at_most(sum(map(len, texts)), limits.characters, "texts", "characters in all texts of a request")
    return texts


def _check_text(name: str, text: str, limits: Limits) -> None:
    if not text.strip():
        raise Refusal(422, "empty_text", f"{name} is empty; leave it out or give it words", field=name)
    at_most(len(text), limits.text_characters, name, "characters in a text")


def add_explain(app: FastAPI, service: Service) -> None:
    classifier = service.classifier

    @app.post("/explain", responses=errors(*SENT), summary="Why a text gets a label, or not")
    async def explain(message: ExplainRequest) -> Explanation:
        """The label's score as terms that add up, and the words, n-grams and training texts behind them."""
        _check_text("text", message.text, service.settings.limits)
        try:
            return await service.explain(lambda: classifier.explain(message.text, message.key))
        except BadInput as problem:
            if message.key in classifier.labels:
                raise
            raise Refusal(404, "unknown_key", str(problem), field="key") from problem


def _wanted(message: PredictRequest, service: Service) -> tuple[int, float]:
    """How many labels of a text, and how probable they have to be."""
    if not (message.rule or message.precision or message.min_probability):
        return message.k, 0.0
    field = next(name for name in ("rule", "precision", "min_probability") if getattr(message, name))
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
    most = message.k if "k" in message.model_fields_set else service.settings.limits.k
    return min(line.at_most or message.k, most), float(np.float32(line.least))
