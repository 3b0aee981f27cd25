"""Labels in Milvus, embedded or behind an address: right answers, keys and versions kept, absences survived."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch

from search.index_cases import (
    Keys,
    Truth,
    add,
    change,
    clustered,
    over,
    recall,
    remove,
    scores_are_inner_products,
    with_twins,
)
from umpteen.errors import BadInput, InUse
from umpteen.parallel.world import World
from umpteen.search import milvus as milvus_connection
from umpteen.search.certificate import tune
from umpteen.search.index import Effort, LiveVectors
from umpteen.search.milvus import HNSW, IVF_FLAT, MilvusAway, MilvusConnection, MilvusIndex
from worlds import run_world

COUNT = 600
NOTHING = np.arange(0)
PATIENCE = 120.0  # seconds; only what hangs takes so long
NOBODY = "http://127.0.0.1:9"  # the discard port, where nobody listens


def built(connection: MilvusConnection, base: torch.Tensor, labels: Keys | None = None) -> MilvusIndex:
    return MilvusIndex.over(connection, "labels", over(LiveVectors(base), labels), lambda done, total: None)


def opened(connection: MilvusConnection, base: torch.Tensor, settings: dict[str, Any]) -> MilvusIndex:
    """The index that was built of these vectors, of which none has changed since."""
    now, effort = over(LiveVectors(base)), Effort(**settings["effort"])
    return MilvusIndex(connection, settings["collection"], settings["structure"], now, effort, NOTHING)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[MilvusConnection]:
    opened = MilvusConnection(str(tmp_path / "labels.db"))
    yield opened
    opened.close()


def reached(client: Any) -> object:
    return client.list_collections()


def entities(index: MilvusIndex, expression: str) -> list[dict[str, object]]:
    fields = ["row", "key", "version", "retired"]
    found = index.query(expression, fields)
    return [{name: one[name] for name in fields} for one in found]


@pytest.mark.parametrize(("lengths", "structure"), [(0.0, HNSW), (0.8, IVF_FLAT)], ids=["unit", "stretched"])
def test_it_finds_what_a_full_sort_finds_before_and_after_changes(
    lengths: float, structure: str, connection: MilvusConnection, tmp_path: Path
) -> None:
    base = with_twins(clustered(COUNT, 1, lengths=lengths))
    queries = clustered(40, 2)
    index = built(connection, base)
    assert index.structure == structure
    tuned = tune(index, queries, 10, 0.95)
    assert tuned.recalls.mean() >= 0.95
    index.effort = index.efforts(10)[-1]  # all of it: how the engine divides its lists is chance
    found = index.search(queries, 10)
    assert recall(found, queries, Truth(base)) >= 0.95
    settings = index.save(tmp_path)

    again = opened(connection, base, settings)
    truth = Truth(base)
    change(again, truth, lengths=lengths, labels=Keys(4))
    for _ in range(2):  # before Milvus has heard of it, and after
        found = again.search(queries, 10)
        assert recall(found, queries, truth) >= 0.95
        scores_are_inner_products(found, queries, truth)
        again.write(np.arange(len(again.labels)), over(again.labels, Keys(4)))
    again.close()


def test_milvus_holds_keys_versions_and_who_is_retired(connection: MilvusConnection) -> None:
    base = clustered(40, 3)
    index = built(connection, base)
    remove(index, np.array([7]), Keys(4))
    add(index, np.array([5, 40]), clustered(2, 4).numpy(), Keys(4))
    index.write(np.array([5, 7, 40]), over(index.labels, Keys(4)))
    assert entities(index, "row in [5, 6, 7, 40]") == [
        {"row": 5, "key": "key-5", "version": 4, "retired": False},
        {"row": 6, "key": "key-6", "version": 3, "retired": False},
        {"row": 7, "key": "key-7", "version": 4, "retired": True},
        {"row": 40, "key": "key-40", "version": 4, "retired": False},
    ]
    unaware = LiveVectors(base, np.arange(40) != 8)  # so it is Milvus that leaves row 7 out
    assert 7 not in index.candidates(base[7:8], Effort(10, 64, 41), unaware)
    add(index, np.array([7]), base[7:8].numpy(), Keys(5))
    assert index.search(base[7:8], 1).rows.tolist() == [[7]]


def test_what_a_crash_left_unwritten_is_written_with_the_rest(
    connection: MilvusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, rows, new = built(connection, clustered(40, 5)), np.array([0, 1, 40]), clustered(3, 6).numpy()
    add(index, rows, new, Keys(4))
    monkeypatch.setattr("umpteen.search.milvus._NUMBERS_AT_A_TIME", 1)  # one row at a time
    real, written = MilvusIndex._upsert, iter(range(1))

    def crashing(own: MilvusIndex, entities: Any) -> None:
        if next(written, None) is None:
            raise KeyboardInterrupt
        real(own, entities)

    with monkeypatch.context() as patch:
        patch.setattr(MilvusIndex, "_upsert", crashing)
        with pytest.raises(KeyboardInterrupt):
            index.write(rows, over(index.labels, Keys(4)))
    assert [one["row"] for one in entities(index, "version == 4")] == [0]
    for _ in range(2):
        index.write(rows, over(index.labels, Keys(4)))
        assert [one["row"] for one in entities(index, "version == 4")] == [0, 1, 40]
        assert index.search(torch.from_numpy(new), 1).rows.tolist() == [[0], [1], [40]]


def test_a_collection_of_another_model_s_labels_is_not_written_to(
    connection: MilvusConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = clustered(40, 7)
    ours = built(connection, base)
    theirs = entities(ours, "row >= 0")
    others = over(LiveVectors(base), Keys(9, [f"other-{row}" for row in range(40)]))
    index = MilvusIndex(connection, "labels", HNSW, others, Effort(10, 20, 20), np.arange(40))
    monkeypatch.setattr(MilvusIndex, "open", lambda *_: index)
    monkeypatch.setattr(MilvusIndex, "close", lambda _: None)
    with pytest.raises(BadInput, match="holds another model's labels"):
        MilvusIndex.update(tmp_path, {}, others, np.arange(40))
    assert entities(ours, "row >= 0") == theirs


def in_another_process(_: World, uri: str) -> None:
    MilvusConnection(uri).call(reached)


def awake(_: World) -> None:
    """So that it need not start while a connection is idle, which gRPC ends after half a minute."""


def test_the_embedded_engine_belongs_to_one_process(connection: MilvusConnection) -> None:
    run_world(1, awake)
    connection.call(reached)
    with pytest.raises(InUse, match=r"belongs to one process.*single worker"):
        run_world(1, in_another_process, connection.uri)
    again = MilvusConnection(connection.uri)  # the same process may
    again.call(reached)
    again.close()
    connection.call(reached)


def test_who_cannot_be_reached_is_named() -> None:
    with pytest.raises(MilvusAway, match=r"127\.0\.0\.1:9.*is it running.*UMPTEEN_MILVUS_TOKEN"):
        built(MilvusConnection(NOBODY, timeout=1), clustered(9, 1))


def eventually(claim: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if claim():
            return True
        time.sleep(0.02)
    return False


class Server:
    """Milvus behind an address; what it holds survives its absences."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = socket.socket()  # keeps the port for it, and lets nobody connect
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("", 0))
        self.port = self._place.getsockname()[1]

    def start(self) -> str:
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        self._server, self._engine, self.port = start_server_in_thread(str(self._folder), port=self.port)
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.stop(grace=0).wait()
        self._engine.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server.db")
    yield made
    made.stop()
    made._place.close()


def test_exact_search_answers_while_milvus_is_away_and_milvus_when_it_is_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(milvus_connection.TOKEN, "somebody:secret")
    connection = MilvusConnection(server.start(), timeout=PATIENCE)
    base = clustered(COUNT, 1)
    queries = clustered(20, 2)
    made = built(connection, base)
    made.effort = Effort(10, 200, 20)
    settings = made.save(tmp_path)
    assert "secret" not in str(settings)

    monkeypatch.setattr("umpteen.search.milvus._FIRST_WAIT", 0.05)
    index = opened(connection, base, settings)
    truth = Truth(base)
    assert recall(index.search(queries, 10), queries, truth) >= 0.95 and index.away is None

    server.stop()
    connection.timeout = 1
    found = index.search(queries, 10)
    assert found.rows.tolist() == truth.search(queries, 10)
    assert index.away is not None and f"127.0.0.1:{server.port}" in index.away
    change(index, truth, labels=Keys(4))
    assert index.search(queries, 10).rows.tolist() == truth.search(queries, 10)

    connection.timeout = PATIENCE
    server.start()
    assert eventually(lambda: index.away is None) and index._keeper is None
    seen: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr("umpteen.search.milvus.exact_search", lambda *asked: seen.append(asked))
        assert recall(index.search(queries, 10), queries, truth) >= 0.95 and seen == []
    index.close()


def test_an_index_that_is_away_from_the_start_serves_all_the_same() -> None:
    base = clustered(50, 1)
    settings = {"collection": "labels", "structure": HNSW, "effort": Effort(10, 20, 20)._asdict()}
    index = opened(MilvusConnection(NOBODY, timeout=1), base, settings)
    assert index.away is None and index._keeper is None  # nobody has asked it for anything
    assert index.search(base[:3], 2).rows[:, 0].tolist() == [0, 1, 2]
    assert index.away is not None and index._keeper is not None
    index.close()
    assert not index._keeper.is_alive()


def test_an_index_can_be_closed_while_its_thread_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Event()

    class Slow(Thread):
        def start(self) -> None:
            begun.set()
            time.sleep(0.1)
            super().start()

    monkeypatch.setattr("umpteen.search.milvus.Thread", Slow)
    settings = {"collection": "labels", "structure": HNSW, "effort": Effort(1, 16, 10)._asdict()}
    index = opened(MilvusConnection(NOBODY, timeout=1), clustered(40, 1), settings)
    with ThreadPoolExecutor(1) as thread:
        searching = thread.submit(index.search, clustered(1, 2), 3)
        assert begun.wait(120)
        index.close()
        assert searching.result().width == 3
    assert index._keeper is not None and not index._keeper.is_alive()


def test_who_only_changes_labels_never_touches_milvus(tmp_path: Path) -> None:
    base = clustered(50, 1)
    settings = {"collection": "labels", "structure": HNSW, "effort": Effort(10, 20, 20)._asdict()}
    connection = MilvusConnection(str(tmp_path / "labels.db"))
    index = opened(connection, base, settings)
    add(index, np.array([50]), base[:1].numpy())
    remove(index, np.array([3]))
    index.close()
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_is_told_and_not_answered_from_elsewhere(
    connection: MilvusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use(_: str) -> None:
        raise InUse("another one has it open")

    monkeypatch.setattr("umpteen.search.milvus.own", in_use)
    settings = {"collection": "labels", "structure": HNSW, "effort": Effort(1, 16, 10)._asdict()}
    index = opened(connection, clustered(40, 1), settings)
    with pytest.raises(InUse):
        index.search(clustered(1, 2), 3)
