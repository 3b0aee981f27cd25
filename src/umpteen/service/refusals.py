"""Why a request is not answered (a status, a code, a reason), and who may ask."""

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated

from fastapi import Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.parallel.world import is_out_of_memory


# Why a request is not answered: a status, a code for programs and a reason for people.
#
# {"error": {"code": "unknown_key", "reason": "there is no label with the key 'tea'", "field": "key"}}
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


_bearer = HTTPBearer(auto_error=False, description="The token the service was started with.")


def holder_of(token: str) -> Callable[..., Awaitable[None]]:
    """A dependency that lets pass who sends `Authorization: Bearer` with the token; how long it looks tells nothing."""

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> None:
        if given is None or not hmac.compare_digest(given.credentials.encode("latin-1"), token.encode()):
            what = "no token was sent" if given is None else "the token is wrong"
            reason = f"{what}; send `Authorization: Bearer` with the token the service was started with"
            raise Refusal(401, "unauthorized", reason, headers={"WWW-Authenticate": "Bearer"})

    return check


def asked_by_name(names: Iterable[str]) -> Callable[[Scope], None]:
    """A check that lets pass requests whose Host header has one of these names, with any port or none."""
    allowed = {_name(name) for name in names}

    def check(scope: Scope) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or _name(hosts[0]) not in allowed:
            reason = f"the service is not asked as {', '.join(hosts) or 'nobody'}; --allowed-host lets a name in"
            raise Refusal(400, "unknown_host", reason)

    return check


def _name(host: str) -> str:
    """Without the port, in small letters: `Shop.example:8000`, `[::1]:8000` and `::1` are shop.example and ::1."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).removesuffix(".")
