"""From a recipe to its plan: build the run, calibrate, predict, and suggest what would fit if it does not."""

import math
import os
from collections.abc import Callable

import torch

from umpteen.assemble import Run, build_run, loop_settings, pick_device, step_settings
from umpteen.config import RunConfig
from umpteen.data.tokens import tokenise
from umpteen.errors import BadConfig, BadInput
from umpteen.objectives.tiles import even_tile
from umpteen.parallel.world import cores
from umpteen.planning.calibration import calibrate
from umpteen.planning.meter import Meter
from umpteen.planning.plan import Plan
from umpteen.planning.prediction import Prediction, Sizes, memory, predict
from umpteen.planning.suggestion import largest_that_fit
from umpteen.planning.verification import verify
from umpteen.planning.workload import StepWork, Workload
from umpteen.training.loop import LoopSettings

BATCHES = 4  # whose work is averaged

Progress = Callable[[str, int, int], None]


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
        loop_settings(config, run.sampler.batches_per_epoch), prediction, run.judge is not None
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
        judge, data = run.judge, run.data
        validation = tokenise(judge.split.texts, run.towers.query.tokenizer) if judge else None
        held = meter.settle()
        self._workload = Workload(
            data.queries,
            data.labels,
            shared=run.towers.shared,
            processes=processes,
            validation=validation,
            best=max(judge.at) if judge else 1,
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
