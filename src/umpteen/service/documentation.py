"""The OpenAPI document: FastAPI's, with our errors and this service's limits written in; and a page that shows it."""

from typing import Any

from umpteen.catalogue.changes import LONGEST_KEY, LONGEST_TEXT, NO_PART_OF_A_TEXT, UNSEEN
from umpteen.service.messages import ErrorResponse
from umpteen.service.settings import Limits

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
