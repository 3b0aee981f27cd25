"""What goes over the wire, as the OpenAPI document shows it. Types are strict: the number 5 is not the text "5"."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from umpteen.model.changes import LONGEST_KEY, LONGEST_TEXT, NO_PART_OF_A_TEXT, UNSEEN
from umpteen.service.settings import Limits


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is the integer 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Version = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class Message(BaseModel):
    """A request; fields it does not know are refused."""

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


class NewLabel(Message):
    key: str = Field(
        min_length=1, description="Never given to another label; no slashes, no control characters, in NFC."
    )
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


class ListedLabel(BaseModel):
    key: str
    text: str
    origin: Literal["trained", "added", "renamed"]
    retired: bool


class LabelPage(BaseModel):
    version: int
    total: int = Field(description="Labels there are, searched for or not.")
    labels: list[ListedLabel]


class VersionLine(BaseModel):
    version: int
    time: str
    added: int
    renamed: int
    retired: int
    note: str


class History(BaseModel):
    version: int
    versions: list[VersionLine] = Field(description="Newest first.")


class IndexAbout(BaseModel):
    kind: str
    certificate: dict[str, Any] | None
    away: str | None = Field(description="Why exact search stands in for it, if it cannot be reached.")


class ModelAbout(BaseModel):
    name: str
    labels: int
    dimension: int
    encoder: str
    version: int
    calibrated: bool
    ranker: bool
    index: IndexAbout
    editable: bool
    limits: dict[str, int]
    timeouts: dict[str, float] = Field(description="Seconds until an `answer`, and until a `change` is made.")


class Figure(BaseModel):
    name: str
    url: str


class ReportAbout(BaseModel):
    report: dict[str, Any] | None
    data: dict[str, Any] = Field(description="What the model was trained on.")
    training: dict[str, Any]
    calibration: dict[str, Any] | None
    certificate: dict[str, Any] | None
    figures: list[Figure]


class Health(BaseModel):
    status: Literal["ok"]


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


# As catalogue/changes.py checks: keys have no slashes, nothing unseen and no blanks around them; texts are not blank.
_KEY = rf"^[^\s/{UNSEEN}]([^/{UNSEEN}]*[^\s/{UNSEEN}])?$"
_TEXT = rf"^[^{NO_PART_OF_A_TEXT}]*[^\s{NO_PART_OF_A_TEXT}][^{NO_PART_OF_A_TEXT}]*$"


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
    if "AddLabels" in schemas:
        schemas["NewLabel"]["properties"]["key"].update(maxLength=LONGEST_KEY, pattern=_KEY)
        for name in ("NewLabel", "RenameLabel"):
            schemas[name]["properties"]["text"].update(maxLength=LONGEST_TEXT, pattern=_TEXT)
        schemas["AddLabels"]["properties"]["labels"]["maxItems"] = limits.labels
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which ours replace
        schemas.pop(unused, None)
