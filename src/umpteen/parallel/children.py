"""Processes of this machine that belong together: a function on several of them, and how they are asked to stop."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from umpteen.errors import LostProcess, UmpteenError
from umpteen.parallel.world import cores, join_world, open_meeting


def run_in_world(size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 300.0) -> list[Any]:
    """What `function(world, *arguments)` returns on each process, by rank.

    The function and its arguments are pickled, so it stands at the top of a module. LostProcess tells the first error,
    or that there was no answer within so many seconds; none of the processes outlives the call.
    """
    # A server that has imported all this once makes every process by a fork, before torch has any threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, function.__module__])
    meeting = open_meeting()
    environment = {  # as torchrun sets it
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is here already, at a port that nobody else can take
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    children: dict[Connection, BaseProcess] = {}  # by rank: what each answers, and itself
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            own = {**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = context.Process(target=_work, args=(theirs, own, function, arguments), daemon=True)
            process.start()
            theirs.close()
            children[ours] = process
        return _answers(children, time.monotonic() + seconds)
    finally:
        for answer, child in children.items():
            child.kill()
            child.join()
            answer.close()


def _answers(children: Mapping[Connection, BaseProcess], deadline: float) -> list[Any]:
    answers: dict[int, Any] = {}
    lost: list[str] = []
    pending = {answer: rank for rank, answer in enumerate(children)}
    while pending:
        ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = ", ".join(map(str, sorted(pending.values())))
            raise LostProcess(lost[0] if lost else f"no answer in time from process {silent} of {len(children)}")
        for answer in ready:
            assert isinstance(answer, Connection)
            rank = pending.pop(answer)
            try:
                found = answers[rank] = answer.recv()
            except EOFError:
                children[answer].join()
                found = UmpteenError(f"ended with exit code {children[answer].exitcode}")
            if isinstance(found, UmpteenError):
                lost.append(f"process {rank} of {len(children)}: {found}")
                if not isinstance(found, LostProcess):  # else the one it has lost may still say why
                    raise LostProcess(lost[-1])
    if lost:
        raise LostProcess(lost[0])
    return [answers[rank] for rank in range(len(children))]


def _work(answer: Connection, environment: dict[str, str], function: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(environment)
    torch.set_num_threads(max(1, cores() // int(environment["WORLD_SIZE"])))
    try:
        with join_world() as world:
            answer.send(function(world, *arguments))
    except Exception as problem:  # whatever it is, it has to reach the process that asked
        kind = LostProcess if isinstance(problem, LostProcess) else UmpteenError
        answer.send(kind(str(problem) or type(problem).__name__))


class StopRequest:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: do not wait for the step
        self.signal = number


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Listens while the block runs, then puts the old handlers back; outside the main thread nothing can listen."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    old = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def end_with_launcher(launcher: int) -> None:
    """Sends this process SIGTERM when the one that started it has ended, be it by SIGKILL: no run goes on unseen."""
    # A machine's first process stops all by its own signal; a second one could end it before it has said so.
    patience = 0 if os.environ.get("LOCAL_RANK", "0") == "0" else 30

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        time.sleep(patience)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()
