"""Counts of several workers: together whichever is asked, whole whoever is killed, and no file on any disk."""

import asyncio
import os
from multiprocessing import get_context
from pathlib import Path

import pytest

from umpteen.service.metrics import Metrics, SharedCounts


def told(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


def test_whichever_worker_is_asked_tells_the_counts_of_all() -> None:
    shared = SharedCounts(3)
    workers = [Metrics(shared, place) for place in range(3)]
    for version, worker in enumerate(workers, start=5):
        worker.request("POST", "/predict", 200, 0.003)
        worker.request("GET", f"/{version}", 404, 20)
        worker.batch(3, 0.004)
        worker.version.set(version)
        worker.waiting.set(version)
        worker.labels.set(version)
        worker.index_away.set(version == 6)
        asyncio.run(worker.tell())
    for version, worker in enumerate(workers, start=5):
        lines = told(worker)
        assert 'umpteen_requests_total{method="POST",route="/predict",status="200"} 3.0' in lines
        for other in (5, 6, 7):
            assert f'umpteen_requests_total{{method="GET",route="/{other}",status="404"}} 1.0' in lines
        assert 'umpteen_request_seconds_bucket{le="0.0025",route="/predict"} 0.0' in lines
        assert 'umpteen_request_seconds_bucket{le="0.005",route="/predict"} 3.0' in lines
        assert 'umpteen_request_seconds_count{route="/predict"} 3.0' in lines
        assert "umpteen_batch_texts_sum 9.0" in lines and "umpteen_waiting_texts 18.0" in lines
        assert "umpteen_label_version 5.0" in lines and "umpteen_index_away 1.0" in lines
        assert f"umpteen_labels {version}.0" in lines
        assert not [line for line in lines if "_created" in line or line.startswith("process_")]
    shared.close()


def test_our_own_counts_are_told_as_they_are_now() -> None:
    shared = SharedCounts(1)
    metrics = Metrics(shared)
    asyncio.run(metrics.tell())
    metrics.batch(1, 0.1)
    assert "umpteen_batch_texts_count 1.0" in told(metrics)
    shared.close()


def test_a_worker_goes_on_from_the_counts_of_the_one_whose_place_it_takes() -> None:
    shared = SharedCounts(2)
    for _ in range(3):
        worker = Metrics(shared, 1)
        worker.request("POST", "/predict", 200, 0.5)
        worker.version.set(7)
        asyncio.run(worker.tell())
    other = Metrics(shared, 0)
    other.version.set(9)
    lines = told(other)
    assert 'umpteen_requests_total{method="POST",route="/predict",status="200"} 3.0' in lines
    assert 'umpteen_request_seconds_sum{route="/predict"} 1.5' in lines and "umpteen_label_version 7.0" in lines
    shared.close()


def write_for_ever(shared: SharedCounts) -> None:
    for turn in range(10**9):
        shared.write(0, {"turn": turn, "filling": [turn] * 20_000})


def test_counts_are_read_whole_while_they_are_written_and_after_their_writer_is_killed() -> None:
    shared = SharedCounts(2)
    processes = get_context("forkserver")
    last = 0
    for _ in range(3):
        writer = processes.Process(target=write_for_ever, args=(shared,))
        writer.start()
        seen: set[int] = set()
        while len(seen) < 5:
            read = shared.read(0)
            if read:
                assert read["filling"] == [read["turn"]] * 20_000
                seen.add(read["turn"])
        writer.kill()
        writer.join()
        read = shared.read(0)
        assert read["filling"] == [read["turn"]] * 20_000
        last = read["turn"]
    assert last and shared.read(1) == {}
    shared.close()


def test_counts_need_no_room_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    if not hasattr(os, "memfd_create"):
        pytest.skip("no files in memory here")
    shared = SharedCounts(2)
    shared.write(1, {"counts": [1]})
    assert shared.read(1) == {"counts": [1]}
    shared.close()


def test_without_files_in_memory_a_file_without_a_name_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shared = SharedCounts(2)
    shared.write(1, {"counts": [1]})
    assert shared.read(1) == {"counts": [1]} and list(tmp_path.iterdir()) == []
    shared.close()


def test_a_full_disk_leaves_what_was_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedCounts(1)
    shared.write(0, {"counts": [1]})
    written = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: written(file, content[:-1], at))
    for _ in range(3):
        shared.write(0, {"counts": [2]})
        assert shared.read(0) == {"counts": [1]}
    monkeypatch.undo()
    shared.write(0, {"counts": [3]})
    assert shared.read(0) == {"counts": [3]}
    shared.close()


def test_counts_that_do_not_fit_are_refused() -> None:
    shared = SharedCounts(2)
    with pytest.raises(ValueError, match="a worker has room for"):
        shared.write(0, {"counts": ["x" * 2**20]})
    shared.close()
