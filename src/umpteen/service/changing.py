"""A change of the labels: it takes its turn between two batches, and its time is limited.

While another process changes the same folder it waits here, in the event loop, so that no prediction waits with it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from umpteen.catalogue.lock import Locked, is_locked, patience
from umpteen.service.batching import Batcher
from umpteen.service.refusals import Refusal, locked_out, too_busy
from umpteen.service.settings import ServiceSettings

Result = TypeVar("Result")

_BETWEEN_LOOKS = 0.05  # seconds
_ON_THE_THREAD = 0.05  # seconds that predictions may wait for somebody who was faster; others' looks take less


class Changing:
    """The changes of one worker."""

    def __init__(self, model: Path | None, settings: ServiceSettings, batcher: Batcher) -> None:
        self._model = model  # None: the labels are in memory only, and ours alone
        self._settings = settings
        self._batcher = batcher
        self._waiting = 0

    async def make(self, work: Callable[[], Result]) -> Result:
        """What the work gives; refused if others keep the folder locked, or if it takes too long."""
        began = asyncio.get_running_loop().time()
        while True:
            await self._unlocked(began + self._settings.lock_timeout)
            try:
                return await self._made(work, began + self._settings.change_timeout)
            except Locked:
                continue  # somebody was faster

    async def _unlocked(self, until: float) -> None:
        """Returns once nobody else changes the folder."""
        if self._model is None or not is_locked(self._model):
            return
        limit = self._settings.limits.waiting_changes
        if self._waiting >= limit:
            raise too_busy(f"{limit:,} label changes wait already; ask again in a moment")
        self._waiting += 1
        try:
            while is_locked(self._model):
                if asyncio.get_running_loop().time() > until:
                    seconds = self._settings.lock_timeout
                    raise locked_out(
                        f"another process has been changing the labels for {seconds:g} s, as `umpteen labels compact` "
                        "may for longer; nothing was changed, try again in a moment"
                    )
                await asyncio.sleep(_BETWEEN_LOOKS)
        finally:
            self._waiting -= 1

    async def _made(self, work: Callable[[], Result], until: float) -> Result:
        def make() -> Result:
            with patience(_ON_THE_THREAD):
                return work()

        making = asyncio.ensure_future(self._batcher.alone(make))
        await asyncio.wait({making}, timeout=until - asyncio.get_running_loop().time())
        if not making.done():
            making.add_done_callback(lambda late: late.cancelled() or late.exception())
            seconds = self._settings.change_timeout
            reason = f"the change is not done after {seconds:g} s and may still be made; look at GET /labels/history"
            raise Refusal(504, "timeout", reason)
        return making.result()
