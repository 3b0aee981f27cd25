"""A function run on 1, 2 or 3 processes that are joined as torchrun would join them.

The processes live as long as pytest: importing torch takes seconds. Each call makes a world of its own, and its meeting
place is a port that the system chose.
"""

import multiprocessing
import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from umpteen.errors import LostProcess
from umpteen.parallel.world import open_meeting

PATIENCE = 600.0  # seconds; guards against hanging, also on a machine that is slow and busy


class WorldFailed(Exception):
    """A process ended, hung, or raised what cannot be carried from one process to another."""


def run_world(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(world, *arguments)` returns on each process, by rank.

    The function and its arguments are pickled, so it stands at the top of a module. If it raises, so does this, with
    that process's traceback as a note; processes that only lost another one come last.
    """
    outcomes = try_world(size, function, *arguments)
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, LostProcess))
    return outcomes


def try_world(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The same, with the exception in place of a result where there was one; a process may even die."""
    task = pickle.dumps((function, arguments))
    workers = _pool.workers(size)
    meeting = open_meeting()
    try:
        for rank, worker in enumerate(workers):
            worker.give(_environment(rank, size, meeting.port), task)
        return _collect(workers, time.monotonic() + PATIENCE)
    except BaseException:  # pytest's timeout or Ctrl-C: what the processes are doing now is nobody's business any more
        _pool.discard(workers)
        raise


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """As torchrun sets it, over that of the test."""
    return {
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher's port, open already: no race for a free one
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    def give(self, environment: dict[str, str], task: bytes) -> None:
        self.connection.send_bytes(pickle.dumps((environment, sys.path, task)))

    def outcome(self) -> Any:
        """The result or the exception; waits for it."""
        try:
            return pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.process.join()
            return WorldFailed(f"the process ended with exit code {self.process.exitcode}")


def _collect(workers: list[_Worker], deadline: float) -> list[Any]:
    outcomes: dict[int, Any] = {}
    pending = {worker.connection: rank for rank, worker in enumerate(workers)}
    while pending:
        ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise WorldFailed(
                f"processes {sorted(pending.values())} of {len(workers)} are still busy; outcomes: {outcomes}"
            )
        for connection in ready:
            rank = pending.pop(connection)
            outcomes[rank] = workers[rank].outcome()
            if isinstance(outcomes[rank], Exception):
                outcomes[rank].add_note(f"on process {rank} of {len(workers)}")
    return [outcomes[rank] for rank in range(len(workers))]


class _Pool:
    """Processes made when they are first needed, and made anew when they have ended."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def workers(self, count: int) -> list[_Worker]:
        self.discard([worker for worker in self._workers if not worker.process.is_alive()])
        while len(self._workers) < count:
            self._workers.append(_start_worker())
        return self._workers[:count]

    def discard(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.connection.close()
        self._workers = [worker for worker in self._workers if worker not in workers]


_pool = _Pool()


def _start_worker() -> _Worker:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection) -> None:
    """Does one task after the other until pytest is gone."""
    while True:
        try:
            environment, path, task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        connection.send_bytes(_done(task))


def _done(task: bytes) -> bytes:
    """The pickled result of a task, or its pickled exception."""
    from umpteen.parallel.world import join_world

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
            function, arguments = pickle.loads(task)
            with join_world() as world:
                return pickle.dumps(function(world, *arguments))
    except Exception as error:
        trace = traceback.format_exc()
        error.add_note(trace)
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            return pickle.dumps(WorldFailed(trace))
        return pickled
