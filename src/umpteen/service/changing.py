"""A change of the labels: it takes its turn between two batches, and its time is limited.

While another process changes the same folder it waits here, in the event loop, so that no prediction waits with it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from umpteen.catalogue.live_catalogue import Encoded
from umpteen.catalogue.store import Locked
from umpteen.service.batching import Batcher
from umpteen.service.refusals import Refusal, locked_out, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")

Work = Callable[[Encoded], Result]  # makes the change without waiting for others, or raises Locked

_BETWEEN_TRIES = 0.05  # seconds


class Changing:
    """The changes of one worker."""

    def __init__(self, settings: ServiceSettings, batcher: Batcher) -> None:
        self._settings = settings
        self._batcher = batcher
        self._taken = 0  # changes that wait, for others or for their turn, and the one that is being made
        self._at_work = 0  # 1 while one is being made

    async def make(self, work: Work[Result]) -> Result:
        """What the work gives; refused if too many wait, if others keep the model locked, or if it takes too long."""
        limit = self._settings.limits.waiting_changes
        if self._taken - self._at_work >= limit:
            raise too_busy(f"{limit:,} label changes wait already; ask again in a moment")
        self._taken += 1
        try:
            return await self._tried(work)
        finally:
            self._taken -= 1

    async def _tried(self, work: Work[Result]) -> Result:
        now = asyncio.get_running_loop().time
        until = now() + self._settings.change_timeout
        waited, encoded = 0.0, Encoded()
        while True:
            try:
                return await self._made(work, encoded, until)
            except Locked:  # our own encoding takes nothing of what others may take
                if waited >= self._settings.lock_timeout or now() > until:
                    raise self._locked_out() from None
            await asyncio.sleep(_BETWEEN_TRIES)
            waited += _BETWEEN_TRIES

    def _locked_out(self) -> Refusal:
        return locked_out(
            f"another process has been changing the labels for {self._settings.lock_timeout:g} s, as `umpteen labels "
            "compact` may for longer; nothing was changed, try again in a moment"
        )

    async def _made(self, work: Work[Result], encoded: Encoded, until: float) -> Result:
        def make() -> Result:
            self._at_work = 1
            try:
                return work(encoded)
            finally:
                self._at_work = 0

        making = asyncio.ensure_future(self._batcher.alone(make))
        try:
            await asyncio.wait({making}, timeout=until - asyncio.get_running_loop().time())
        finally:
            if not making.done():  # it keeps its place, whoever has given it up
                self._taken += 1
                making.add_done_callback(self._late)
        if not making.done():
            seconds = self._settings.change_timeout
            reason = f"the change is not done after {seconds:g} s and may still be made; look at GET /labels/history"
            raise Refusal(504, "timeout", reason)
        return making.result()

    def _late(self, made: "asyncio.Future[Any]") -> None:
        self._taken -= 1
        made.cancelled() or made.exception()
