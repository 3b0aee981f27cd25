"""Runs the service: in this process, or in several that share one socket, one mapped model folder and their counters.

A worker that dies is started again; a service whose workers cannot start at all ends.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING

from umpteen.errors import BadInput, UmpteenError
from umpteen.service.log import Log
from umpteen.service.serving import listening_socket, serve_here
from umpteen.service.settings import ServiceSettings

if TYPE_CHECKING:
    pass

# Written out, because importing it from service/metrics.py would import prometheus_client before the folder is there.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_LOOKS = 0.5  # seconds between looks at the workers
_SHORTEST_LIFE = 5.0  # seconds; a worker that dies sooner waits before it is started again, longer each time
_LONGEST_PAUSE = 30.0  # seconds


@dataclass(frozen=True)
class Serving:
    """A model, and where and how it is served."""

    model: Path
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    host: str = "127.0.0.1"
    port: int = 8000
    ranker: bool = True


def serve(asked: Serving, announce: Callable[[str], None] = lambda address: None) -> None:
    """Serves until SIGINT or SIGTERM, then finishes what it took.

    A damaged model, or an index that another process has to itself, is found before a port is taken.
    """
    from umpteen.classifier import Classifier
    from umpteen.retrieval.index import try_out

    classifier = Classifier.load(asked.model, ranker=asked.ranker)
    if asked.settings.workers == 1:
        try_out(classifier.index, classifier.towers.dimension)
        with listening_socket(asked.host, asked.port) as listener:
            announce(address_of(listener, asked.host))
            serve_here(classifier, asked.settings, listener)
        return
    check_shareable(classifier.index, asked.settings.workers)
    classifier.index.close()
    del classifier  # each worker maps it itself
    with listening_socket(asked.host, asked.port) as listener, TemporaryDirectory(prefix="umpteen-serve-") as folder:
        Path(os.environ.setdefault(SHARED_METRICS, folder)).mkdir(parents=True, exist_ok=True)
        announce(address_of(listener, asked.host))
        _Workers(asked, listener).run()


def check_shareable(index: object, workers: int) -> None:
    """Refuses several workers over an index that belongs to one process."""
    if workers > 1 and getattr(index, "one_process", False):
        raise BadInput(
            f"--workers {workers}: the embedded Milvus belongs to one process; run a single worker, build another "
            "index, or build it with --uri and the address of a cluster"
        )


def address_of(listener: socket.socket, host: str) -> str:
    """Where a browser finds it."""
    port = listener.getsockname()[1]
    shown = "localhost" if host in ("0.0.0.0", "::", "") else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


@dataclass
class _Worker:
    process: BaseProcess
    news: Connection
    began: float
    attempt: int  # how often it was started again in short order; 0: with the service
    ready: bool = False
    problem: str | None = None  # why it could not start


class _Workers:
    """Starts, watches and ends the workers."""

    def __init__(self, asked: Serving, listener: socket.socket) -> None:
        self._asked = asked
        self._listener = listener
        # A server that has imported everything once makes every worker by a fork, before torch has any threads.
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["umpteen.service.app"])
        self._stopping = False

    def run(self) -> None:
        with _signals(self._stop):
            workers = [self._started() for _ in range(self._asked.settings.workers)]
            try:
                while not self._stopping:
                    wait([worker.process.sentinel for worker in workers], timeout=_LOOKS)
                    workers = [self._kept(worker) for worker in workers]
            finally:
                self._end(workers)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _started(self, attempt: int = 0) -> _Worker:
        ours, theirs = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=_work, args=(self._asked, self._listener, theirs), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, time.monotonic(), attempt)

    def _kept(self, worker: _Worker) -> _Worker:
        """The worker, or another in its place if it has died."""
        while not worker.ready and worker.news.poll():
            try:
                worker.problem = worker.news.recv()
            except EOFError:
                break
            worker.ready = worker.problem is None
        if worker.process.is_alive() or self._stopping:
            return worker
        code = worker.process.exitcode
        if not worker.ready and worker.attempt == 0:
            raise BadInput(f"a worker could not start: {worker.problem or f'it ended with exit code {code}'}")
        _forget_gauges(worker.process.pid)
        long_enough = worker.ready and time.monotonic() - worker.began > _SHORTEST_LIFE
        attempt = 1 if long_enough else worker.attempt + 1
        reason = worker.problem or f"exit code {code}"
        Log(on=self._asked.settings.access_log).event("worker_ended", worker=worker.process.pid, reason=reason)
        self._sleep(0 if long_enough else min(_LONGEST_PAUSE, 2.0**attempt))
        return self._started(attempt)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping:
            time.sleep(0.1)

    def _end(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.process.terminate()
        until = time.monotonic() + self._asked.settings.shutdown_timeout + 5
        for worker in workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _forget_gauges(process: int | None) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(process, os.environ[SHARED_METRICS])  # type: ignore[no-untyped-call]


def _work(asked: Serving, listener: socket.socket, news: Connection) -> None:
    """One worker, from its start to its end."""
    from umpteen.classifier import Classifier

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        classifier = Classifier.load(asked.model, ranker=asked.ranker)
        serve_here(classifier, asked.settings, listener, lambda: news.send(None))
    except UmpteenError as problem:
        news.send(str(problem))


def _end_with_parent() -> None:
    """A worker whose parent was killed ends, too; nobody would watch it, and it would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
