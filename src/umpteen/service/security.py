"""Who may change labels: whoever has the token."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

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
