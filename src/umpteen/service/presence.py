"""A request whose sender has gone away gives up its place in the queue: work for nobody delays everybody else."""

import asyncio
from typing import Any

from starlette.types import Receive

from umpteen.service.refusals import Refusal

AFTER = 0.05  # seconds; most answers are there by then, and a look would cost more than it saves


class Presence:
    """Looks after a while whether the sender is still there, until `forget`."""

    __slots__ = ("_answer", "_look", "_receive", "_timer")

    def __init__(self, answer: "asyncio.Future[Any]", receive: Receive) -> None:
        self._answer = answer
        self._receive = receive
        self._look: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(AFTER, self._begin)

    def forget(self) -> None:
        """The request is answered."""
        self._timer.cancel()
        if self._look is not None:
            self._look.cancel()

    def _begin(self) -> None:
        self._look = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answer.done():
            self._answer.set_exception(Refusal(499, "gone", "whoever asked has gone away"))
