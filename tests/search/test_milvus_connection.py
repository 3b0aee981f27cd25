"""One connection for all threads: its client comes and goes once, and nobody waits for anybody's call."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from umpteen.search import milvus as milvus_connection
from umpteen.search import milvus as milvus_engine
from umpteen.search.milvus import MilvusAway, MilvusConnection

ADDRESS = "http://milvus.example:19530"
SOON = 120.0  # seconds; what would never happen has not happened by then


class Client:
    """In the place of pymilvus' client."""

    made: list["Client"]

    def __init__(self, *_: object, **__: object) -> None:
        time.sleep(0.05)  # so that others come while it connects
        self.closed = 0
        self.made.append(self)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    Client.made = []
    monkeypatch.setattr(milvus_connection, "installed", lambda *_: SimpleNamespace(MilvusClient=Client))
    return Client.made


def failing(_: object) -> None:
    raise ValueError("it broke")


def test_threads_that_come_at_once_share_one_client(made: list[Client]) -> None:
    connection, together = MilvusConnection(ADDRESS), Barrier(4)

    def used(_: int) -> Any:
        together.wait(SOON)
        return connection.call(lambda client: client)

    with ThreadPoolExecutor(4) as threads:
        clients = list(threads.map(used, range(4)))
    assert clients == made * 4 and len(made) == 1
    connection.close()
    assert made[0].closed == 1


def test_a_search_does_not_wait_for_a_write(made: list[Client]) -> None:
    connection, written, searched = MilvusConnection(ADDRESS), Event(), Event()

    def write(_: object) -> bool:
        written.set()
        return searched.wait(SOON)

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(connection.call, write)
        assert written.wait(SOON)
        connection.call(lambda client: searched.set())
        assert writing.result()


def test_a_call_that_failed_late_leaves_the_client_that_others_have_opened_since(made: list[Client]) -> None:
    connection, begun, reopened = MilvusConnection(ADDRESS), Event(), Event()

    def fails_late(_: object) -> None:
        begun.set()
        reopened.wait(SOON)
        raise ValueError("it broke")

    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(connection.call, fails_late)
        assert begun.wait(SOON)
        with pytest.raises(MilvusAway):
            connection.call(failing)
        connection.call(lambda client: None)
        reopened.set()
        with pytest.raises(MilvusAway, match="it broke"):
            late.result()
    first, second = made
    assert (first.closed, second.closed) == (1, 0)
    assert connection.call(lambda client: client) is second


@pytest.mark.parametrize("error", [grpc.RpcError("deadline exceeded"), grpc.FutureTimeoutError("deadline exceeded")])
def test_a_milvus_that_does_not_answer_in_time_is_away(error: Exception, made: list[Client]) -> None:
    def hanging(_: object) -> None:
        raise error

    with pytest.raises(MilvusAway, match="deadline exceeded"):
        MilvusConnection(ADDRESS).call(hanging)
    assert made[0].closed == 1


def test_who_is_still_at_work_after_the_end_opens_nothing(made: list[Client], tmp_path: Path) -> None:
    connection = MilvusConnection(str(tmp_path / "labels.db"))
    connection.call(lambda client: None)
    connection.close()
    connection.close()
    with pytest.raises(MilvusAway, match="closed"):
        connection.call(lambda client: client)
    assert len(made) == 1 and not milvus_engine._OWNED


@pytest.mark.parametrize("address", [ADDRESS, "labels.db"])
def test_an_address_that_is_not_believed_is_not_connected_to(address: str, made: list[Client]) -> None:
    connection = MilvusConnection(address, refused="nobody vouches for it")
    with pytest.raises(MilvusAway, match=f"{address}: nobody vouches for it"):
        connection.call(lambda client: client)
    connection.close()
    assert made == []


def test_an_engine_whose_folder_is_not_there_is_away(tmp_path: Path) -> None:
    with pytest.raises(MilvusAway, match=r"nowhere.labels\.db"):
        MilvusConnection(str(tmp_path / "nowhere" / "labels.db")).call(lambda client: client)
