"""Counters, histograms and gauges in Prometheus' text format.

One worker counts in memory. Several share files in the folder PROMETHEUS_MULTIPROC_DIR names (prometheus_client's own
way, set by service/workers.py), so that whichever worker is asked tells the sum of all.
"""

import os
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """What one worker counts; `text` is what all of them counted."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._shared = SHARED in os.environ
        registry: dict[str, Any] = {"registry": self._registry}
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
        self.waiting = Gauge(
            "umpteen_waiting_texts", "Texts that wait for a batch.", multiprocess_mode="livesum", **registry
        )
        self.version = Gauge(
            "umpteen_label_version", "The version all workers have reached.", multiprocess_mode="livemin", **registry
        )
        self.labels = Gauge("umpteen_labels", "Labels there are.", multiprocess_mode="livemostrecent", **registry)
        self.index_away = Gauge(
            "umpteen_index_away", "1 while exact search stands in for it.", multiprocess_mode="livemax", **registry
        )
        self._known: dict[tuple[str, str, int], tuple[Any, Any]] = {}  # looking labels up costs more than counting
        if not self._shared:
            ProcessCollector(registry=self._registry)

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

    def text(self) -> bytes:
        """All metrics, of all workers."""
        if not self._shared:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
