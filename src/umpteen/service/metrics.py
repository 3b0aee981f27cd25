"""What a service tells of itself: counters for Prometheus, which all workers share, and a log of JSON lines.

Each worker counts in its own memory and tells the others a few times a second, so that whichever is asked gives the
numbers of all; one that takes the place of another goes on from its counts.
"""

import asyncio
import json
import os
import pickle
import struct
import sys
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from multiprocessing.reduction import DupFd
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_HEAD = struct.Struct("<QII")  # turn, length, checksum
_HALF = 2**20  # bytes; nobody pays for those that are never written


class SharedCounts:
    """A place for each worker in a file in memory: read and written but never mapped, so that no full disk ends one.

    A place has two halves: the older is overwritten, the newest that is whole is read, whoever was killed meanwhile.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("umpteen-counts")
        else:
            with TemporaryFile() as file:  # which has no name either
                self._file = os.dup(file.fileno())

    def __getstate__(self) -> dict[str, Any]:
        return {"workers": self.workers, "file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.workers = state["workers"]
        self._file = state["file"].detach()

    def close(self) -> None:
        os.close(self._file)

    def write(self, worker: int, told: dict[Any, Any]) -> None:
        """Puts this in the place of what the worker had told before; only one process may write there at a time."""
        turn = self._newest(worker)[0] + 1
        content = pickle.dumps(told)
        if len(content) > _HALF - _HEAD.size:
            raise ValueError(f"{len(content):,} bytes of counts; a worker has room for {_HALF - _HEAD.size:,}")
        head = _HEAD.pack(turn, len(content), zlib.crc32(content))
        os.pwrite(self._file, head + content, (2 * worker + turn % 2) * _HALF)

    def read(self, worker: int) -> dict[Any, Any]:
        """What the worker told last; empty if that was nothing."""
        content = self._newest(worker)[1]
        return pickle.loads(content) if content else {}

    def _newest(self, worker: int) -> tuple[int, bytes]:
        """Turn and content. Never are both halves torn, but the writer may have gone on to the other meanwhile."""
        while not (whole := [found for half in (0, 1) if (found := self._half((2 * worker + half) * _HALF))]):
            pass
        return max(whole)

    def _half(self, start: int) -> tuple[int, bytes] | None:
        """None if it is being written, or was not written to its end."""
        turn, length, checksum = _HEAD.unpack(os.pread(self._file, _HEAD.size, start).ljust(_HEAD.size, b"\0"))
        content = os.pread(self._file, length, start + _HEAD.size)
        return (turn, content) if zlib.crc32(content) == checksum else None


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# How what several workers say is one number, ours first; counts are summed.
_GAUGES: dict[str, Callable[[list[float]], float]] = {
    "umpteen_waiting_texts": sum,
    "umpteen_label_version": min,
    "umpteen_labels": lambda values: values[0],
    "umpteen_index_away": max,
}

_Samples = dict[tuple[str, str, tuple[tuple[str, str], ...]], float]  # by family, name and labels


class Metrics(Collector):
    """What one worker counts; `text` is what all of them counted."""

    def __init__(self, shared: SharedCounts | None = None, place: int = 0) -> None:
        self._shared = shared
        self._place = place
        self._before = {} if shared is None else without_gauges(shared.read(place))  # by a worker that died
        self._ours = ours = CollectorRegistry()
        requests = Counter(
            "umpteen_requests", "Requests by route and status.", ["method", "route", "status"], registry=ours
        )
        answers = Histogram(
            "umpteen_request_seconds", "From a request to its answer.", ["route"], buckets=_SECONDS, registry=ours
        )
        # Looking labels up costs more than counting.
        self._requests_of, self._seconds_of = cache(requests.labels), cache(answers.labels)
        self._batch_texts = Histogram("umpteen_batch_texts", "Texts encoded together.", buckets=_TEXTS, registry=ours)
        self._batch_seconds = Histogram(
            "umpteen_batch_seconds", "Encoding and searching a batch.", buckets=_SECONDS, registry=ours
        )
        self.waiting = Gauge("umpteen_waiting_texts", "Texts that wait for a batch.", registry=ours)
        self.version = Gauge("umpteen_label_version", "The version all workers have reached.", registry=ours)
        self.labels = Gauge("umpteen_labels", "Labels there are.", registry=ours)
        self.index_away = Gauge("umpteen_index_away", "1 while exact search stands in for it.", registry=ours)
        self._all = CollectorRegistry()
        self._all.register(self)
        if shared is None or shared.workers == 1:
            ProcessCollector(registry=self._all)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests_of(method, route, status).inc()
        self._seconds_of(route).observe(seconds)

    def batch(self, texts: int, seconds: float) -> None:
        self._batch_texts.observe(texts)
        self._batch_seconds.observe(seconds)

    async def tell(self) -> None:
        """Lets the other workers know, and whoever takes this one's place."""
        if self._shared is not None:
            self._shared.write(self._place, self._counted())

    def text(self) -> bytes:
        """All metrics, of all workers, in Prometheus' format."""
        return generate_latest(self._all)

    def collect(self) -> Iterator[Metric]:
        """Our families, with the samples of all workers."""
        shared, ours = self._shared, self._place
        others = [shared.read(place) for place in range(shared.workers) if place != ours] if shared is not None else []
        samples = _together([self._counted(), *others])
        for family in self._ours.collect():
            found = ((name, labels, value) for (of, name, labels), value in samples.items() if of == family.name)
            family.samples = [Sample(name, dict(labels), value) for name, labels, value in found]
            yield family

    def _counted(self) -> _Samples:
        ours = {
            (family.name, sample.name, tuple(sample.labels.items())): sample.value
            for family in self._ours.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        return _together([ours, self._before])


def without_gauges(told: _Samples) -> _Samples:
    """What counts even after the end of whoever told it."""
    return {key: value for key, value in told.items() if key[0] not in _GAUGES}


def _together(workers: Iterable[_Samples]) -> _Samples:
    said: dict[Any, list[float]] = defaultdict(list)
    for samples in workers:
        for key, value in samples.items():
            said[key].append(value)
    return {key: _GAUGES.get(key[0], sum)(values) for key, values in said.items()}


_BETWEEN_WRITES = 0.2  # seconds


class Log:
    """JSON lines on stdout, gathered for a moment: a write for each request would cost as much as a small answer.

    Texts, keys and searches are not in them unless asked for.
    """

    def __init__(self, *, on: bool, texts: bool = False, stream: BinaryIO | None = None) -> None:
        self.on = on
        self._texts = texts
        self._stream = stream
        self._process = os.getpid()
        self._lines: list[bytes] = []
        self._writing: asyncio.Handle | None = None

    def request(self, **about: Any) -> None:
        self._add("request", about)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(_BETWEEN_WRITES, self._flush)

    def event(self, event: str, **about: Any) -> None:
        """Something that happened to the service; written at once."""
        if self.on:
            self._add(event, about)
            self._flush()

    def failure(self, problem: Exception) -> None:
        """An error nobody foresaw, even when the log is off; its message may quote texts, so only where it happened."""
        frames = traceback.extract_tb(problem.__traceback__)[-12:]
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        message = {"message": str(problem)} if self._texts else {}
        self._add("failure", {"error": type(problem).__name__, "where": where, **message})
        self._flush()

    def _add(self, event: str, about: dict[str, Any]) -> None:
        line = {"time": datetime.now(UTC), "event": event, "process": self._process, **about}
        try:
            self._lines.append(orjson.dumps(line, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE))
        except TypeError:  # a reason that names a path which is not UTF-8
            self._lines.append(json.dumps(line, default=str).encode() + b"\n")

    def _flush(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        lines, self._lines = self._lines, []
        with suppress(OSError, ValueError, AttributeError):  # whoever read the log has gone; the service goes on
            stream = self._stream or sys.stdout.buffer
            stream.write(b"".join(lines))
            stream.flush()
