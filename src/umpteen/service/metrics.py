"""What a service tells of itself: counters for Prometheus, which all workers share, and a log of JSON lines.

Each worker counts in its own memory and tells who watches them a few times a second, who tells it what the others
counted: whichever is asked gives the numbers of all. One that takes the place of another goes on from its counts.
"""

import asyncio
import json
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, BinaryIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# How what several workers say is one number, ours first; counts are summed.
_GAUGES: dict[str, Callable[[list[float]], float]] = {
    "umpteen_waiting_texts": sum,
    "umpteen_label_version": min,
    "umpteen_labels": lambda values: values[0],
    "umpteen_index_away": max,
}

Counts = dict[tuple[str, str, tuple[tuple[str, str], ...]], float]  # by family, name and labels
Exchange = Callable[[Counts], Counts]  # tells what this worker counted, and hears what the others did, together


class Metrics(Collector):
    """What one worker counts, `before` by one that died in its place; `text` is what all of them counted."""

    def __init__(self, exchange: Exchange | None = None, *, workers: int = 1, before: Counts | None = None) -> None:
        self._exchange = exchange
        self._told: Counts = {}
        self._others: Counts = {}
        self._before = without_gauges(before or {})
        self._ours = CollectorRegistry()
        to: dict[str, Any] = {"registry": self._ours, "namespace": "umpteen"}
        timed: dict[str, Any] = {**to, "buckets": _SECONDS}
        requests = Counter("requests", "Requests by route and status.", ["method", "route", "status"], **to)
        answers = Histogram("request_seconds", "From a request to its answer.", ["route"], **timed)
        self.closed = Counter("connections_closed", "Connections that had to go.", ["why"], **to).labels
        # Looking labels up costs more than counting.
        self._requests_of, self._seconds_of = cache(requests.labels), cache(answers.labels)
        self._batch_texts = Histogram("batch_texts", "Texts encoded together.", buckets=_TEXTS, **to)
        self._batch_seconds = Histogram("batch_seconds", "Encoding and searching a batch.", **timed)
        self.waiting = Gauge("waiting_texts", "Texts that wait for a batch.", **to)
        self.version = Gauge("label_version", "The version all workers have reached.", **to)
        self.labels = Gauge("labels", "Labels there are.", **to)
        self.index_away = Gauge("index_away", "1 while exact search stands in for it.", **to)
        self._all = CollectorRegistry()
        self._all.register(self)
        if workers == 1:
            ProcessCollector(registry=self._all)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests_of(method, route, status).inc()
        self._seconds_of(route).observe(seconds)

    def batch(self, texts: int, seconds: float) -> None:
        self._batch_texts.observe(texts)
        self._batch_seconds.observe(seconds)

    def tell(self) -> None:
        """Lets the other workers know, and whoever takes this one's place; hears what they counted."""
        if self._exchange is not None:
            with suppress(OSError, EOFError):  # who watches has ended, and soon this worker will
                told = self._counted()
                self._others, self._told = self._exchange(told), told

    def text(self) -> bytes:
        """All metrics, of all workers, in Prometheus' format."""
        return generate_latest(self._all)

    def collect(self) -> Iterator[Metric]:
        """Our families, with the samples of all workers."""
        ours = self._counted()
        # Of a version that nobody was told, nobody was heard either: another worker may be behind.
        ours |= {key: version for key, version in self._told.items() if key[0] == "umpteen_label_version"}
        samples = together([ours, self._others])
        for family in self._ours.collect():
            found = ((name, labels, value) for (of, name, labels), value in samples.items() if of == family.name)
            family.samples = [Sample(name, dict(labels), value) for name, labels, value in found]
            yield family

    def _counted(self) -> Counts:
        every = ((family.name, sample) for family in self._ours.collect() for sample in family.samples)
        kept = ((of, one) for of, one in every if not one.name.endswith("_created"))
        return together([{(of, one.name, tuple(one.labels.items())): one.value for of, one in kept}, self._before])


def without_gauges(told: Counts) -> Counts:
    """What counts even after the end of whoever told it."""
    return {key: value for key, value in told.items() if key[0] not in _GAUGES}


def together(workers: Iterable[Counts]) -> Counts:
    """What several workers counted, as one."""
    said: dict[Any, list[float]] = defaultdict(list)
    for samples in workers:
        for key, value in samples.items():
            said[key].append(value)
    return {key: _GAUGES.get(key[0], sum)(values) for key, values in said.items()}


_BETWEEN_WRITES = 0.2  # seconds


class Log:
    """JSON lines on stdout, gathered for a moment: a write for each request would cost as much as a small answer."""

    def __init__(self, *, on: bool, texts: bool = False, stream: BinaryIO | None = None) -> None:
        self.on = on
        self._texts = texts  # unless asked for, no texts, keys or searches stand in a line
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
