"""The service as a process: its workers, its signals, and what keeps it from starting."""

import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from benchmarks.child_service import ChildService, child_service, umpteen_serve
from click.testing import CliRunner
from service_cases import PATIENCE, TOKEN

from miniature import files_of, part_of
from umpteen.cli.main import main
from umpteen.cli.predict import serve as serve_command
from umpteen.errors import BadConfig, BadFile, BadInput
from umpteen.model.index import build_index
from umpteen.service.run import address_of, serve
from umpteen.service.server import listening_socket
from umpteen.service.settings import ServiceSettings

PATIENT = ("--timeout", str(PATIENCE))


def keys_of(service: ChildService, text: str) -> list[str]:
    answer = service.post("/predict", {"text": text, "k": 100})
    return [label["key"] for label in answer["results"][0]["labels"]]


def added(service: ChildService, key: str, text: str) -> Any:
    return service.post("/labels", {"labels": [{"key": key, "text": text}]}, token=TOKEN)


def until(claim: Callable[[], object]) -> None:
    """Returns once it is true; a service that never makes it true has hung."""
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.05)


def answers(service: ChildService) -> bool:
    try:
        socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


def lines_of(log: Path, event: str) -> list[dict[str, Any]]:
    whole = log.read_text().rpartition("\n")[0].splitlines()
    return [line for line in map(json.loads, whole) if line["event"] == event]


def workers_of(log: Path) -> list[int]:
    """The workers that have been ready, in their order."""
    return [line["process"] for line in lines_of(log, "ready")]


def metrics_of(service: ChildService) -> list[str]:
    with urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=PATIENCE) as response:
        lines: list[str] = response.read().decode().splitlines()
    return lines


def test_a_service_that_is_told_to_stop_finishes_what_it_took(model: Path) -> None:
    change = b'{"labels": [{"key": "new", "text": "food network"}]}'
    requests = {"/labels": change, "/predict": b'{"text": "food network"}'}
    # The command, but for the time that a body may take: it comes when the service has heard that it shall stop.
    later = (
        f"from umpteen.service.settings import *; ServiceSettings.__init__.__kwdefaults__['body_timeout'] = {PATIENCE}"
    )
    serve = [sys.executable, "-c", f"{later}; from umpteen.cli.main import main; main()", "serve", str(model)]
    serve += ["--port", "0", "--shutdown-timeout", str(PATIENCE), *PATIENT]
    with child_service(serve, environment={"UMPTEEN_TOKEN": TOKEN}) as service, ExitStack() as sockets:
        under_way = {}
        for path, body in requests.items():
            asking = sockets.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE))
            head = f"POST {path} HTTP/1.1\r\nHost: service\r\nAuthorization: Bearer {TOKEN}\r\n"
            asking.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            assert asking.recv(1000).startswith(b"HTTP/1.1 100")
            under_way[path] = asking
        service.process.send_signal(signal.SIGTERM)
        until(lambda: not answers(service))
        assert service.process.poll() is None
        said = {}
        for path, asking in under_way.items():
            asking.sendall(requests[path])
            with asking.makefile("rb") as answer:
                said[path] = answer.read()
            assert said[path].startswith(b"HTTP/1.1 200")
        assert b'{"version":1}' in said["/labels"] and b'"new"' in said["/predict"]
        assert service.process.wait(PATIENCE) == 0


def test_a_worker_that_has_ended_by_itself_keeps_no_other_from_being_told_to_stop(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, told = os.kill, list[int]()

    def too_late(process: int, number: int) -> None:
        if number == signal.SIGTERM:
            told.append(process)
            with suppress(ProcessLookupError):
                kill(process, signal.SIGKILL)
                while True:
                    kill(process, 0)
                    time.sleep(0.01)
        kill(process, number)

    monkeypatch.setattr(os, "kill", too_late)
    settings = ServiceSettings(host="127.0.0.1", port=0, workers=2)
    serve(model, settings, lambda _: kill(os.getpid(), signal.SIGTERM))
    assert len(told) == 2


def children_of(process: int, said: str = "") -> list[int]:
    """The processes it started that have this in their command."""
    started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in started if said in Path(f"/proc/{child}/cmdline").read_text()]


def fork_server_of(service: ChildService) -> int:
    (found,) = children_of(service.process.pid, "forkserver")
    return found


def test_two_workers_see_changes_count_together_and_are_replaced(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, temporary = tmp_path / "log.jsonl", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with umpteen_serve(model, "--workers", "2", *PATIENT, token=TOKEN, log=log) as service:
        asked = looks = 0

        def ask_until(claim: Callable[[], object]) -> None:
            nonlocal asked
            while not claim():  # each on a connection of its own, so whichever worker takes it
                assert keys_of(service, "food network")
                asked += 1

        def says(line: str) -> bool:
            nonlocal looks
            looks += 1
            return line in metrics_of(service)

        def all_counted() -> bool:
            return says(f'umpteen_requests_total{{method="POST",route="/predict",status="200"}} {asked}.0')

        def answered(route: str) -> list[dict[str, Any]]:
            return [line for line in lines_of(log, "request") if line["route"] == route]

        def workers() -> set[int]:
            return {line["process"] for line in answered("/predict")}

        ask_until(lambda: len(workers()) == 2)
        assert added(service, "new", "food network") == {"version": 1}
        until(lambda: says("umpteen_label_version 1.0"))
        for _ in range(30):
            assert keys_of(service, "food network")[0] == "new"
            asked += 1
        until(all_counted)
        assert not [path for path in temporary.rglob("*") if path.is_file()]  # a full folder can do no harm
        until(lambda: len(answered("/metrics")) == looks)
        (other,) = workers() - {max(answered("/metrics"), key=lambda line: line["time"])["process"]}
        os.kill(other, signal.SIGKILL)  # whose counts somebody else has just told
        ask_until(lambda: len(workers()) == 3)
        until(all_counted)
        assert [ended["worker"] for ended in lines_of(log, "worker_ended")] == [other]
        service.process.kill()  # nobody watches the workers any more, so they end by themselves
        until(lambda: not answers(service))


@pytest.fixture(scope="module")
def single(shared_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ChildService, Path]]:
    """A service with one worker, which may open few files, and its log."""
    log = tmp_path_factory.mktemp("single") / "log.jsonl"
    serve = [sys.executable, "-m", "umpteen", "serve", str(shared_model), "--port", "0", *PATIENT]
    with child_service(["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *serve], log=log) as service:
        yield service, log


def test_silent_connections_keep_nobody_out_however_few_files_may_be_open(single: tuple[ChildService, Path]) -> None:
    service, _ = single
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE))
        for _ in range(10):
            assert keys_of(service, "fish")[0] == "L1"
        with urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=PATIENCE) as told:
            assert 'umpteen_connections_closed_total{why="made_room"}' in told.read().decode()


def test_a_worker_that_dies_is_told_by_its_signal_and_replaced_even_if_it_is_the_only_one(
    single: tuple[ChildService, Path],
) -> None:
    service, log = single
    assert keys_of(service, "fish")[0] == "L1"
    *_, worker = before = workers_of(log)
    os.kill(worker, signal.SIGBUS)  # as when a file that is mapped becomes shorter
    assert keys_of(service, "fish")[0] == "L1"  # having waited for the next
    (ended,) = lines_of(log, "worker_ended")
    assert (ended["worker"], ended["reason"]) == (worker, "SIGBUS")
    assert len(workers_of(log)) == len(before) + 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the fork server cannot be found here")
def test_a_killed_fork_server_takes_nothing_with_it(shared_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with umpteen_serve(shared_model, "--workers", "2", *PATIENT, log=log) as service:
        before = workers_of(log)
        os.kill(fork_server_of(service), signal.SIGKILL)
        asked = 0
        while len({line["process"] for line in lines_of(log, "request") if line["route"] == "/predict"}) < 2:
            assert keys_of(service, "fish")[0] == "L1"
            asked += 1
        counted = f'umpteen_requests_total{{method="POST",route="/predict",status="200"}} {asked}.0'
        until(lambda: counted in metrics_of(service))  # who watches has exchanged counts since, having looked at both
        assert workers_of(log) == before and lines_of(log, "worker_ended") == []
        os.kill(before[-1], signal.SIGKILL)
        until(lambda: len(workers_of(log)) == 3)
        (ended,) = lines_of(log, "worker_ended")
        assert ended["worker"] == before[-1] and "fork server" in ended["reason"]
        os.kill(fork_server_of(service), signal.SIGKILL)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE) == 0 and not answers(service)


def test_several_workers_end_together(model: Path) -> None:
    with umpteen_serve(model, "--workers", "2") as service:
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(PATIENCE) == 0
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


def test_a_damaged_model_is_told_in_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (files_of(model) / "labels.db").write_text("{}")
    monkeypatch.setattr("sys.argv", ["umpteen", "serve", str(model), "--port", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    (told,) = capfd.readouterr().err.splitlines()
    assert ended.value.code == 2 and told.startswith("error: ") and "labels.db" in told
    assert "there is no such model folder" in str(refused(model / "nowhere", "--port", 0))


def test_an_engine_that_another_process_has_open_is_told(model: Path) -> None:
    build_index(model, "milvus", recall=0.9, k=1)
    with (part_of(model, "index") / "milvus" / "labels.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        problem = refused(model, "--port", 0)
    assert isinstance(problem, BadInput) and "stop that one" in str(problem)


def test_an_embedded_engine_has_one_worker(model: Path) -> None:
    build_index(model, "milvus", recall=0.9, k=1)
    problem = refused(model, "--port", 0, "--workers", 2)
    assert isinstance(problem, BadInput)
    assert "--workers 2: the embedded Milvus belongs to one process" in str(problem)


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
