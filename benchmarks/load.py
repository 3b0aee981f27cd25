"""Load for an HTTP service, made in a process of its own: as fast as answers come, or at a fixed rate.

`python -m benchmarks.load` reads one JSON object (Load) on stdin and writes one (the outcome) on stdout. On one core
it sends several times as many requests as a service on another can answer.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_PATIENCE = 30.0  # seconds for answers that are still on their way at the end


@dataclass(frozen=True)
class Load:
    """These bodies in turn, over so many connections, for so long; `rate` 0 means as fast as answers come."""

    port: int
    bodies: tuple[str, ...]
    seconds: float
    connections: int = 32
    rate: float = 0.0  # requests a second
    warm_up: float = 0.3  # seconds that don't count
    path: str = "/predict"


def measured(load: Load) -> dict[str, Any]:
    """The outcome of a load, from a new process: requests, failed, requests_per_second, p50_ms, p99_ms."""
    command = [sys.executable, "-m", "benchmarks.load"]
    child = subprocess.run(command, input=json.dumps(asdict(load)), capture_output=True, text=True, check=True)
    outcome: dict[str, Any] = json.loads(child.stdout)
    return outcome


def request_bytes(path: str, body: str = "", *, method: str = "POST", headers: Sequence[str] = ()) -> bytes:
    """A request as it goes over the wire."""
    content = body.encode()
    length = f"Content-Length: {len(content)}"
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", length, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class Connection(asyncio.Protocol):
    """Sends a request, and tells the status and the body of its answer; status 0 if there is none."""

    def __init__(self) -> None:
        self._answered: Callable[[int, bytes], None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = b""
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, request: bytes, answered: Callable[[int, bytes], None]) -> None:
        assert self._transport is not None
        self._answered = answered
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if len(self._buffer) < self._needed:
            return
        head = self._buffer.find(b"\r\n\r\n")
        if head >= 0:
            length = self._buffer[:head].lower().rpartition(b"content-length:")[2].partition(b"\r\n")[0]
            self._needed = head + 4 + int(length)
            if len(self._buffer) >= self._needed:
                status, body = int(self._buffer[9:12]), self._buffer[head + 4 : self._needed]
                self._buffer, self._needed = b"", 0
                self._tell(status, body)

    def connection_lost(self, problem: Exception | None) -> None:
        self._tell(0, b"")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _tell(self, status: int, body: bytes) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status, body)


@dataclass
class Tally:
    """What became of the requests, those of the warm-up left out."""

    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    busy: int = 0

    def note(self, status: int, seconds: float, *, counts: bool) -> None:
        self.failed += status != 200
        if counts and status == 200:
            self.latencies.append(seconds)

    def outcome(self, seconds: float) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        at = {name: min(len(ordered) - 1, int(share * len(ordered))) for name, share in (("p50", 0.5), ("p99", 0.99))}
        return {
            "requests": len(ordered),
            "failed": self.failed,
            "requests_per_second": len(ordered) / seconds,
            **{f"{name}_ms": ordered[place] * 1000 if ordered else None for name, place in at.items()},
        }


async def as_fast_as_answers_come(load: Load, connections: list[Connection], requests: list[bytes]) -> dict[str, Any]:
    """Each connection sends its next request when it has the answer to the last."""
    tally = Tally()
    began = time.perf_counter() + load.warm_up
    ends = began + load.seconds
    turn = iter(range(sys.maxsize))

    def go(connection: Connection) -> None:
        sent = time.perf_counter()
        tally.busy += 1

        def answered(status: int, body: bytes) -> None:
            now = time.perf_counter()
            tally.busy -= 1
            tally.note(status, now - sent, counts=began <= now < ends)
            if now < ends and status:
                go(connection)

        connection.send(requests[next(turn) % len(requests)], answered)

    for connection in connections:
        go(connection)
    await _until_over(ends, tally)
    return tally.outcome(load.seconds)


async def at_a_rate(load: Load, connections: list[Connection], requests: list[bytes]) -> dict[str, Any]:
    """Requests go out when they are due. Latencies count from then: a slow service cannot slow its judge."""
    tally = Tally()
    free = list(connections)
    due: deque[tuple[int, float]] = deque()
    start = time.perf_counter()
    began, ends = start + load.warm_up, start + load.warm_up + load.seconds

    def go() -> None:
        connection = free.pop()
        number, when = due.popleft()
        tally.busy += 1

        def answered(status: int, body: bytes) -> None:
            tally.busy -= 1
            tally.note(status, time.perf_counter() - when, counts=when >= began)
            if status:
                free.append(connection)
                if due:
                    go()

        connection.send(requests[number % len(requests)], answered)

    sent = 0
    while (now := time.perf_counter()) < ends:
        while sent < (now - start) * load.rate:
            due.append((sent, start + sent / load.rate))
            sent += 1
        while due and free:
            go()
        await asyncio.sleep(min(0.001, 1 / load.rate))
    await _until_over(ends, tally)
    return tally.outcome(load.seconds)


async def _until_over(ends: float, tally: Tally) -> None:
    while (now := time.perf_counter()) < ends or (tally.busy and now < ends + _PATIENCE):
        await asyncio.sleep(0.01)


async def connect(port: int, count: int) -> list[Connection]:
    """So many connections to a service on this machine."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def run(load: Load) -> dict[str, Any]:
    """The outcome of a load, made here."""
    connections = await connect(load.port, load.connections)
    requests = [request_bytes(load.path, body) for body in load.bodies]
    made = at_a_rate if load.rate else as_fast_as_answers_come
    try:
        return await made(load, connections, requests)
    finally:
        for connection in connections:
            connection.close()


def main() -> None:
    given = json.load(sys.stdin)
    load = Load(**{**given, "bodies": tuple(given["bodies"])})
    try:
        import uvloop

        make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    except ImportError:
        make = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        print(json.dumps(runner.run(run(load))))


if __name__ == "__main__":
    main()
