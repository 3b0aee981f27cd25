"""A function on several processes: what it returns, and what is said when one of them fails."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from umpteen.errors import BadInput, LostProcess
from umpteen.parallel.children import end_with_launcher, run_in_world
from umpteen.parallel.world import World


def ranks(world: World, word: str) -> tuple[int, list[str]]:
    return world.size, world.gather_objects(f"{word} {world.rank}")


def refuse_on_second(world: World) -> None:
    if world.rank == 1:
        raise BadInput("process 1 does not want to")
    world.wait()


def die_on_first(world: World) -> None:
    if world.rank == 0:
        os._exit(7)
    world.wait()


def sleep(world: World) -> None:
    time.sleep(60)


def test_every_process_answers_by_rank() -> None:
    assert run_in_world(2, ranks, "process") == [(2, ["process 0", "process 1"])] * 2


def test_the_error_of_one_process_is_told() -> None:
    with pytest.raises(LostProcess, match="process 1 of 2: process 1 does not want to"):
        run_in_world(2, refuse_on_second)


def test_a_process_that_dies_is_named() -> None:
    with pytest.raises(LostProcess, match="process 0 of 2: ended with exit code 7"):
        run_in_world(2, die_on_first)


def test_patience_ends() -> None:
    with pytest.raises(LostProcess, match="no answer in time from process 0 of 1"):
        run_in_world(1, sleep, seconds=0.5)


def test_a_process_whose_launcher_ended_before_it_could_look_ends_too() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", ""])
    launcher.wait()
    told = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        end_with_launcher(launcher.pid)
        # In short waits: a handler runs in this thread, and the signal may reach another one, which wakes nobody.
        assert any(told.wait(0.1) for _ in range(600))
    finally:
        signal.signal(signal.SIGTERM, before)
