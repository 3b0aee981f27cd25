"""A few real steps in a process of their own, to hold a plan against: nothing is written."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from umpteen.assemble import build_run
from umpteen.config import RunConfig
from umpteen.errors import BadInput, UmpteenError
from umpteen.planning.meter import Meter, Seconds

STEPS = 20

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Measured:
    """What the steps really took."""

    step: Seconds  # the median one
    evaluation: Seconds  # nothing if there is none
    memory: int  # bytes at most held, evaluation included


def verify(
    config: RunConfig, progress: Progress, *, steps: int = STEPS, at_start: Callable[[], object] | None = None
) -> Measured:
    """Runs the recipe's first steps and the evaluation after them, and measures both.

    `at_start` is what the command does before anything else; the process must be like the one that will train.
    """
    spawned = multiprocessing.get_context("spawn")
    receiver, sender = spawned.Pipe(duplex=False)
    child = spawned.Process(target=_child, args=(sender, config, steps, at_start), daemon=True)
    child.start()
    sender.close()  # so that the end of the child is the end of the pipe
    try:
        while True:
            match receiver.recv():
                case Measured() as measured:
                    return measured
                case str(problem):
                    raise BadInput(problem)
                case (name, done, total):
                    progress(name, done, total)
    except EOFError:
        child.join()
        raise BadInput(f"the process that verifies ended early ({child.exitcode}); is there enough memory?") from None
    finally:
        child.kill()
        child.join()


def _child(connection: Connection, config: RunConfig, steps: int, at_start: Callable[[], object] | None) -> None:
    if at_start is not None:
        at_start()
    try:
        connection.send(measure(config, steps, lambda *report: connection.send(report)))
    except UmpteenError as error:
        connection.send(str(error))


def measure(config: RunConfig, steps: int, progress: Progress) -> Measured:
    """The same in this process."""
    training = config.training.model_copy(update={"steps": steps, "minutes": None})
    watch = _Watch(progress)
    run = build_run(config.model_copy(update={"training": training}), workspace=None, observer=watch, progress=progress)
    run.loop.run()
    device = next(run.towers.parameters()).device
    return Measured(watch.typical_step(), watch.evaluation, Meter(device).peak())


class _Watch:
    """Collects the seconds of each step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._steps = 0
        self._clocks = [np.zeros(2)]
        self._stepped_at = np.zeros(2)
        self.evaluation = np.zeros(2)

    def typical_step(self) -> Seconds:
        """The median; the first step is left out, since it also makes the optimizer's state."""
        steps = np.diff(np.stack(self._clocks), axis=0)
        return np.array([median(clock) for clock in (steps[1:] if len(steps) > 1 else steps).T])

    def started(self, step: int, steps: int) -> None:
        self._steps = steps

    def stepped(self, record: dict[str, Any]) -> None:
        self._clocks.append(np.array([record["seconds"], record["processor_seconds"]]))
        self._progress("verifying", record["step"], self._steps)
        self._stepped_at = _now()

    def evaluated(self, record: dict[str, Any]) -> None:
        self.evaluation = _now() - self._stepped_at

    def notice(self, message: str) -> None: ...


def _now() -> Seconds:
    return np.array([time.perf_counter(), time.process_time()])
