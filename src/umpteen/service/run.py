"""Runs the service: a light process watches the workers, which share a socket and a mapped model folder.

A worker that dies is started again; a service whose workers cannot start at all ends.
"""

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

from umpteen.errors import BadInput, UmpteenError
from umpteen.files.progress import Notice
from umpteen.parallel.allocator import keep_freed_memory
from umpteen.service.metrics import Counts, Log, Metrics, together, without_gauges
from umpteen.service.server import ENDING, listening_socket, serve_here
from umpteen.service.settings import ServiceSettings

_LOOKS = 0.5  # seconds between looks at the workers
_SHORTEST_LIFE = 5.0  # seconds; a worker that dies sooner waits before it is started again, longer each time
_LONGEST_TEMPORARY = 70  # bytes of a folder's name; a socket's has 107, and the server adds some
_LONGEST_PAUSE = 30.0  # seconds

_Served = tuple[Path, ServiceSettings, socket.socket]  # what a worker needs to know; all of them share it


def serve(model: Path, settings: ServiceSettings, announce: Notice) -> None:
    """Serves until SIGINT or SIGTERM, then finishes what it took; announces its address when it answers there."""
    stopping: list[int] = []  # no lock may be taken in a signal's handler: another may come while it has it
    before = {number: signal.signal(number, lambda number, _: stopping.append(number)) for number in ENDING}
    try:
        with listening_socket(settings.host, settings.port) as listener:
            _watch((model, settings, listener), stopping, lambda: announce(address_of(listener, settings.host)))
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def address_of(listener: socket.socket, host: str) -> str:
    """Where a browser finds it."""
    port = listener.getsockname()[1]
    shown = "localhost" if host in ("0.0.0.0", "::", "") else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def _watch(served: _Served, stopping: list[int], announce: Callable[[], None]) -> None:
    """Starts the workers, and others in the place of those that die, until it is to stop."""
    # A server that has imported everything once makes every worker by a fork, before torch has any threads; its socket
    # lies in the temporary folder, and such names are short.
    short = len(os.fsencode(tempfile.gettempdir())) < _LONGEST_TEMPORARY
    processes = multiprocessing.get_context("forkserver") if short else multiprocessing.get_context("spawn")
    processes.set_forkserver_preload(["umpteen.service.app"])
    workers: list[_Worker] = []
    _, settings, listener = served
    while len(workers) < settings.workers:
        workers.append(_Worker(processes, served, workers))
    announced = False
    try:
        while not stopping:
            wait([worker.news for worker in workers if worker.again is None], timeout=_LOOKS)
            for worker in workers:
                if not worker.lives() and not stopping:
                    worker.replace()
            if not announced and all(worker.ready for worker in workers):
                announced = True
                announce()
    finally:
        listener.close()  # nobody waits for a connection that no worker would take
        living = [worker for worker in workers if worker.lives()]
        for worker in living:
            worker.kill(signal.SIGTERM)  # it finishes what it took
        until = time.monotonic() + settings.shutdown_timeout + 5
        while living and time.monotonic() < until:
            wait([worker.news for worker in living], timeout=until - time.monotonic())
            living = [worker for worker in living if worker.lives()]
        for worker in living:
            worker.kill(signal.SIGKILL)


class _Worker:
    """A place among the workers: the process that has it, its counts, and the pipe that it holds open while it lives.

    The pipe tells its end: multiprocessing takes every worker for dead once the fork server that made them is killed.
    """

    def __init__(self, processes: ForkServerContext | SpawnContext, served: _Served, workers: "list[_Worker]") -> None:
        self._processes, self._served, self._workers = processes, served, workers
        self.counts: Counts = {}
        self._attempt = 0  # how often it was started again in short order; 0: with the service
        self._start()

    def _start(self) -> None:
        news, theirs = self._processes.Pipe()
        self._process = self._processes.Process(target=_work, args=(self._served, self.counts, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.news = news
        self._began = time.monotonic()
        self.ready = False
        self._problem: str | None = None  # why it could not start
        self.again: float | None = None  # when it has died: when another takes its place

    def lives(self) -> bool:
        """Hears what it has to tell, until its end, and tells it what the others counted."""
        try:
            while self.again is None and self.news.poll():
                told = self.news.recv()
                if isinstance(told, str):
                    self._problem = told
                else:
                    self.ready, self.counts = True, told
                    # One sum, however many they are: it has room in the pipe of a worker that is stopped.
                    self.news.send(together(worker.counts for worker in self._workers if worker is not self))
        except (EOFError, OSError):
            return False
        return self.again is None

    def kill(self, number: int) -> None:
        assert self._process.pid is not None
        with suppress(ProcessLookupError):  # it has ended by itself, and nobody has heard of it yet
            os.kill(self._process.pid, number)

    def replace(self) -> None:
        """Tells how it ended, and starts another in its place once the pause is over."""
        if self.again is None:
            self._tell_end()
        if self.again is not None and time.monotonic() >= self.again:
            try:
                self._start()
            except (OSError, EOFError) as problem:  # no memory for a process, or the fork server was killed just now
                Log(on=True).event("worker_not_started", reason=str(problem))
                self._pause()

    def _pause(self) -> None:
        """Before another start in short order, longer each time."""
        self._attempt += 1
        self.again = time.monotonic() + min(_LONGEST_PAUSE, 2.0 ** min(self._attempt, 16))

    def _tell_end(self) -> None:
        reason = self._problem or self._fate()
        if not self.ready and self._attempt == 0:
            advice = "what it wrote before tells why, and `umpteen verify` checks the model"
            raise BadInput(self._problem or f"a worker could not start, its end was {reason}; {advice}")
        self.counts = without_gauges(self.counts)
        Log(on=True).event("worker_ended", worker=self._process.pid, reason=reason)
        if self.ready and time.monotonic() - self._began > _SHORTEST_LIFE:
            self._attempt, self.again = 1, time.monotonic()
        else:
            self._pause()

    def _fate(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        if code < 0:
            return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return "not known: the fork server had ended before" if code == 255 else f"exit code {code}"


def _work(served: _Served, before: Counts, news: Connection) -> None:
    """One worker, from its start to its end."""
    os.dup(news.fileno())  # nobody closes this one before the process has ended, which is how its end is seen
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while it loads needs no traceback
    keep_freed_memory()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # batches are small, and the cores have work
    from umpteen.model.classifier import Classifier
    from umpteen.search.index import try_out
    from umpteen.service.app import create_app

    def exchange(counts: Counts) -> Counts:
        with one_at_a_time:
            news.send(counts)
            others: Counts = news.recv()
            return others

    threading.Thread(target=_end_with_parent, daemon=True).start()
    (model, settings, listener), one_at_a_time = served, threading.Lock()
    try:
        classifier = Classifier.load(model, ranker=settings.ranker)
        if settings.workers > 1 and classifier.index.one_process:
            advice = "run a single worker, build another index, or build it with --uri and the address of a cluster"
            raise BadInput(f"--workers {settings.workers}: the embedded Milvus belongs to one process; {advice}")
        try_out(classifier.index, classifier.towers.dimension)
        metrics = Metrics(exchange, workers=settings.workers, before=before)
        serve_here(create_app(classifier, settings, metrics), listener, metrics.tell)
    except UmpteenError as problem:
        news.send(str(problem))


def _end_with_parent() -> None:
    """A worker whose parent was killed ends, too; nobody would watch it, and it would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
