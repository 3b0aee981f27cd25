"""The benchmarks of the service, in miniature: they load a real one, and notice what is wrong with one."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.child_service import ChildService, child_service
from benchmarks.load import Load, measured, run
from benchmarks.serve import run as bench_serve
from benchmarks.soak import Soak
from benchmarks.soak import run as bench_soak

from benchmarks import wrk
from service.service_cases import LABELS, tiny_model
from umpteen.errors import BadInput

BODIES = ("one", "two", "three")


class Ticks:
    """A clock that goes on by a millisecond whenever somebody looks: no machine is too slow for it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """The clock of the load."""
    ticks = Ticks()
    monkeypatch.setattr("benchmarks.load.time", ticks)
    return ticks


class Stub:
    """A service that answers with the body it was sent, after as many seconds as `pause` says of the request."""

    def __init__(self, clock: Ticks | None = None, pause: dict[int, float] | None = None, failing: int = 0) -> None:
        self.bodies: list[str] = []
        self._clock = clock or Ticks()
        self._pause = pause or {}
        self._failing = failing  # each so-manieth answer is 503

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().rpartition(b"content-length:")[2].partition(b"\r\n")[0])
                body = (await reader.readexactly(length)).decode()
                self.bodies.append(body)
                number = len(self.bodies)
                ready = self._clock.now + self._pause.get(number, 0)
                while self._clock.now < ready:
                    await asyncio.sleep(0.001)
                fails = self._failing and number % self._failing == 0
                status = "503 Service Unavailable" if fails else "200 OK"
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        async with await asyncio.start_server(self.answer, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
            await asyncio.sleep(0.05)  # for connections to be closed on this side, too


def loaded(stub: Stub, **load: Any) -> dict[str, Any]:
    async def whole() -> dict[str, Any]:
        async with stub.listening() as port:
            return await run(Load(port, BODIES, **load))

    return asyncio.run(whole())


def test_load_goes_out_as_fast_as_answers_come_and_in_turn(clock: Ticks) -> None:
    stub = Stub()
    outcome = loaded(stub, seconds=0.3, connections=3, warm_up=0.1)
    assert outcome["failed"] == 0 and 0 < outcome["requests"] < len(stub.bodies)  # the warm-up does not count
    assert outcome["requests_per_second"] == pytest.approx(outcome["requests"] / 0.3)
    assert 0 < outcome["p50_ms"] <= outcome["p99_ms"]
    assert {stub.bodies.count(body) for body in BODIES} <= {len(stub.bodies) // 3, len(stub.bodies) // 3 + 1}


def test_answers_that_are_none_count_as_failed(clock: Ticks) -> None:
    stub = Stub(failing=4)
    outcome = loaded(stub, seconds=0.2, connections=2, warm_up=0.0)
    assert outcome["failed"] == len(stub.bodies) // 4 > 0


def test_load_at_a_rate_is_on_time_and_a_slow_service_cannot_slow_its_judge(clock: Ticks) -> None:
    outcome = loaded(Stub(), seconds=1.0, connections=4, rate=100.0, warm_up=0.0)
    assert 99 <= outcome["requests"] <= 101
    # One connection, and one answer that takes 0.4 s: every request that was due meanwhile was kept waiting.
    slow = loaded(Stub(clock, pause={20: 0.4}), seconds=1.0, connections=1, rate=100.0, warm_up=0.0)
    assert 99 <= slow["requests"] <= 101 and slow["p99_ms"] > 350


def test_a_service_that_does_not_start_is_told_with_its_words() -> None:
    command = ["sh", "-c", "echo 'no model here' >&2"]
    with pytest.raises(BadInput, match="did not start: no model here"), child_service(command):
        pass


def test_wrk_sends_the_same_and_its_outcome_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Running\nOUTCOME 1500 3000000 2 1250.000000 9800.000000\n"
    scripts: list[str] = []

    def pretended(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        scripts.append(Path(command[command.index("-s") + 1]).read_text())
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(wrk.shutil, "which", lambda name: "/usr/bin/wrk")
    monkeypatch.setattr(wrk.subprocess, "run", pretended)
    outcome = wrk.fastest(Load(1, ('{"text": "a \\"quoted\\" ü"}',), 3.0))
    assert outcome["requests_per_second"] == 500 and outcome["failed"] == 2
    assert (outcome["p50_ms"], outcome["p99_ms"]) == (1.25, 9.8)
    assert '{"{\\"text\\": \\"a \\\\\\"quoted\\\\\\" ü\\"}"}' in scripts[0]
    monkeypatch.undo()
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")

    async def whole() -> tuple[dict[str, Any], set[str]]:
        stub = Stub()
        async with stub.listening() as port:
            return await asyncio.to_thread(wrk.fastest, Load(port, BODIES, 1.0, connections=2)), set(stub.bodies)

    outcome, bodies = asyncio.run(whole())
    assert outcome["requests"] >= len(BODIES) and outcome["failed"] == 0 and bodies == set(BODIES)


def test_a_process_of_its_own_makes_the_load() -> None:
    async def whole() -> tuple[dict[str, Any], list[str]]:
        stub = Stub()
        async with stub.listening() as port:
            load = Load(port, BODIES, 0.01, connections=3, warm_up=0.0)
            return await asyncio.to_thread(measured, load), stub.bodies

    outcome, bodies = asyncio.run(whole())
    assert outcome["failed"] == 0 and set(bodies) == set(BODIES)


def test_the_service_is_measured_beside_an_empty_route(
    tmp_path: Path, clock: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fastest", "measured"):
        monkeypatch.setattr(f"benchmarks.serve.{name}", lambda load: asyncio.run(run(load)))
    outcome = bench_serve(tiny_model(tmp_path), seconds=0.3, repeats=1, clients=4, minilm_labels=0, texts=20)
    assert outcome["failed"] == 0 and outcome["requests_per_second"] > 0 and outcome["p99_ms"] > 0
    assert outcome["http_ratio"] == pytest.approx(outcome["requests_per_second"] / outcome["empty_requests_per_second"])
    assert json.loads(json.dumps(outcome)) == outcome


def test_the_soak_finds_nothing_wrong_with_a_service_that_is_right(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    outcome = bench_soak(0.02, model, clients=3, seconds_between_changes=0.1)
    assert (outcome["failed"], outcome["wrong_keys"]) == (0, 0), outcome
    assert outcome["changes"] >= 1 and outcome["requests_by_kind"]["text"] > 0 and outcome["labels"] == len(LABELS)
    assert outcome["memory_mb"][0] > 10


class Pretended(Soak):
    """A soak of answers that never went over a wire."""

    def __init__(self, body: bytes | None) -> None:
        super().__init__(ChildService(0, None), {"L1": "fish"}, ["fish"], 1, 0)  # type: ignore[arg-type]
        self._body = body

    async def _sent(self, *_: Any) -> bytes | None:
        return self._body


@pytest.mark.parametrize(
    ("label", "wrong"),
    [
        (("L1", "fish"), 0),
        (("L1", "another text"), 1),
        (("soak-1", "added label 1"), 0),
        (("soak-2", "retired long ago"), 1),
        (("nobody", "gave this"), 1),
    ],
)
def test_the_soak_notices_labels_that_are_not_there(label: tuple[str, str], wrong: int) -> None:
    found = {"key": label[0], "text": label[1], "score": 1.0, "probability": None}
    soak = Pretended(json.dumps({"version": 1, "results": [{"labels": [found]}]}).encode())
    soak._added["soak-1"] = "added label 1"
    asyncio.run(soak._predict(None, "text", ["fish"]))  # type: ignore[arg-type]
    assert len(soak._wrong) == wrong


def test_the_soak_notices_labels_that_are_missing_or_have_an_old_text() -> None:
    for text, wrong in (("new text", 0), ("old text", 1)):
        found = {"key": "soak-1", "text": text, "score": 1.0, "probability": None}
        soak = Pretended(json.dumps({"version": 1, "results": [{"labels": [found]}]}).encode())
        soak._added["soak-1"] = "new text"
        asyncio.run(soak._ask_for_added(None))  # type: ignore[arg-type]
        assert len(soak._wrong) == wrong


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadInput, match="more than 0"):
        bench_serve(repeats=0)
    with pytest.raises(BadInput, match="more than 0"):
        bench_soak(0)
