"""The service's log: JSON lines on stdout, one for each request and for what happens to the service itself.

Texts, keys and searches are not in it unless asked for. Lines are gathered for a moment: a write for each would cost
as much as a small answer.
"""

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

SECONDS_BETWEEN_WRITES = 0.2


class Log:
    """Where lines go; nowhere unless it is on."""

    def __init__(self, *, on: bool, texts: bool = False, stream: TextIO | None = None) -> None:
        self.on = on
        self.texts = texts
        self._stream = stream
        self._lines: list[str] = []
        self._writing: asyncio.Handle | None = None
        self._process = os.getpid()
        self._second, self._until_second = 0, ""

    def request(self, method: str, route: str, status: int, seconds: float, client: str, more: dict[str, Any]) -> None:
        """One answered request; put together by hand, because it is done for every one."""
        rest = "".join(
            [f',"{name}":{value if type(value) is int else json.dumps(value)}' for name, value in more.items()]
        )
        self._lines.append(
            f'{{"time":"{self._now()}","event":"request","process":{self._process},"method":"{method}",'
            f'"route":"{route}","status":{status},"ms":{seconds * 1000:.3f},"client":"{client}"{rest}}}\n'
        )
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(SECONDS_BETWEEN_WRITES, self.flush)

    def event(self, event: str, **about: Any) -> None:
        """Something that happened to the service; written at once."""
        if self.on:
            self._add(event, about)
            self.flush()

    def failure(self, problem: Exception) -> None:
        """An error nobody foresaw, even when the log is off; its message may quote texts, so only where it happened."""
        frames = traceback.extract_tb(problem.__traceback__)
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        about: dict[str, Any] = {"error": type(problem).__name__, "where": where[-12:]}
        if self.texts:
            about["message"] = str(problem)
        self._add("failure", about)
        self.flush()

    def flush(self) -> None:
        """Writes what was gathered."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        lines, self._lines = self._lines, []
        if lines:
            stream = self._stream or sys.stdout
            with suppress(OSError, ValueError):  # whoever read the log has gone; the service goes on
                stream.write("".join(lines))
                stream.flush()

    def _add(self, event: str, about: dict[str, Any]) -> None:
        line = {"time": self._now(), "event": event, "process": self._process, **about}
        self._lines.append(json.dumps(line) + "\n")

    def _now(self) -> str:
        """UTC to the millisecond; the part that changes once a second is kept."""
        now = time.time()
        if int(now) != self._second:
            self._second = int(now)
            self._until_second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        return f"{self._until_second}.{int(now % 1 * 1000):03d}Z"


def shortened(texts: Sequence[str], characters: int = 200) -> list[str]:
    """The beginnings of texts, for a log that was asked to hold them."""
    return [text[:characters] for text in texts]
