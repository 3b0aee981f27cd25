"""The service as a process: its workers, its signals, and what keeps it from starting."""

import fcntl
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from service_cases import TOKEN
from umpteen.catalogue.lock import locked

from umpteen.bench.child_service import ChildService, umpteen_serve
from umpteen.cli.main import main
from umpteen.cli.serve import serve as serve_command
from umpteen.errors import BadConfig, BadFile, BadInput, DamagedModel, InUse
from umpteen.index_building import build_index
from umpteen.service.service import Service
from umpteen.service.serving import listening_socket
from umpteen.service.workers import address_of, check_shareable


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that does the work, and where its result will be."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def keys_of(service: ChildService, text: str) -> list[str]:
    answer = service.post("/predict", {"text": text, "k": 100})
    return [label["key"] for label in answer["results"][0]["labels"]]


def added(service: ChildService, key: str, text: str) -> Any:
    return service.post("/labels", {"labels": [{"key": key, "text": text}]}, token=TOKEN)


def test_a_service_that_is_told_to_stop_finishes_what_it_took(model: Path) -> None:
    body = b'{"text": "food network"}'
    head = f"POST /predict HTTP/1.1\r\nHost: service\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with umpteen_serve(model, token=TOKEN) as service, socket.socket() as asking:
        asking.settimeout(20)
        asking.connect(("127.0.0.1", service.port))
        asking.sendall(head + body[:5])
        with locked(model):  # so the change has to wait
            changing, changed = in_background(lambda: added(service, "new", "food network"))
            time.sleep(0.3)
            assert "new" not in keys_of(service, "food network")
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert not changed and service.process.poll() is None
        changing.join(20)
        assert changed == [{"version": 1}]
        asking.sendall(body[5:])
        answer = b"".join(iter(lambda: asking.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200") and b'"new"' in answer
        assert service.process.wait(20) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", service.port), timeout=5)


def test_two_workers_see_a_change_within_a_second_count_together_and_are_replaced(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"

    def processes() -> set[int]:
        return {json.loads(line)["process"] for line in log.read_text().splitlines() if '"/predict"' in line}

    with umpteen_serve(model, "--workers", "2", token=TOKEN, log=log) as service:
        asked = 0

        def until(done: Callable[[], bool], seconds: float) -> None:
            nonlocal asked
            deadline = time.monotonic() + seconds
            while not done():
                assert time.monotonic() < deadline, log.read_text()
                for _ in range(10):
                    keys_of(service, "food network")  # each on a connection of its own, so whichever worker takes it
                    asked += 1
                time.sleep(0.1)

        until(lambda: len(processes()) == 2, 60)
        assert added(service, "new", "food network") == {"version": 1}
        time.sleep(1)
        for _ in range(30):
            assert keys_of(service, "food network")[0] == "new"
            asked += 1
        time.sleep(0.2)  # a request is counted when its answer is on its way
        with urlopen(f"http://127.0.0.1:{service.port}/metrics") as response:
            counted = response.read().decode().splitlines()
        assert f'umpteen_requests_total{{method="POST",route="/predict",status="200"}} {asked}.0' in counted
        assert "umpteen_label_version 1.0" in counted
        before = processes()
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(processes()) == 3, 60)
        service.process.kill()  # nobody watches the workers any more, so they end by themselves
        deadline = time.monotonic() + 20
        while answers(service):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def answers(service: ChildService) -> bool:
    try:
        socket.create_connection(("127.0.0.1", service.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_several_workers_end_together(model: Path) -> None:
    with umpteen_serve(model, "--workers", "2") as service:
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(60) == 0
        assert not answers(service)


def refused(*arguments: object) -> BaseException:
    """Why `umpteen serve` does not start."""
    outcome = CliRunner().invoke(serve_command, [str(argument) for argument in arguments])
    assert outcome.exception is not None and "is served at" not in outcome.output
    return outcome.exception


def test_a_port_in_use_is_told(shared_model: Path) -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        problem = refused(shared_model, "--port", port)
    assert isinstance(problem, BadInput)
    assert f"--port {port}: cannot listen there: Address already in use" in str(problem)


def test_an_address_that_is_not_ours_is_told(shared_model: Path) -> None:
    assert "no such address" in str(refused(shared_model, "--host", "no.such.host.invalid"))
    assert "cannot listen there" in str(refused(shared_model, "--host", "192.0.2.1"))


def test_a_damaged_model_is_told_before_a_port_is_taken(model: Path) -> None:
    (model / "labels.jsonl").write_text("{}")
    with listening_socket("127.0.0.1", 0) as taken:
        problem = refused(model, "--port", taken.getsockname()[1])  # in use, and not even looked at
    assert isinstance(problem, DamagedModel) and "labels.jsonl" in str(problem)
    assert isinstance(refused(model / "nowhere"), BadFile)


def test_an_engine_that_another_process_has_open_is_told_before_a_port_is_taken(model: Path) -> None:
    build_index(model, "milvus", recall=0.9, k=1)
    with (model / "index" / "milvus" / "labels.db.lock").open("w") as lock, listening_socket("127.0.0.1", 0) as taken:
        fcntl.flock(lock, fcntl.LOCK_EX)
        problem = refused(model, "--port", taken.getsockname()[1])  # in use, and not even looked at
    assert isinstance(problem, InUse) and "stop that one" in str(problem)


def test_an_error_of_the_start_is_told_in_one_line(
    shared_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fail(service: Service) -> None:
        raise BadInput("the index went away")

    monkeypatch.setattr(Service, "start", fail)
    monkeypatch.setattr("sys.argv", ["umpteen", "serve", str(shared_model), "--port", "0"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    told = capfd.readouterr().err.splitlines()
    assert ended.value.code == 2 and told[1:] == ["error: the index went away"]


def test_tokens_come_from_a_file_or_the_environment_and_never_from_the_command_line(
    shared_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--token" not in {name for option in serve_command.params for name in option.opts}
    assert isinstance(refused(shared_model, "--token-file", tmp_path / "missing"), BadFile)
    (tmp_path / "empty").write_text("\n")
    assert "holds no token" in str(refused(shared_model, "--token-file", tmp_path / "empty"))
    monkeypatch.setenv("UMPTEEN_TOKEN", "two words")
    assert isinstance(refused(shared_model), BadConfig)


@pytest.mark.parametrize("option", ["--max-texts", "--max-k", "--timeout", "--batch-texts", "--max-body"])
def test_limits_of_nothing_are_refused(shared_model: Path, option: str) -> None:
    assert isinstance(refused(shared_model, option, 0), BadConfig)


def test_an_index_that_belongs_to_one_process_is_not_shared() -> None:
    class Embedded:
        one_process = True

    check_shareable(Embedded(), 1)
    check_shareable(object(), 4)
    with pytest.raises(BadInput, match="--workers 2: the embedded Milvus belongs to one process"):
        check_shareable(Embedded(), 2)


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://localhost:"), ("::1", "http://[::1]:")]
)
def test_the_address_shown_is_one_a_browser_takes(host: str, shown: str) -> None:
    try:
        listener = listening_socket(host, 0)
    except BadInput:
        pytest.skip("no IPv6 here")
    with listener:
        address = address_of(listener, host)
    assert address.startswith(shown) and address.endswith("/")
