"""Counters, histograms and gauges in Prometheus' text format.

Each worker counts in its own memory and tells the others a few times a second (service/counts.py), so that whichever is
asked gives the numbers of all; one that takes the place of another goes on from its counts.
"""

import json
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_HEAD = struct.Struct("<QII")  # turn, length, checksum
_HALF = 2**20  # bytes; nobody pays for those that are never written


# What every worker has counted, where all of them read it: a file in memory that is read and written, never mapped.
#
# So neither a full disk nor a full /dev/shm ends a worker, and one that is killed while it writes leaves what it wrote
# before.
class SharedCounts:
    """A place for each worker, which has two halves: the older is overwritten, the newest that is whole is read."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._file = _new_file()

    def __getstate__(self) -> dict[str, Any]:
        return {"workers": self.workers, "file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.workers = state["workers"]
        self._file = state["file"].detach()

    def close(self) -> None:
        os.close(self._file)

    def write(self, worker: int, told: dict[str, Any]) -> None:
        """Puts this in the place of what the worker had told before; only one process may write there at a time."""
        turn = self._newest(worker)[0] + 1
        content = json.dumps(told).encode()
        if len(content) > _HALF - _HEAD.size:
            raise ValueError(f"{len(content):,} bytes of counts; a worker has room for {_HALF - _HEAD.size:,}")
        head = _HEAD.pack(turn, len(content), zlib.crc32(content))
        os.pwrite(self._file, head + content, (2 * worker + turn % 2) * _HALF)

    def read(self, worker: int) -> dict[str, Any]:
        """What the worker told last; empty if that was nothing."""
        content = self._newest(worker)[1]
        told: dict[str, Any] = json.loads(content) if content else {}
        return told

    def _newest(self, worker: int) -> tuple[int, bytes]:
        """Turn and content. Never are both halves torn, but the writer may have gone on to the other meanwhile."""
        while not (whole := [found for half in (0, 1) if (found := self._half(worker, half))]):
            pass
        return max(whole)

    def _half(self, worker: int, half: int) -> tuple[int, bytes] | None:
        """None if it is being written, or was not written to its end."""
        start = (2 * worker + half) * _HALF
        head = os.pread(self._file, _HEAD.size, start)
        turn, length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0)
        content = os.pread(self._file, length, start + _HEAD.size)
        return (turn, content) if zlib.crc32(content) == checksum else None


def _new_file() -> int:
    """A descriptor of a file that has no name; in memory, where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("umpteen-counts")
    file, name = mkstemp()
    Path(name).unlink()
    return file


CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# How what several workers say is one number, ours first; all else is summed.
_ONE_NUMBER: dict[str, Callable[[list[float]], float]] = {
    "umpteen_label_version": min,
    "umpteen_labels": lambda values: values[0],
    "umpteen_index_away": max,
}

# Family, name and labels of a sample → its value.
_Samples = dict[tuple[str, str, tuple[tuple[str, str], ...]], float]


class Metrics(Collector):
    """What one worker counts; `text` is what all of them counted."""

    def __init__(self, shared: SharedCounts | None = None, place: int = 0) -> None:
        self._shared = shared
        self._place = place
        self._ours = CollectorRegistry()
        registry: dict[str, Any] = {"registry": self._ours}
        self._requests = Counter(
            "umpteen_requests", "Requests by route and status.", ["method", "route", "status"], **registry
        )
        self._seconds = Histogram(
            "umpteen_request_seconds", "From a request to its answer.", ["route"], buckets=SECONDS, **registry
        )
        self._batch_texts = Histogram("umpteen_batch_texts", "Texts encoded together.", buckets=TEXTS, **registry)
        self._batch_seconds = Histogram(
            "umpteen_batch_seconds", "Encoding and searching a batch.", buckets=SECONDS, **registry
        )
        self.waiting = Gauge("umpteen_waiting_texts", "Texts that wait for a batch.", **registry)
        self.version = Gauge("umpteen_label_version", "The version all workers have reached.", **registry)
        self.labels = Gauge("umpteen_labels", "Labels there are.", **registry)
        self.index_away = Gauge("umpteen_index_away", "1 while exact search stands in for it.", **registry)
        self._known: dict[tuple[str, str, int], tuple[Any, Any]] = {}  # looking labels up costs more than counting
        self._before = {} if shared is None else _samples(shared.read(place).get("counts", []))  # by a worker that died
        self._all = CollectorRegistry()
        self._all.register(self)
        if shared is None or shared.workers == 1:
            ProcessCollector(registry=self._all)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        known = self._known.get((method, route, status))
        if known is None:
            known = self._requests.labels(method, route, str(status)), self._seconds.labels(route)
            self._known[method, route, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def batch(self, texts: int, seconds: float) -> None:
        """Counts a batch."""
        self._batch_texts.observe(texts)
        self._batch_seconds.observe(seconds)

    async def tell(self) -> None:
        """Lets the other workers know, and whoever takes this one's place."""
        if self._shared is not None:
            families = list(self._ours.collect())
            gauges = {family.name for family in families if family.type == "gauge"}
            told: dict[str, list[Any]] = {"counts": [], "gauges": []}
            for key, value in self._counted(families).items():
                told["gauges" if key[0] in gauges else "counts"].append([*key, value])
            self._shared.write(self._place, told)

    def text(self) -> bytes:
        """All metrics, of all workers."""
        return generate_latest(self._all)

    def collect(self) -> Iterator[Metric]:
        """Our families, with the samples of all workers."""
        families = list(self._ours.collect())
        of_families: dict[str, list[Sample]] = defaultdict(list)
        for (family, name, labels), value in _together([self._counted(families), *self._others()]).items():
            of_families[family].append(Sample(name, dict(labels), value))
        for found in families:
            found.samples = of_families[found.name]
            yield found

    def _counted(self, families: Iterable[Metric]) -> _Samples:
        ours = {
            (family.name, sample.name, tuple(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        return _together([ours, self._before])

    def _others(self) -> Iterator[_Samples]:
        if self._shared is not None:
            for place in set(range(self._shared.workers)) - {self._place}:
                yield _samples(row for rows in self._shared.read(place).values() for row in rows)


def _samples(rows: Iterable[Any]) -> _Samples:
    return {(family, name, tuple(map(tuple, labels))): value for family, name, labels, value in rows}


def _together(workers: Iterable[_Samples]) -> _Samples:
    said: dict[Any, list[float]] = defaultdict(list)
    for samples in workers:
        for key, value in samples.items():
            said[key].append(value)
    return {key: _ONE_NUMBER.get(key[0], sum)(values) for key, values in said.items()}
