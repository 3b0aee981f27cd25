"""From a recipe to its plan: build the run, measure for some seconds, and let arithmetic predict the rest."""

import math
import os
from bisect import bisect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from umpteen.config.settings import RunConfig
from umpteen.errors import BadConfig, BadInput
from umpteen.files.progress import Progress
from umpteen.objectives.scores import even_tile
from umpteen.parallel.meter import Meter, Seconds
from umpteen.parallel.world import cores
from umpteen.plan.measure import COPIES, PARTS, PHASES, Costs, Measured, largest_micro_batch, measure, on_line, verify
from umpteen.training.build import build_run, loop_settings, pick_device

BATCHES = 8  # that are measured
SMALLEST_TILE = 64


class Sizes(NamedTuple):
    """The settings that trade memory against speed."""

    batch_size: int
    token_budget: int
    tile: int | None


class Prediction(NamedTuple):
    """Of a process that has its share of the work."""

    seconds: dict[str, Seconds]  # of a step, by part
    evaluation: Seconds
    memory: dict[str, int]  # bytes at most held, by phase

    @property
    def step(self) -> Seconds:
        return sum(self.seconds.values(), np.zeros(2))

    @property
    def peak(self) -> int:
        return max(self.memory.values())


class Work(NamedTuple):
    """What the processes share: texts of a step by their lengths, and validation queries by their number."""

    queries: NDArray[np.int64]
    labels: NDArray[np.int64]
    shared: bool  # by one tower
    evaluated: int
    processes: int


def predict(costs: Costs, work: Work, sizes: Sizes) -> Prediction:
    """What a process's share costs; what processes send each other is left out."""
    processes, batch, labels = work.processes, len(work.queries), -(-len(work.labels) // work.processes)
    seconds = on_line([(part.share, part.seconds) for part in costs.parts], 1 / processes)
    seconds[2] = on_line([(part.share**2, part.seconds[2]) for part in costs.parts], 1 / processes)
    seconds[4] = on_line([(part.share, part.seconds[4]) for part in costs.parts], 1)
    largest = largest_micro_batch(work.queries[::processes], work.labels[::processes], work.shared, sizes.token_budget)
    extra = on_line([(part.largest, part.extra) for part in costs.parts], largest)
    extra[3] = costs.parts[-1].extra[3]  # the optimizer's does not grow with texts
    # What scores need goes with the queries and the numbers each has in its vector and in a tile.
    last, tile, numbers = costs.parts[-1], min(sizes.tile or even_tile(batch, labels), labels), costs.vector_bytes // 4
    extra[1] = last.extra[1] * batch * (tile + numbers) / (last.queries * (last.tile + numbers))
    by_phase = last.always + COPIES * (batch + labels) * costs.vector_bytes + extra
    memory = {phase: int(size) for phase, size in zip(PHASES, by_phase, strict=True)}
    evaluation = np.zeros(2)
    if work.evaluated:  # texts are encoded as in a step
        encoding = seconds[1] + seconds[0] * (work.evaluated / batch)
        evaluation = encoding + costs.search / processes + costs.report
        always = last.always + costs.gradient_bytes
        beyond_vectors = max(int(extra[0]), costs.search_bytes)
        memory["evaluation"] = always + (work.evaluated + labels) * costs.vector_bytes + beyond_vectors
        memory["saving"] = always + costs.saving_bytes
    return Prediction(dict(zip(PARTS, seconds, strict=True)), evaluation, memory)


def largest_that_fit(
    sizes: Sizes, peak: Callable[[Sizes], int], memory: int, *, usual_tile: int, longest: int
) -> Sizes | None:
    """The settings that lose least and whose peak fits the memory; None if there are none.

    The batch is part of what is learnt; tile and token budget only cost time. No budget is below the longest text,
    which has a micro-batch of its own anyway. `usual_tile` is the one that is chosen where none is set.
    """
    smallest = min(longest, sizes.token_budget)
    budgets = range(smallest, sizes.token_budget + 1)
    for batch_size in _halves(sizes.batch_size, 1):
        found = []
        for tile in (sizes.tile, *_halves((sizes.tile or usual_tile) // 2, SMALLEST_TILE)):
            least = Sizes(batch_size, smallest, tile)
            if peak(least) <= memory:
                with_budget = [least._replace(token_budget=budget) for budget in budgets]
                found.append(with_budget[bisect(with_budget, memory, key=peak) - 1])
        if found:
            return max(found, key=lambda each: each.token_budget)  # of equals the first, with the largest tile
    return None


def _halves(number: int, smallest: int) -> Iterator[int]:
    while number >= smallest:
        yield number
        number //= 2


class Plan(NamedTuple):
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
        peak = max(size for phase, size in self.prediction.memory.items() if phase != "saving")
        clock, processor = (self.prediction.step / self.measured.step).tolist()
        found = {"memory_ratio": peak / self.measured.memory, "time_ratio": clock, "processor_time_ratio": processor}
        if self.evaluations:
            found["evaluation_ratio"] = float(self.prediction.evaluation[0] / self.measured.evaluation[0])
        return found

    def to_dict(self) -> dict[str, Any]:
        step = float(self.prediction.step[0])
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
            "seconds_per_evaluation": float(self.prediction.evaluation[0]),
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


def make_plan(
    config: RunConfig, *, memory_gb: float | None, processes: int, verified: bool, progress: Progress
) -> Plan:
    """Measures for some seconds and predicts the rest; `verified` runs some real steps afterwards.

    `memory_gb` is what a process may hold; without it, what the machine has available, shared by the processes.
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
    labels = len(run.data.labels)
    if labels < processes:
        raise BadInput(f"{labels:,} labels cannot be shared by {processes} processes; use fewer of them")
    if processes > 1 and config.training.threads is None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // processes))  # as `umpteen train --processes` does
    building, lengths = meter.peak(), run.data.queries.lengths
    batches = [run.sampler.rows(0, number) for number in range(min(BATCHES, run.sampler.batches_per_epoch))]
    longest = max(range(len(batches)), key=lambda number: (len(batches[number]), lengths[batches[number]].max()))
    batches = [batches.pop(longest), *batches]  # what is longest needs most memory
    costs = measure(run, config, batches, meter, progress)
    evaluated = len(run.evaluator.split) if run.evaluator else 0

    def predicted(sizes: Sizes) -> Prediction:
        batch = lengths[batches[0][: sizes.batch_size]]
        found = predict(costs, Work(batch, run.data.labels.lengths, run.towers.shared, evaluated, processes), sizes)
        return found._replace(memory={"building": building, **found.memory})

    def peak(sizes: Sizes) -> int:
        return predicted(sizes).peak

    sizes = Sizes(config.training.batch_size, config.training.token_budget, config.training.tile)
    prediction, loop = predicted(sizes), loop_settings(config, run.sampler.batches_per_epoch)
    longest_text = int(max(lengths.max(initial=1), run.data.labels.lengths.max(initial=1)))
    usual = even_tile(sizes.batch_size, -(-labels // processes))
    fits = prediction.peak <= limit
    suggestion = sizes if fits else largest_that_fit(sizes, peak, limit, usual_tile=usual, longest=longest_text)
    steps = loop.steps
    if loop.seconds is not None:
        steps = min(steps, math.ceil(loop.seconds / float(prediction.step[0])))
    evaluations = math.ceil(steps / loop.evaluate_every) if loop.evaluate_every else 1
    return Plan(
        prediction,
        sizes,
        limit,
        processes,
        run.sampler.batches_per_epoch,
        steps,
        evaluations if run.evaluator else 0,
        suggestion,
        least=peak(Sizes(1, 1, 1)),
        of_labels=2 * -(-labels // processes) * costs.vector_bytes,
        measured=verify(config) if verified else None,
    )
