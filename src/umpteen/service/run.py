"""Runs the service: a light process watches the workers, which share a socket, a mapped model folder and their counts.

A worker that dies is started again; a service whose workers cannot start at all ends.
"""

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from umpteen.errors import BadInput, UmpteenError
from umpteen.files.progress import Notice
from umpteen.service.log import Log
from umpteen.service.metrics import SharedCounts
from umpteen.service.server import listening_socket, serve_here
from umpteen.service.settings import ServiceSettings

_LOOKS = 0.5  # seconds between looks at the workers
_SHORTEST_LIFE = 5.0  # seconds; a worker that dies sooner waits before it is started again, longer each time
_LONGEST_TEMPORARY = 70  # bytes of a folder's name; a socket's has 107, and the server adds some
_LONGEST_PAUSE = 30.0  # seconds


@dataclass(frozen=True)
class Serving:
    """A model, and where and how it is served."""

    model: Path
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    host: str = "127.0.0.1"
    port: int = 8000
    ranker: bool = True
    at_start: Callable[[], object] = dict  # what each worker does first; it has to be importable


def serve(asked: Serving, announce: Notice = lambda address: None) -> None:
    """Serves until SIGINT or SIGTERM, then finishes what it took; announces its address when it answers there.

    A worker that cannot start, be it for a damaged model or an index that another process has to itself, is an error.
    """
    with listening_socket(asked.host, asked.port) as listener, closing(SharedCounts(asked.settings.workers)) as counts:
        _Workers(asked, listener, counts).run(lambda: announce(address_of(listener, asked.host)))


def _check_shareable(one_process: bool, workers: int) -> None:
    """Refuses several workers over an index that belongs to one process."""
    if workers > 1 and one_process:
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
    """A process, and the pipe it holds open for as long as it lives.

    The pipe tells its end: multiprocessing takes every worker for dead once the fork server that made them is killed.
    """

    place: int
    process: BaseProcess
    news: Connection
    began: float
    attempt: int  # how often it was started again in short order; 0: with the service
    ready: bool = False
    problem: str | None = None  # why it could not start
    again: float | None = None  # when it has died: when another takes its place

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def lives(self) -> bool:
        """Hears what it has to tell, until its end."""
        try:
            while self.again is None and self.news.poll():
                self.problem = self.news.recv()
                self.ready = self.problem is None
        except (EOFError, OSError):
            return False
        return self.again is None

    def after_pause(self) -> float:
        """When the pause is over that precedes another start in short order, longer each time."""
        return time.monotonic() + min(_LONGEST_PAUSE, 2.0 ** (self.attempt + 1))

    def fate(self) -> str:
        """How it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        if code < 0:
            return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return "not known: the fork server had ended before" if code == 255 else f"exit code {code}"


class _Workers:
    """Starts, watches and ends the workers."""

    def __init__(self, asked: Serving, listener: socket.socket, counts: SharedCounts) -> None:
        self._asked = asked
        self._listener = listener
        self._counts = counts
        # A server that has imported everything once makes every worker by a fork, before torch has any threads; its
        # socket lies in the temporary folder, and such names are short.
        self._processes: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")
        if len(os.fsencode(tempfile.gettempdir())) < _LONGEST_TEMPORARY:
            self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["umpteen.service.app"])
        self._stopping = False

    def run(self, announce: Callable[[], None]) -> None:
        with _signals(self._stop):
            workers = [self._started(place) for place in range(self._asked.settings.workers)]
            announced = False
            try:
                while not self._stopping:
                    wait([worker.news for worker in workers if worker.again is None], timeout=_LOOKS)
                    workers = [self._kept(worker) for worker in workers]
                    if not announced and all(worker.ready for worker in workers):
                        announced = True
                        announce()
            finally:
                self._end(workers)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _started(self, place: int, attempt: int = 0) -> _Worker:
        ours, theirs = self._processes.Pipe(duplex=False)
        work = (self._asked, self._listener, self._counts, place, theirs)
        process = self._processes.Process(target=_work, args=work, daemon=True)
        process.start()
        theirs.close()
        return _Worker(place, process, ours, time.monotonic(), attempt)

    def _kept(self, worker: _Worker) -> _Worker:
        """The worker, or another in its place if it has died and its pause is over."""
        if worker.lives() or self._stopping:
            return worker
        if worker.again is None:
            worker.again = self._after_end_of(worker)
        if time.monotonic() < worker.again:
            return worker
        try:
            return self._started(worker.place, worker.attempt + 1)
        except (OSError, EOFError) as problem:  # no memory for another process, or the fork server was killed just now
            Log(on=True).event("worker_not_started", reason=str(problem))
            worker.attempt += 1
            worker.again = worker.after_pause()
            return worker

    def _after_end_of(self, worker: _Worker) -> float:
        """Tells how it ended, and when another is to take its place."""
        fate = worker.problem or worker.fate()
        if not worker.ready and worker.attempt == 0:
            advice = "what it wrote before tells why, and `umpteen verify` checks the model"
            raise BadInput(worker.problem or f"a worker could not start, its end was {fate}; {advice}")
        self._counts.write(worker.place, {**self._counts.read(worker.place), "gauges": []})
        Log(on=True).event("worker_ended", worker=worker.pid, reason=fate)
        if worker.ready and time.monotonic() - worker.began > _SHORTEST_LIFE:
            worker.attempt = 0
            return time.monotonic()
        return worker.after_pause()

    def _end(self, workers: list[_Worker]) -> None:
        """Nobody waits for a connection that no worker would take, and each worker may finish what it took."""
        self._listener.close()
        living = [worker for worker in workers if worker.lives()]
        for worker in living:
            os.kill(worker.pid, signal.SIGTERM)
        until = time.monotonic() + self._asked.settings.shutdown_timeout + 5
        while living and time.monotonic() < until:
            wait([worker.news for worker in living], timeout=until - time.monotonic())
            living = [worker for worker in living if worker.lives()]
        for worker in living:
            os.kill(worker.pid, signal.SIGKILL)


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _work(asked: Serving, listener: socket.socket, counts: SharedCounts, place: int, news: Connection) -> None:
    """One worker, from its start to its end."""
    os.dup(news.fileno())  # nobody closes this one before the process has ended, which is how its end is seen
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while it loads needs no traceback
    asked.at_start()
    from umpteen.model.classifier import Classifier
    from umpteen.search.index import try_out
    from umpteen.service.metrics import Metrics

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        classifier = Classifier.load(asked.model, ranker=asked.ranker)
        _check_shareable(classifier.index.one_process, asked.settings.workers)
        try_out(classifier.index, classifier.towers.dimension)
        serve_here(classifier, asked.settings, listener, lambda: news.send(None), Metrics(counts, place))
    except UmpteenError as problem:
        news.send(str(problem))


def _end_with_parent() -> None:
    """A worker whose parent was killed ends, too; nobody would watch it, and it would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
