"""What goes over the wire, as the OpenAPI document shows it. Types are strict: the number 5 is not the text "5"."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


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
