"""From a recipe to its plan: build the run, measure real steps for some seconds, and let arithmetic predict the rest.

Measured are small parts of a step first and then larger ones, until one takes a moment or is whole, with the run's own
objects and texts; its weights stay as they are.
"""

import math
import os
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from umpteen.config.settings import BankPool, RunConfig
from umpteen.data.labels import Relevance
from umpteen.encoders.encoder import micro_batches
from umpteen.encoders.rows import row_tables
from umpteen.errors import BadConfig, BadInput
from umpteen.files.progress import Progress
from umpteen.objectives.losses import build_objective
from umpteen.objectives.scores import even_tile
from umpteen.parallel.meter import Meter, finish, timed
from umpteen.parallel.world import Shard, World, cores
from umpteen.search.exact import top_k
from umpteen.search.ranking import Ranking
from umpteen.training.build import Run, build_run, pick_device
from umpteen.training.negatives.mined import Bank
from umpteen.training.observer import Observer
from umpteen.training.optimizer import set_learning_rate
from umpteen.training.step import TrainingData, TrainingStep

BATCHES = 8  # that are measured
SMALLEST_TILE = 64

Numbers = NDArray[np.float64]
Batches = Sequence[NDArray[np.int64]]  # rows of queries

PARTS = ("encode_queries", "encode_labels", "loss", "replay", "optimizer")
PHASES = ("encoding", "loss", "replay", "optimizer")
COPIES = np.array([1, 2, 2, 0])  # of every text's vector, gradients included, that are there in each phase
FIRST_TOKENS = 4096  # of the smallest part that is measured
LONG = 2.0  # seconds, on the clock or of processors; after a step that takes longer, nothing larger is measured
REPEAT_SECONDS, REPEATS = 4.0, 12  # what takes less is measured more than once
QUERIES_SEARCHED, LABELS_SEARCHED = 2048, 8192


def on_line(points: Sequence[tuple[float, Numbers]], size: float) -> Numbers:
    """Costs at a size on the line through those at two sizes; in proportion to the larger if noise lets it fall."""
    (smaller, low), (larger, high) = points[0], points[-1]
    proportional = high * (size / larger)
    if smaller == larger:
        return proportional
    slope = (high - low) / (larger - smaller)
    return np.where(slope < 0, proportional, np.maximum(high + slope * (size - larger), 0))


def largest_micro_batch(queries: NDArray[np.int64], labels: NDArray[np.int64], token_budget: int) -> int:
    """Padded tokens of the largest micro-batch of texts of these lengths."""
    sides = queries, labels
    return max(len(part) * max(1, int(side[part[0]])) for side in sides for part in micro_batches(side, token_budget))


class Part(NamedTuple):
    """What a step costs that has a share of the queries, of the labels and of the token budget."""

    share: float
    seconds: Numbers  # [5, 2] of its parts: on the clock, and of processors, which a busy machine leaves comparable
    always: int  # bytes held before it: program, data, weights, the optimizer's state
    extra: Numbers  # bytes [4] by phase, beyond vectors and their gradients
    largest: int  # padded tokens of its largest micro-batch
    queries: int
    tile: int
    encoded: float = 1.0  # share of the labels that are encoded


class Costs(NamedTuple):
    """What was measured: all that a prediction needs besides the work."""

    parts: Sequence[Part]  # the two largest
    vector_bytes: int  # of one
    label_bytes: int  # of a label's, in a step
    gradient_bytes: int  # of the weights
    saving_bytes: int  # copies of the weights made to write them
    search: float  # seconds of all validation queries among all labels in an evaluation,
    report: float  # and of the report
    search_bytes: int  # beyond vectors
    kept_bytes: int = 0  # of a label's vector between steps: a bank's


def measure(run: Run, config: RunConfig, batches: Batches, meter: Meter, progress: Progress) -> Costs:
    """The costs of steps over these queries, the batch that needs most memory first, and of an evaluation."""
    set_learning_rate(run.step.optimizer, 0.0)  # the weights stay as they are
    tokens = int(run.data.queries.lengths[batches[0]].sum() + run.data.labels.lengths.sum())
    share, parts = min(0.25, FIRST_TOKENS / max(tokens, 1)), list[Part]()
    while True:
        progress("measuring", round(99 * share), 100)
        parts.append(_part(run, config, batches, share, meter))
        is_long = parts[-1].seconds.sum(axis=0).min() > LONG
        is_large = 4 * parts[-1].extra.max() > meter.available() - meter.held()
        if share == 1 or (len(parts) > 1 and (is_long or is_large)):
            break
        share = min(1.0, 4 * share)
    weights = list(run.towers.parameters())
    vector_bytes, label_bytes = _vector_bytes(run, config)
    dense = sum(weight.grad.nbytes for weight in weights if weight.grad is not None)
    search = _search(run, meter)
    progress("measuring", 100, 100)
    return Costs(
        parts[-2:],
        vector_bytes,
        label_bytes,
        dense + sum(table.weight.nbytes for table in row_tables(run.towers).values()),
        2 * sum(weight.nbytes for weight in weights) if meter.device.type == "cpu" else 0,  # when the best are saved
        *search,
        label_bytes if config.pool.name == "bank" else 0,
    )


def _vector_bytes(run: Run, config: RunConfig) -> tuple[int, int]:
    """Of a query's vector in a step, and of a label's."""
    whole = run.towers.dimension * next(run.towers.parameters()).element_size()
    return whole, 2 * run.towers.dimension if config.training.half_labels else whole


def _part(run: Run, config: RunConfig, batches: Batches, share: float, meter: Meter) -> Part:
    """Bytes of the longest step, and seconds of the middle one of several."""
    data, labels, budget = run.data, len(run.data.labels), max(1, round(config.training.token_budget * share))
    smaller = config.model_copy(update={"training": config.training.model_copy(update={"token_budget": budget})})
    size = math.ceil(len(batches[0]) * share)
    rows = np.concatenate([batch[:size] for batch in batches])
    few = np.split(np.arange(len(rows)), np.cumsum([len(batch[:size]) for batch in batches])[:-1])
    chosen = np.sort(np.random.default_rng(0).choice(labels, math.ceil(labels * share), replace=False))
    # Folded onto fewer labels, not cut: a query has about as many to pull, which a bank encodes, as in the run.
    relevance = data.relevance.take(rows).moved(np.arange(labels) * len(chosen) // labels, len(chosen))
    filtered = Relevance(data.filtered.matrix[rows][:, chosen]).without(relevance)
    part = TrainingData(data.queries.take(rows), data.labels.take(chosen), relevance, filtered)
    objective = build_objective(config.objective, labels)
    marks, pool, kept = Marks(meter), None, 0
    if isinstance(config.pool, BankPool):
        turn = config.pool.model_copy(update={"renewed": math.ceil(config.pool.renewed * share)})
        pool = Bank(run.towers, part, Shard(World(), len(chosen)), turn, smaller, objective)
        anything = normalize(torch.randn(len(chosen), run.towers.dimension))  # encoding all is not part of a step
        anything = anything.bfloat16() if config.training.half_labels else anything
        pool.restore({"vectors": anything, "seen": torch.zeros(len(chosen), dtype=torch.int64)})
        kept = anything.nbytes
    step = TrainingStep(run.towers, part, objective, run.step.optimizer, smaller, mark=marks, pool=pool)
    step(few[-1], step=0, seed=0)  # libraries load, threads start, the optimizer makes its state
    run.step.optimizer.zero_grad(set_to_none=True)
    always, marks.weighs = meter.settle() - kept, True
    step(few[0], step=1, seed=0)
    peaks, marks.weighs = marks.peaks(), False
    meter.settle()
    outcome = step(few[0], step=2, seed=0)  # takes the memory that the others find
    runs: list[Numbers] = []
    while len(runs) < 2 or (len(runs) < REPEATS and np.sum(runs, axis=(0, 1)).min() < REPEAT_SECONDS):
        step(few[(1 + len(runs)) % len(few)], step=3 + len(runs), seed=0)
        runs.append(marks.seconds())
    peaks[2] = max(peaks[2], meter.peak())  # freed blocks of one shape seldom fit the next: several steps hold more
    vectors = int(np.dot((size, len(chosen)), _vector_bytes(run, config)))
    return Part(
        share,
        np.median(runs, axis=0),
        always,
        np.maximum(peaks - always - COPIES * vectors, 0),
        largest_micro_batch(part.queries.lengths[few[0]], part.labels.lengths, budget),
        size,
        min(config.training.tile or even_tile(size, len(chosen)), len(chosen)),
        outcome.replay.get("replayed", 1.0) if pool else 1.0,
    )


class Marks:
    """When the parts of the last step ended, and what was held at most until then."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._marks: list[tuple[str, Numbers]] = []
        self.weighs = False  # which costs time

    def __call__(self, name: str) -> None:
        finish(self._meter.device)
        peak = self._meter.peak() if self.weighs else 0
        mark = name, np.array([time.perf_counter(), time.process_time(), peak])
        self._marks = [mark] if name == "began" else [*self._marks, mark]
        if self.weighs:
            self._meter.settle()

    def seconds(self) -> Numbers:
        """By part [5, 2]."""
        names, marks = zip(*self._marks, strict=True)
        took = np.diff(np.stack(marks)[:, :2], axis=0)
        return np.stack([took[np.array(names[1:]) == part].sum(axis=0) for part in PARTS])

    def peaks(self) -> Numbers:
        """By phase [4]."""
        names = (PARTS[:2], ("loss",), ("replay",), ("optimizer",))
        return np.array([max(mark[2] for name, mark in self._marks if name in phase) for phase in names])


def _search(run: Run, meter: Meter) -> tuple[float, float, int]:
    """Seconds of an evaluation's search and report, and bytes beyond vectors; nothing where there is no validation."""
    evaluator, device, dimension = run.evaluator, meter.device, run.towers.dimension
    if evaluator is None:
        return 0.0, 0.0, 0
    best, split, count = max(evaluator.at), len(evaluator.split), len(run.data.labels)
    queries = torch.randn(min(split, QUERIES_SEARCHED), dimension, device=device)
    labels = torch.randn(max(min(count, LABELS_SEARCHED), best), dimension, device=device)
    before = meter.settle()
    top_k(queries, labels, best)
    search = timed(lambda: top_k(queries, labels, best), device) * (split * count / (len(queries) * len(labels)))
    found = ((np.arange(split)[:, None] + np.arange(best)) % count).astype(np.int32)
    ranking = Ranking(found, np.zeros(found.shape, dtype=np.float32), count)
    return search, timed(lambda: evaluator.report(ranking, bootstrap=0), device), max(0, meter.peak() - before)


class Sizes(NamedTuple):
    """The settings that trade memory against speed."""

    batch_size: int
    token_budget: int
    tile: int | None


class Prediction(NamedTuple):
    """Of a process that has its share of the work."""

    seconds: dict[str, Numbers]  # of a step, by part
    evaluation: float  # seconds on the clock
    memory: dict[str, int]  # bytes at most held, by phase

    @property
    def step(self) -> Numbers:
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
    by_phase = last.always + COPIES * (batch * costs.vector_bytes + labels * costs.label_bytes) + extra
    memory = {phase: int(size) for phase, size in zip(PHASES, by_phase, strict=True)}
    evaluation = 0.0
    if work.evaluated:  # texts are encoded as in a step
        encoding = float(seconds[1, 0] / last.encoded + seconds[0, 0] * (work.evaluated / batch))
        evaluation = encoding + costs.search / processes + costs.report
        always = last.always + costs.gradient_bytes + labels * costs.kept_bytes
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


def make_plan(config: RunConfig, *, memory_gb: float | None, processes: int, observer: Observer) -> dict[str, Any]:
    """Measures for some seconds and predicts the rest; the keys are those of docs/how-to/planning.md.

    `memory_gb` is what a process may hold; without it, what the machine has available, shared by the processes.
    """
    if config.pool.name not in ("all", "bank"):
        reason = "a plan is made for steps over all labels; --set pool.name=all gives an upper bound"
        raise BadConfig(f'pool.name = "{config.pool.name}": {reason}')
    meter = Meter(pick_device(config.training.device))
    limit = meter.available() // processes if memory_gb is None else int(memory_gb * 1e9)
    run = build_run(config, workspace=None, observer=observer)
    labels = len(run.data.labels)
    if labels < processes:
        raise BadInput(f"{labels:,} labels cannot be shared by {processes} processes; use fewer of them")
    if processes > 1 and config.training.threads is None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // processes))  # as many-machines.md advises
    building, lengths = meter.peak(), run.data.queries.lengths
    batches = [run.sampler.rows(0, number) for number in range(min(BATCHES, run.sampler.batches_per_epoch))]
    longest = max(range(len(batches)), key=lambda number: (len(batches[number]), lengths[batches[number]].max()))
    batches = [batches.pop(longest), *batches]  # what is longest needs most memory
    costs = measure(run, config, batches, meter, observer)
    evaluated = len(run.evaluator.split) if run.evaluator else 0

    def predicted(sizes: Sizes) -> Prediction:
        batch = lengths[batches[0][: sizes.batch_size]]
        found = predict(costs, Work(batch, run.data.labels.lengths, evaluated, processes), sizes)
        return found._replace(memory={"building": building, **found.memory})

    sizes = Sizes(config.training.batch_size, config.training.token_budget, config.training.tile)
    prediction, loop = predicted(sizes), run.loop
    clock, processor = prediction.step.tolist()
    steps = loop.steps if loop.seconds is None else min(loop.steps, math.ceil(loop.seconds / clock))
    evaluations = math.ceil(steps / loop.evaluate_every) if loop.evaluate_every else 1
    evaluations = evaluations if run.evaluator else 0
    plan = {
        "processes": processes,
        "memory_gb": prediction.peak / 1e9,
        "memory_limit_gb": limit / 1e9,
        "memory_least_gb": predicted(Sizes(1, 1, 1)).peak / 1e9,
        "memory_of_labels_gb": 2 * -(-labels // processes) * costs.label_bytes / 1e9,
        "fits": prediction.peak <= limit,
        "suggestion": {},
        "memory_by_phase_gb": {phase: size / 1e9 for phase, size in prediction.memory.items()},
        "seconds_per_step": clock,
        "processor_seconds_per_step": processor,
        "steps_per_epoch": run.sampler.batches_per_epoch,
        "seconds_per_epoch": clock * run.sampler.batches_per_epoch,
        "steps": steps,
        "seconds_per_evaluation": prediction.evaluation,
        "evaluations": evaluations,
        # The last evaluation is made to save the model.
        "seconds_total": steps * clock + (evaluations + 1) * prediction.evaluation,
        "labels_encoded_per_step": round(labels * costs.parts[-1].encoded),
        "shares": {part: float(seconds[0]) / clock for part, seconds in prediction.seconds.items()},
    }
    if not plan["fits"]:
        longest_text = int(max(lengths.max(initial=1), run.data.labels.lengths.max(initial=1)))
        limits = {"usual_tile": even_tile(sizes.batch_size, -(-labels // processes)), "longest": longest_text}
        fitting = largest_that_fit(sizes, lambda each: predicted(each).peak, limit, **limits)
        plan["suggestion"] = fitting and {
            f"training.{name}": new for name, old, new in zip(Sizes._fields, sizes, fitting, strict=True) if new != old
        }
    return plan


def advice(plan: dict[str, Any]) -> str:
    """What to do about a run that does not fit."""
    story = f"the run needs {plan['memory_gb']:.2f} GB and has {plan['memory_limit_gb']:.2f}"
    if plan["suggestion"] is not None:
        settings = " ".join(f"--set {key}={value}" for key, value in plan["suggestion"].items())
        return f"{story}; the largest settings that fit: {settings}"
    least = f"{plan['memory_least_gb']:.2f} GB are needed whatever they are, {plan['memory_of_labels_gb']:.2f} of them"
    shared = "for the labels' vectors and gradients, which more processes on more machines would share"
    return f"{story}; no batch, token budget or tile makes it fit: {least} {shared}"
