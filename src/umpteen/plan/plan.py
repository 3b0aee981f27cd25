"""From a recipe to its plan: build the run, calibrate, predict, and suggest what would fit if it does not."""

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import torch

from umpteen.config.settings import RunConfig
from umpteen.data.tokens import tokenise
from umpteen.errors import BadConfig, BadInput, UmpteenError
from umpteen.files.progress import Progress
from umpteen.objectives.scores import even_tile
from umpteen.parallel.meter import Meter, Seconds
from umpteen.parallel.world import cores
from umpteen.plan.measure import calibrate
from umpteen.plan.prediction import SAVING, Prediction, Sizes, largest_that_fit, memory, predict
from umpteen.plan.workload import StepWork, Workload
from umpteen.training.build import Run, build_run, loop_settings, pick_device, step_settings
from umpteen.training.loop import LoopSettings

STEPS = 20


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


@dataclass(frozen=True)
class Plan:
    """The prediction for a run, the memory it has, and what would fit if it does not."""

    prediction: Prediction
    sizes: Sizes
    memory: int  # bytes that a process may hold
    processes: int
    steps_per_epoch: int
    steps: int  # in all; fewer than the recipe's where its minutes end first
    evaluations: int
    suggestion: Sizes | None  # the sizes themselves if they fit; None if none do
    least: int  # bytes needed whatever the sizes,
    of_labels: int  # and how many of them the labels' vectors and gradients take
    measured: Measured | None = None

    @property
    def fits(self) -> bool:
        return self.prediction.peak <= self.memory

    @property
    def seconds_total(self) -> float:
        """Training, the evaluations on the way, and the last one, made when the model is saved."""
        evaluation = float(self.prediction.evaluation[0])
        return self.steps * float(self.prediction.step[0]) + (self.evaluations + 1) * evaluation

    @property
    def changes(self) -> dict[str, int | None] | None:
        """The settings to change for the run to fit, none if it does already; None if no change is enough."""
        if self.suggestion is None:
            return None
        pairs = zip(Sizes._fields, self.suggestion, self.sizes, strict=True)
        return {f"training.{name}": value for name, value, before in pairs if value != before}

    def advice(self) -> str:
        """What to do about a run that does not fit."""
        story = f"the run needs {self.prediction.peak / 1e9:.2f} GB and has {self.memory / 1e9:.2f}"
        if self.changes is not None:
            settings = " ".join(f"--set {key}={value}" for key, value in self.changes.items())
            return f"{story}; the largest settings that fit: {settings}"
        return (
            f"{story}; no batch, token budget or tile makes it fit: {self.least / 1e9:.2f} GB are needed whatever they "
            f"are, {self.of_labels / 1e9:.2f} of them for the labels' vectors and gradients, which more processes on "
            "more machines would share"
        )

    def ratios(self) -> dict[str, float]:
        """Predicted ÷ measured, of what the measured run does: it saves nothing."""
        assert self.measured is not None
        peak = max(size for phase, size in self.prediction.memory.items() if phase != SAVING)
        clock, processor = (self.prediction.step / self.measured.step).tolist()
        found = {"memory_ratio": peak / self.measured.memory, "time_ratio": clock, "processor_time_ratio": processor}
        if self.evaluations:
            found["evaluation_ratio"] = float(self.prediction.evaluation[0] / self.measured.evaluation[0])
        return found

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        step, evaluation = float(self.prediction.step[0]), float(self.prediction.evaluation[0])
        content: dict[str, Any] = {
            "processes": self.processes,
            "memory_gb": self.prediction.peak / 1e9,
            "memory_limit_gb": self.memory / 1e9,
            "fits": self.fits,
            "suggestion": self.changes,
            "memory_by_phase_gb": {phase: size / 1e9 for phase, size in self.prediction.memory.items()},
            "seconds_per_step": step,
            "processor_seconds_per_step": float(self.prediction.step[1]),
            "steps_per_epoch": self.steps_per_epoch,
            "seconds_per_epoch": step * self.steps_per_epoch,
            "steps": self.steps,
            "seconds_per_evaluation": evaluation,
            "evaluations": self.evaluations,
            "seconds_total": self.seconds_total,
            "shares": {part: float(seconds[0]) / step for part, seconds in self.prediction.seconds.items()},
        }
        if self.measured is not None:
            content["measured_memory_gb"] = self.measured.memory / 1e9
            content["measured_seconds_per_step"] = float(self.measured.step[0])
            content["measured_processor_seconds_per_step"] = float(self.measured.step[1])
            content |= self.ratios()
        return content


BATCHES = 4  # whose work is averaged


def make_plan(
    config: RunConfig,
    *,
    memory_gb: float | None = None,
    processes: int = 1,
    verified: bool = False,
    progress: Progress = lambda name, done, total: None,
    at_start: Callable[[], object] | None = None,
) -> Plan:
    """Measures for some seconds and predicts the rest; `verified` runs some real steps afterwards.

    `memory_gb` is what a process may hold; without it, what the machine has available, shared by the processes.
    `at_start` is what the process that trains will do first, as this one has.
    """
    if config.pool.name != "all":
        raise BadConfig(
            f'pool.name = "{config.pool.name}": a plan is made for steps over all labels; --set pool.name=all gives '
            "an upper bound"
        )
    if verified and processes > 1:
        raise BadInput("--verify runs one process; leave --processes out")
    meter = Meter(pick_device(config.training.device))
    limit = meter.available() // processes if memory_gb is None else int(memory_gb * 1e9)
    run = build_run(config, workspace=None, progress=progress)
    if len(run.data.labels) < processes:
        raise BadInput(f"{len(run.data.labels):,} labels cannot be shared by {processes} processes; use fewer of them")
    if processes > 1 and config.training.threads is None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // processes))  # as `umpteen train --processes` does
    planner = Planner(config, run, meter, processes, progress)
    sizes = Sizes(config.training.batch_size, config.training.token_budget, config.training.tile)
    prediction = planner.predict(sizes)
    steps, evaluations = _length(
        loop_settings(config, run.sampler.batches_per_epoch), prediction, run.evaluator is not None
    )
    return Plan(
        prediction,
        sizes,
        limit,
        processes,
        run.sampler.batches_per_epoch,
        steps,
        evaluations,
        suggestion=sizes if prediction.peak <= limit else planner.suggest(sizes, limit),
        least=planner.peak(Sizes(1, 1, 1)),
        of_labels=planner.label_bytes,
        measured=verify(config, progress, at_start=at_start) if verified else None,
    )


def _length(settings: LoopSettings, prediction: Prediction, evaluates: bool) -> tuple[int, int]:
    """Steps and evaluations of a run that does not stop early."""
    steps = settings.steps
    if settings.seconds is not None:
        steps = min(steps, math.ceil(settings.seconds / float(prediction.step[0])))
    evaluations = math.ceil(steps / settings.evaluate_every) if settings.evaluate_every else 1
    return steps, evaluations if evaluates else 0


class Planner:
    """A run that was built and calibrated: predictions at any sizes."""

    def __init__(self, config: RunConfig, run: Run, meter: Meter, processes: int, progress: Progress) -> None:
        building = meter.peak()
        evaluator, data = run.evaluator, run.data
        validation = tokenise(evaluator.split.texts, run.towers.query.tokenizer) if evaluator else None
        held = meter.settle()
        self._workload = Workload(
            data.queries,
            data.labels,
            shared=run.towers.shared,
            processes=processes,
            validation=validation,
            best=max(evaluator.at) if evaluator else 1,
        )
        self._settings = step_settings(config)
        self._rows = [run.sampler.rows(0, index) for index in range(min(BATCHES, run.sampler.batches_per_epoch))]
        self._work_of_batch: dict[int, list[StepWork]] = {}
        self._labels = -(-len(data.labels) // processes)
        self._longest = int(max(table.lengths.max(initial=1) for table in (data.queries, data.labels)))
        self._calibration = calibrate(
            run,
            self._settings,
            self._workload,
            self._rows[0],
            meter=meter,
            building=building,
            foreign=meter.held() - held,
            tell=lambda done, total: progress("calibrating", done, total),
        )

    @property
    def label_bytes(self) -> int:
        """What the vectors of a process's labels take, and their gradients."""
        return 2 * self._labels * self._calibration.vector_bytes

    def predict(self, sizes: Sizes) -> Prediction:
        """Of the run with these sizes."""
        batches = [self._workload.step(rows) for rows in self._rows]
        fraction = self._settings.replay_fraction
        return predict(batches, self._workload.evaluation(), self._calibration, sizes, replay_fraction=fraction)

    def peak(self, sizes: Sizes) -> int:
        """Bytes at most held with these sizes, by the process that needs most."""
        batch = sizes.batch_size
        if batch not in self._work_of_batch:
            self._work_of_batch[batch] = self._workload.step(self._rows[0][:batch])
        evaluation, thinned = self._workload.evaluation(), self._settings.replay_fraction is not None
        return max(memory([self._work_of_batch[batch]], evaluation, self._calibration, sizes, thinned=thinned).values())

    def suggest(self, sizes: Sizes, limit: int) -> Sizes | None:
        """The largest sizes that fit, if any do."""
        usual = even_tile(sizes.batch_size, self._labels)
        return largest_that_fit(sizes, self.peak, limit, usual_tile=usual, longest=self._longest)
