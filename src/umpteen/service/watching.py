"""Looks again and again for label changes that other processes made: another worker, or `umpteen labels`."""

import asyncio
from collections.abc import Awaitable, Callable

from umpteen.errors import UmpteenError
from umpteen.service.log import Log


async def watch(look: Callable[[], Awaitable[None]], every: float, log: Log) -> None:
    """Runs until it is cancelled. A version that cannot be read is told once; the labels stay as they were."""
    told = ""
    while True:
        await asyncio.sleep(every)
        try:
            await look()
            told = ""
        except Exception as problem:  # the next look may be luckier
            if str(problem) == told:
                continue
            told = str(problem)
            if isinstance(problem, UmpteenError | OSError):
                log.event("not_refreshed", reason=told)
            else:
                log.failure(problem)
