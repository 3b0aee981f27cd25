"""The OpenAPI document is true: generated requests, good and bad, get only answers that it documents."""

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from service_cases import AUTHORISED, TOKEN, tiny_model

from umpteen.model.classifier import Classifier
from umpteen.service.app import create_app
from umpteen.service.settings import Limits, ServiceSettings

SMALL = ServiceSettings(token=TOKEN, limits=Limits(texts=3, text_characters=40, k=20, labels=3))

OPERATIONS = [
    ("POST", "/predict"),
    ("POST", "/explain"),
    ("GET", "/labels"),
    ("POST", "/labels"),
    ("POST", "/labels/undo"),
    ("PATCH", "/labels/{key}"),
    ("DELETE", "/labels/{key}"),
    ("GET", "/labels/texts"),
    ("GET", "/labels/history"),
    ("GET", "/examples"),
    ("POST", "/examples"),
    ("POST", "/examples/undo"),
    ("GET", "/model"),
    ("GET", "/report"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    app = create_app(Classifier.load(tiny_model(tmp_path_factory.mktemp("openapi"))), SMALL)
    app.state.service.ready = True  # each generated request has an event loop of its own, and no start
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def test_these_are_all_operations(schema: Any) -> None:
    documented = [operation.ok() for operation in schema.get_all_operations()]
    assert sorted((one.method.upper(), one.path) for one in documented) == sorted(OPERATIONS)


CAN_BE_WRONG = [one for one in OPERATIONS if one[0] in ("POST", "PATCH") or one[1].startswith("/labels")]
CAN_BE_WRONG.remove(("DELETE", "/labels/{key}"))  # whatever is not a key is a key that nobody has
CAN_BE_WRONG.remove(("POST", "/examples/undo"))  # nothing can be said with it
GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("method", "path", "mode"), [(*one, GOOD) for one in OPERATIONS] + [(*one, BAD) for one in CAN_BE_WRONG]
)
def test_every_answer_is_documented(schema: Any, method: str, path: str, mode: GenerationMode) -> None:
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def answered(case: Case) -> None:
        case.call_and_validate(headers=AUTHORISED)

    answered()


def test_the_document_says_what_a_label_s_text_may_be(schema: Any) -> None:
    schemas = schema.raw_schema["components"]["schemas"]
    for name in ("NewLabel", "RenameLabel"):
        text = schemas[name]["properties"]["text"]
        assert text["maxLength"] == 10_000
        assert re.search(text["pattern"], "two\nlines") and not re.search(text["pattern"], "x\x1b")
    assert not re.search(schemas["NewLabel"]["properties"]["key"]["pattern"], "a\u202eb")
