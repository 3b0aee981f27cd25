"""What a connection may cost before there is a request: bytes and seconds of its head, and a place among the others.

When all places are taken, whoever has been silent for longest makes room; nobody loses a request that is under way.
"""

import asyncio
import resource
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from umpteen.service.log import Log
from umpteen.service.refusals import Refusal
from umpteen.service.settings import ServiceSettings

_BETWEEN_LINES = 10.0  # seconds; whoever floods the service does not flood its log


class OpenConnections:
    """The connections of a worker that have no request under way, longest silent first, and what became of others."""

    def __init__(self, settings: ServiceSettings, log: Log) -> None:
        self.head_bytes = settings.limits.head_bytes
        self.head_seconds = settings.body_timeout
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = settings.limits.connections
        if files != resource.RLIM_INFINITY:
            self.most = max(1, min(self.most, files * 3 // 4))  # the others are for the model's own files
        self.silent: dict[Connection, None] = {}
        self._log = log
        self._closed: Counter[str] = Counter()
        self._telling: asyncio.TimerHandle | None = None

    def note(self, why: str) -> None:
        """Has the log tell how many were closed and why, now or in a while."""
        self._closed[why] += 1
        if self._telling is None:
            self._tell()

    def _tell(self) -> None:
        self._telling = None
        if self._closed:
            self._log.event("connections_closed", most=self.most, **self._closed)
            self._closed.clear()
            self._telling = asyncio.get_running_loop().call_later(_BETWEEN_LINES, self._tell)


class Connection(HttpToolsProtocol):
    """Uvicorn's, with limits to what comes before a request."""

    def __init__(self, others: OpenConnections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._others = others
        self._chunk_bytes = 0
        self._head_bytes = 0  # that came before this chunk
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        others = self._others
        if len(self.connections) > others.most:
            if not others.silent:
                reason = (
                    f"{others.most:,} connections have requests under way, which is the most; come back in a moment"
                )
                self._refuse(Refusal(503, "too_many_connections", reason, headers={"Retry-After": "1"}))
                return
            longest_silent = next(iter(others.silent))
            del others.silent[longest_silent]
            longest_silent.transport.abort()
            others.note("made_room")
        others.silent[self] = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.silent.pop(self, None)
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._chunk_bytes = len(data)
        super().data_received(data)
        if self._in_head():
            self._head_bytes += len(data)
            if self._head_bytes > self._others.head_bytes:
                self._refuse_head()
        if self._deadline is None and self in self._others.silent:  # a head has begun, or only blank lines came
            self._expect_head()

    def on_headers_complete(self) -> None:
        most = self._others.head_bytes
        # Counted only where it may be too much: most requests are one small chunk.
        if self._head_bytes + self._chunk_bytes > most and self._exact_head_bytes() > most:
            self._refuse_head()
            raise ValueError("the head is too large")  # ends the parser's work
        self._head_bytes = 0
        self._head_is_here()
        self._others.silent.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._others.silent[self] = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal(400, "malformed_http", "this is not HTTP/1.1"))

    def _in_head(self) -> bool:
        """Something of a request is here, but not yet what uvicorn learns from its whole head."""
        return self.scope is not None and "method" not in self.scope

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._others.head_seconds, self._head_is_late)

    def _head_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self._in_head():
            seconds = self._others.head_seconds
            self._refuse(Refusal(408, "slow_head", f"the headers were not there within {seconds:g} s"))
        else:
            self.transport.close()

    def _exact_head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._refuse(Refusal(431, "head_too_large", f"the headers have more than {self._others.head_bytes:,} bytes"))

    def _refuse(self, refusal: Refusal) -> None:
        """Says why, unless an answer is on its way, and closes the connection."""
        if self.transport.is_closing():
            return
        self._others.note(refusal.code)
        if self.cycle is None or self.cycle.response_complete:
            body = refusal.body()
            headers = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
            told = {**headers, **(refusal.headers or {})}
            head = STATUS_LINE[refusal.status_code] + "".join(f"{name}: {told[name]}\r\n" for name in told).encode()
            self.transport.write(head + b"\r\n" + body)
        self.transport.close()
