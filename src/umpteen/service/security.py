"""Who may change labels: whoever has the token. And by which names the service may be asked."""

import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Scope

from umpteen.service.refusals import Refusal

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
