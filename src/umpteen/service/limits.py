"""How much one request may be: bytes while they arrive, then texts, characters and answers."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Scope

from umpteen.service.messages import PredictRequest
from umpteen.service.refusals import Refusal
from umpteen.service.settings import Limits, ServiceSettings


def limited(scope: Scope, receive: Receive, settings: ServiceSettings) -> Receive:
    """The same body, refused as soon as it is known to be too large or too slow."""
    most = settings.limits.body_bytes
    deadline = asyncio.get_running_loop().time() + settings.body_timeout
    taken = 0
    whole = False

    async def next_message() -> Message:
        nonlocal taken, whole
        if whole:
            return await receive()
        if taken == 0:
            _check_announced(scope, most)
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise _closing(408, "slow_body", f"the body was not there within {settings.body_timeout:g} s") from None
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most)
        whole = not message.get("more_body", False)
        return message

    return next_message


async def read_body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    """All of it; empty if whoever sends it goes away."""
    message = await receive()
    if not message.get("more_body", False):
        return bytes(message.get("body", b""))
    parts = [message["body"]]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)


def texts_of(message: PredictRequest, limits: Limits) -> list[str]:
    """The texts of a request, each with something in it and none too long."""
    single = "text" in message.model_fields_set
    texts = [message.text] if single else message.texts
    _at_most(message.k, limits.k, "k", "labels of a text")
    _at_most(len(texts), limits.texts, "texts", "texts at once")
    if not texts:
        raise Refusal(422, "no_texts", "texts is empty; give at least one text", field="texts")
    for place, text in enumerate(texts):
        name = "text" if single else f"texts[{place}]"
        if not text.strip():
            raise Refusal(422, "empty_text", f"{name} is empty; leave it out or give it words", field=name)
        _at_most(len(text), limits.text_characters, name, "characters in a text")
    if not single:
        _at_most(sum(map(len, texts)), limits.characters, "texts", "characters in all texts of a request")
    return texts


def check_answers(texts: int, k: int, limits: Limits) -> None:
    """Refuses an answer that would be too large."""
    if texts > 1:
        _at_most(texts * k, limits.answers, "texts", "labels in an answer (texts × k)")


def _at_most(value: int, limit: int, field: str, what: str) -> None:
    if value > limit:
        raise Refusal(422, "over_limit", f"{field}: {value:,} {what}, {limit:,} are the most", field=field)


def _check_announced(scope: Scope, most: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
            raise _too_large(most)


def _too_large(most: int) -> Refusal:
    return _closing(413, "body_too_large", f"the body has more than {most:,} bytes; send fewer texts at once")


def _closing(status: int, code: str, reason: str) -> Refusal:
    """What is still to come of the body is not read."""
    return Refusal(status, code, reason, headers={"Connection": "close"})
