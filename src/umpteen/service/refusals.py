"""Why a request is not answered: a status, a code for programs and a reason for people.

{"error": {"code": "unknown_key", "reason": "there is no label with the key 'tea'", "field": "key"}}
"""

import json
from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.training.memory import is_out_of_memory


class Refusal(HTTPException):
    """A request that gets no answer but a reason."""

    def __init__(
        self,
        status: int,
        code: str,
        reason: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail=reason, headers=headers)
        self.code = code
        self.reason = reason
        self.field = field

    def body(self) -> bytes:
        """The message that carries it."""
        told = {"code": self.code, "reason": self.reason, **({} if self.field is None else {"field": self.field})}
        return json.dumps({"error": told}).encode()


def too_busy(reason: str) -> Refusal:
    """There is more to do than the limits let wait."""
    return Refusal(429, "too_busy", reason, headers={"Retry-After": "1"})


def locked_out(reason: str) -> Refusal:
    """Another process is at the labels, perhaps for a while."""
    return Refusal(503, "locked", reason, headers={"Retry-After": "5"})


def refusal_of(problem: Exception) -> Refusal | None:
    """What a known problem means to whoever asked; None for one that nobody foresaw."""
    if isinstance(problem, Refusal):
        return problem
    if isinstance(problem, HTTPException):
        return _of_framework(problem)
    if isinstance(problem, RequestValidationError | ValidationError):
        return _of_validation(problem)
    if isinstance(problem, NotSaved):
        return Refusal(503, "not_saved", str(problem))
    if isinstance(problem, DamagedModel):
        return Refusal(503, "damaged_model", str(problem))
    if isinstance(problem, BadInput):
        return Refusal(422, "bad_input", str(problem))
    if isinstance(problem, MemoryError | RuntimeError) and is_out_of_memory(problem):
        return Refusal(503, "out_of_memory", "the service has not enough memory for this request; ask for less at once")
    return None


def unforeseen() -> Refusal:
    """An error of ours; what it was stands in the log, not in the answer."""
    return Refusal(500, "internal", "the service failed on this request; its log tells where")


def _of_framework(problem: HTTPException) -> Refusal:
    code, reason = {
        400: ("malformed_json", "the body is not JSON"),
        404: ("not_found", "there is nothing at this address; GET /docs lists what there is"),
        405: ("method_not_allowed", "this address does not take this method; GET /docs lists what there is"),
    }.get(problem.status_code, ("refused", str(problem.detail)))
    return Refusal(problem.status_code, code, reason, headers=problem.headers)


def _of_validation(problem: RequestValidationError | ValidationError) -> Refusal:
    """The first thing that is wrong with a message, and where."""
    first = problem.errors()[0]
    where = [part for part in first["loc"] if part not in ("body", "query", "path", "header")]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".") or None
    told = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", told)
        return Refusal(400, "malformed_json", f"the body is not JSON: {why}")
    if first["type"] == "extra_forbidden":
        told = "there is no such field"
    return Refusal(422, "wrong_message", f"{field}: {told}" if field else told, field=field)
