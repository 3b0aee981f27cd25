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
from umpteen.training.build import build_run, pick_device

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
    evaluated: int
    processes: int


def predict(costs: Costs, work: Work, sizes: Sizes) -> Prediction:
    """What a process's share costs; what processes send each other is left out."""
    processes, batch, labels = work.processes, len(work.queries), -(-len(work.labels) // work.processes)
    seconds = on_line([(part.share, part.seconds) for part in costs.parts], 1 / processes)
    seconds[2] = on_line([(part.share**2, part.seconds[2]) for part in costs.parts], 1 / processes)
    seconds[4] = on_line([(part.share, part.seconds[4]) for part in costs.parts], 1)
    largest = largest_micro_batch(work.queries[::processes], work.labels[::processes], sizes.token_budget)
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


def make_plan(
    config: RunConfig, *, memory_gb: float | None, processes: int, verified: bool, progress: Progress
) -> dict[str, Any]:
    """Measures for some seconds and predicts the rest; `verified` runs some real steps afterwards.

    `memory_gb` is what a process may hold; without it, what the machine has available, shared by the processes.
    The keys are those of docs/how-to/planning.md.
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
        found = predict(costs, Work(batch, run.data.labels.lengths, evaluated, processes), sizes)
        return found._replace(memory={"building": building, **found.memory})

    sizes = Sizes(config.training.batch_size, config.training.token_budget, config.training.tile)
    prediction, loop = predicted(sizes), run.loop
    clock, processor = prediction.step.tolist()
    steps = loop.steps if loop.seconds is None else min(loop.steps, math.ceil(loop.seconds / clock))
    evaluation = float(prediction.evaluation[0])
    evaluations = 0
    if run.evaluator:
        evaluations = math.ceil(steps / loop.evaluate_every) if loop.evaluate_every else 1
    plan = {
        "processes": processes,
        "memory_gb": prediction.peak / 1e9,
        "memory_limit_gb": limit / 1e9,
        "memory_least_gb": predicted(Sizes(1, 1, 1)).peak / 1e9,
        "memory_of_labels_gb": 2 * -(-labels // processes) * costs.vector_bytes / 1e9,
        "fits": prediction.peak <= limit,
        "suggestion": {},
        "memory_by_phase_gb": {phase: size / 1e9 for phase, size in prediction.memory.items()},
        "seconds_per_step": clock,
        "processor_seconds_per_step": processor,
        "steps_per_epoch": run.sampler.batches_per_epoch,
        "seconds_per_epoch": clock * run.sampler.batches_per_epoch,
        "steps": steps,
        "seconds_per_evaluation": evaluation,
        "evaluations": evaluations,
        "seconds_total": steps * clock + (evaluations + 1) * evaluation,  # the last one is made to save the model
        "shares": {part: float(seconds[0]) / clock for part, seconds in prediction.seconds.items()},
    }
    if not plan["fits"]:
        longest_text = int(max(lengths.max(initial=1), run.data.labels.lengths.max(initial=1)))
        usual = even_tile(sizes.batch_size, -(-labels // processes))
        fitting = largest_that_fit(
            sizes, lambda each: predicted(each).peak, limit, usual_tile=usual, longest=longest_text
        )
        plan["suggestion"] = changes(sizes, fitting)
    return plan | (compared(prediction, verify(config)) if verified else {})


def changes(before: Sizes, after: Sizes | None) -> dict[str, int | None] | None:
    """The settings to change; None if no change is enough."""
    if after is None:
        return None
    pairs = zip(Sizes._fields, before, after, strict=True)
    return {f"training.{name}": new for name, old, new in pairs if new != old}


def compared(prediction: Prediction, measured: Measured) -> dict[str, float]:
    """What was measured, and predicted ÷ measured of what the measured run does: it saves nothing."""
    peak = max(size for phase, size in prediction.memory.items() if phase != "saving")
    clock, processor = (prediction.step / measured.step).tolist()
    found = {
        "measured_memory_gb": measured.memory / 1e9,
        "measured_seconds_per_step": float(measured.step[0]),
        "measured_processor_seconds_per_step": float(measured.step[1]),
        "memory_ratio": peak / measured.memory,
        "time_ratio": clock,
        "processor_time_ratio": processor,
    }
    if measured.evaluation.any():
        found["evaluation_ratio"] = float(prediction.evaluation[0] / measured.evaluation[0])
    return found


def advice(plan: dict[str, Any]) -> str:
    """What to do about a run that does not fit."""
    story = f"the run needs {plan['memory_gb']:.2f} GB and has {plan['memory_limit_gb']:.2f}"
    if plan["suggestion"] is not None:
        settings = " ".join(f"--set {key}={value}" for key, value in plan["suggestion"].items())
        return f"{story}; the largest settings that fit: {settings}"
    return (
        f"{story}; no batch, token budget or tile makes it fit: {plan['memory_least_gb']:.2f} GB are needed whatever "
        f"they are, {plan['memory_of_labels_gb']:.2f} of them for the labels' vectors and gradients, which more "
        "processes on more machines would share"
    )
