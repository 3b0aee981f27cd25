"""What goes over the wire, as the OpenAPI document shows it: requests, answers, and why a request gets none."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.model.changes import LONGEST_KEY, LONGEST_TEXT, MOST_KEYS, NO_PART_OF_A_TEXT, UNSEEN, VersionSummary
from umpteen.service.settings import Limits


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is the integer 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# As model/changes.py checks: keys have no slashes, nothing unseen and no blanks around them; texts are not blank.
_KEY = rf"^[^\s/{UNSEEN}]([^/{UNSEEN}]*[^\s/{UNSEEN}])?$"
_TEXT = rf"^[^{NO_PART_OF_A_TEXT}]*[^\s{NO_PART_OF_A_TEXT}][^{NO_PART_OF_A_TEXT}]*$"

Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Version = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Key = Annotated[str, Field(min_length=1, json_schema_extra={"maxLength": LONGEST_KEY, "pattern": _KEY})]
Text = Annotated[
    str, Field(min_length=1, pattern=r"\S", json_schema_extra={"maxLength": LONGEST_TEXT, "pattern": _TEXT})
]


class Message(BaseModel):
    """A request; fields it does not know are refused, and the number 5 is not the text "5"."""

    model_config = ConfigDict(strict=True, extra="forbid")


class PredictRequest(Message):
    """One text or several, and how many labels of each are wanted."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["text"]}, {"required": ["texts"]}],
            "examples": [{"text": "a small dog with a curly tail", "k": 5}],
        }
    )

    text: str = Field(default="", description="A text; or give `texts`.")
    texts: list[str] = Field(default_factory=list, description="Several texts, answered in their order.")
    k: Count = Field(default=5, description="Labels of each text; fewer come if there are fewer.")
    min_probability: float = Field(default=0.0, ge=0, le=1, description="Only labels at least so probable.")
    precision: float = Field(default=0.0, ge=0, le=1, description="Only labels that are right this often.")
    rule: Literal["", "f1", "coverage"] = Field(
        default="", description="As many labels as was found best on held-out texts: for F1, or to hold the right ones."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> "PredictRequest":
        given = self.model_fields_set
        if ("text" in given) == ("texts" in given):
            raise ValueError("give either `text` or `texts`")
        return self


class Label(BaseModel):
    key: str
    text: str
    score: float
    probability: float | None = Field(description="None if the model is not calibrated.")


class Answer(BaseModel):
    labels: list[Label] = Field(description="Best first.")


class PredictResponse(BaseModel):
    version: int = Field(description="The version of the labels that answered.")
    results: list[Answer] = Field(description="One for each text.")


class ExplainRequest(Message):
    """A text and a label; whether the text gets it or not."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "a small dog with a curly tail", "key": "dog"}]})

    text: str
    key: str = Field(min_length=1)


class NewLabel(Message):
    key: Key = Field(description="Never given to another label; no slashes, no control characters, in NFC.")
    text: Text


class AddLabels(Message):
    labels: list[NewLabel] = Field(min_length=1)


class RenameLabel(Message):
    text: Text


class UndoLabels(Message):
    to_version: Version | None = Field(
        default=None, description="The labels become as they were then. Default: the version before this."
    )


class Changed(BaseModel):
    version: int = Field(description="The new version; it is on the disk.")


class NewExample(Message):
    text: Text
    labels: list[str] = Field(default_factory=list, max_length=MOST_KEYS, description="Keys of labels that are right.")
    wrong: list[str] = Field(default_factory=list, max_length=MOST_KEYS, description="Keys of some that are wrong.")


class LearnExamples(Message):
    examples: list[NewExample] = Field(min_length=1)
    note: str = Field(default="", max_length=1000, description="A line for whoever lists them.")


class Learnt(BaseModel):
    learnt: int
    count: int = Field(description="Examples in all; they are on the disk.")


class Undone(BaseModel):
    undone: int
    count: int = Field(description="Examples that are left.")


class LearntExample(BaseModel):
    text: str
    labels: list[str]
    wrong: list[str]
    time: str
    note: str


class Examples(BaseModel):
    count: int = Field(description="Examples there are, shown or not.")
    examples: list[LearntExample] = Field(description="Newest first.")


class ListedLabel(BaseModel):
    key: str
    text: str
    origin: Literal["trained", "added", "renamed"]
    retired: bool
    texts: int | None = Field(description="Training texts that have it; None if the model has no ranker that counted.")


class LabelPage(BaseModel):
    version: int
    total: int = Field(description="Labels there are, searched for or not.")
    labels: list[ListedLabel]


class LabelTexts(BaseModel):
    texts: list[str]


class History(BaseModel):
    version: int
    versions: list[VersionSummary] = Field(description="Newest first.")


class IndexAbout(BaseModel):
    kind: str
    certificate: dict[str, Any] | None
    away: str | None = Field(description="Why exact search stands in for it, if it cannot be reached.")


class ModelAbout(BaseModel):
    name: str
    labels: int
    dimension: int
    encoder: str
    runtime: dict[str, Any] | None = Field(description="What was measured of what encodes, if that is not torch.")
    version: int
    calibrated: bool
    ranker: bool
    index: IndexAbout
    editable: bool
    limits: dict[str, int]
    timeouts: dict[str, float] = Field(description="Seconds until an `answer`, and until a `change` is made.")


class ReportAbout(BaseModel):
    report: dict[str, Any] | None
    data: dict[str, Any] = Field(description="What the model was trained on.")
    training: dict[str, Any]
    calibration: dict[str, Any] | None
    certificate: dict[str, Any] | None


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Refused(BaseModel):
    code: str
    reason: str
    field: str | None = None


class ErrorResponse(BaseModel):
    error: Refused


_MEANINGS = {
    400: "The body is not JSON, or the host is none of the service's.",
    401: "The token is missing or wrong.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "It contradicts the labels there are, or what the model can do.",
    413: "The body is too large.",
    422: "The message is understood but cannot be used; `field` says where.",
    429: "Too much is waiting; Retry-After says when to come back.",
    503: "It cannot be done now; `reason` says why.",
    504: "It took too long.",
}


ASKED = (404, 422, 429, 503, 504)  # why whoever asks may get none
SENT = (400, 408, 409, 413, *ASKED)  # and whoever sends a body


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These answers for the document."""
    return {status: {"model": ErrorResponse, "description": _MEANINGS[status]} for status in sorted(statuses)}


def write_in_limits(document: dict[str, Any], limits: Limits) -> None:
    """What a request may be at most, where a reader or a generator of requests looks for it."""
    schemas = document["components"]["schemas"]
    asked = schemas["PredictRequest"]["properties"]
    text = {"type": "string", "minLength": 1, "maxLength": limits.text_characters, "pattern": r"\S"}
    asked["text"].update(text)
    asked["text"].pop("default", None)
    asked["texts"].update(items=text, minItems=1, maxItems=limits.texts)
    asked["k"]["maximum"] = limits.k
    schemas["ExplainRequest"]["properties"]["text"].update(text)
    if "AddLabels" in schemas:
        schemas["AddLabels"]["properties"]["labels"]["maxItems"] = limits.labels
        schemas["LearnExamples"]["properties"]["examples"]["maxItems"] = limits.labels


class Refusal(HTTPException):
    """A request that gets no answer but a status, a code for programs and a reason for people."""

    def __init__(
        self, status: int, code: str, reason: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail=reason, headers=headers)
        self.told = Refused(code=code, reason=reason, field=field)

    def response(self) -> Response:
        """{"error": {"code": "unknown_key", "reason": "there is no label with the key 'tea'", "field": "key"}}"""
        # The standard library's: a reason may name a path that is not UTF-8.
        body = json.dumps(ErrorResponse(error=self.told).model_dump(exclude_none=True))
        return Response(body, self.status_code, self.headers, media_type="application/json")


def at_most(value: int, limit: int, field: str, what: str) -> None:
    if value > limit:
        raise Refusal(422, "over_limit", f"{field}: {value:,} {what}, {limit:,} are the most", field=field)


def too_busy(reason: str) -> Refusal:
    """There is more to do than the limits let wait."""
    return Refusal(429, "too_busy", f"{reason}; ask again in a moment", headers={"Retry-After": "1"})


_KNOWN = ((NotSaved, 503, "not_saved"), (DamagedModel, 503, "damaged_model"), (BadInput, 422, "bad_input"))


def refusal_of(problem: Exception) -> Refusal | None:
    """What a known problem means to whoever asked; None for one that nobody foresaw."""
    if isinstance(problem, Refusal):
        return problem
    if isinstance(problem, HTTPException):
        code, reason = {
            400: ("malformed_json", "the body is not JSON"),
            404: ("not_found", "there is nothing at this address; GET /docs lists what there is"),
            405: ("method_not_allowed", "this address does not take this method; GET /docs lists what there is"),
        }.get(problem.status_code, ("refused", str(problem.detail)))
        return Refusal(problem.status_code, code, reason, headers=problem.headers)
    if isinstance(problem, RequestValidationError | ValidationError):
        return _of_validation(problem)
    for kind, status, code in _KNOWN:
        if isinstance(problem, kind):
            return Refusal(status, code, str(problem))
    if isinstance(problem, MemoryError | RuntimeError):
        from umpteen.parallel.world import is_out_of_memory  # here: who watches the workers must not load torch

        if is_out_of_memory(problem):
            reason = "the service has not enough memory for this request; ask for less at once"
            return Refusal(503, "out_of_memory", reason)
    return None


def _of_validation(problem: RequestValidationError | ValidationError) -> Refusal:
    """The first thing that is wrong with a message, and where."""
    first = problem.errors()[0]
    where = [part for part in first["loc"] if part not in ("body", "query", "path", "header")]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".") or None
    told = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return Refusal(400, "malformed_json", f"the body is not JSON: {first.get('ctx', {}).get('error', told)}")
    if first["type"] == "extra_forbidden":
        told = "there is no such field"
    return Refusal(422, "wrong_message", f"{field}: {told}" if field else told, field=field)
