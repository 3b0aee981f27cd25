"""Counts of several workers: together whichever is asked, and no worker's are lost with it."""

import os
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from umpteen.service.metrics import Counts, Exchange, Metrics, together
from umpteen.service.run import _Worker


def told(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


class Watched:
    """Who watches the workers, without processes."""

    def __init__(self, workers: int) -> None:
        self.counts: list[Counts] = [{} for _ in range(workers)]

    def exchange(self, place: int) -> Exchange:
        def exchange(counts: Counts) -> Counts:
            self.counts[place] = counts
            return together(other for at, other in enumerate(self.counts) if at != place)

        return exchange


def test_whichever_worker_is_asked_tells_the_counts_of_all() -> None:
    watched = Watched(3)
    workers = [Metrics(watched.exchange(place), workers=3) for place in range(3)]
    for version, worker in enumerate(workers, start=5):
        worker.request("POST", "/predict", 200, 0.003)
        worker.request("GET", f"/{version}", 404, 20)
        worker.batch(3, 0.004)
        worker.version.set(version)
        worker.waiting.set(version)
        worker.labels.set(version)
        worker.index_away.set(version == 6)
        worker.tell()
    for version, worker in enumerate(workers, start=5):
        worker.tell()
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


def test_our_own_counts_are_told_as_they_are_now() -> None:
    metrics = Metrics(Watched(1).exchange(0))
    metrics.tell()
    metrics.batch(1, 0.1)
    assert "umpteen_batch_texts_count 1.0" in told(metrics)


def test_a_version_counts_as_reached_by_all_only_once_the_others_were_heard_of_since() -> None:
    watched = Watched(2)
    first, second = (Metrics(watched.exchange(place), workers=2) for place in range(2))
    first.tell()
    second.tell()  # of which the first has not heard yet
    first.version.set(1)
    assert "umpteen_label_version 0.0" in told(first)
    first.tell()
    assert "umpteen_label_version 0.0" in told(first)
    second.version.set(1)
    second.tell()
    first.tell()
    assert "umpteen_label_version 1.0" in told(first)


def test_a_worker_goes_on_from_the_counts_of_the_one_whose_place_it_takes() -> None:
    watched = Watched(2)
    for _ in range(3):
        worker = Metrics(watched.exchange(1), workers=2, before=watched.counts[1])
        worker.request("POST", "/predict", 200, 0.5)
        worker.version.set(7)
        worker.tell()
    other = Metrics(watched.exchange(0), workers=2)
    other.version.set(9)
    other.tell()
    lines = told(other)
    assert 'umpteen_requests_total{method="POST",route="/predict",status="200"} 3.0' in lines
    assert 'umpteen_request_seconds_sum{route="/predict"} 1.5' in lines and "umpteen_label_version 7.0" in lines


def test_a_worker_that_nobody_watches_any_more_tells_what_it_last_heard() -> None:
    def ended(_: Counts) -> Counts:
        raise EOFError

    metrics = Metrics(ended, workers=2)
    metrics.batch(1, 0.1)
    metrics.tell()
    assert "umpteen_batch_texts_count 1.0" in told(metrics)


def test_what_many_workers_counted_has_room_in_the_pipe_of_one_that_is_stopped() -> None:
    watched = Watched(1)
    worker = Metrics(watched.exchange(0))
    for route in range(20):
        for status in (200, 404, 422, 429, 503):
            worker.request("POST", f"/a/route/of/the/service/{route}", status, 0.25)
    worker.tell()
    workers: list[_Worker] = []
    theirs: list[Connection] = []

    class Process:
        def __init__(self, args: tuple[Any, ...], **_: object) -> None:
            theirs.append(Connection(os.dup(args[-1].fileno())))

        def start(self) -> None: ...

    with ExitStack() as stack:
        for _ in range(20):
            workers.append(_Worker(SimpleNamespace(Pipe=Pipe, Process=Process), None, workers))  # type: ignore[arg-type]
            stack.enter_context(workers[-1].news)
            stack.enter_context(theirs[-1])
            os.set_blocking(workers[-1].news.fileno(), False)  # what has no room is an error, which ends the worker
        for place, end in enumerate(theirs):
            end.send(watched.counts[0])
            assert workers[place].lives()  # nobody reads what it is told
        assert theirs[-1].recv() == {key: 19 * value for key, value in watched.counts[0].items()}


def test_counts_need_no_room_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    for made in ("mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile"):
        monkeypatch.setattr(f"tempfile.{made}", refuse)
    monkeypatch.setattr("os.memfd_create", refuse)
    test_whichever_worker_is_asked_tells_the_counts_of_all()
