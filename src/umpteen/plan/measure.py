"""Real steps of a run, first of small parts of it and then of larger ones, until one takes a moment or is whole.

What is measured is what a step does, with the run's own objects and texts; its weights stay as they are.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from umpteen.config.settings import RunConfig
from umpteen.data.labels import Relevance
from umpteen.encoders.encoder import micro_batches
from umpteen.encoders.rows import row_tables
from umpteen.files.progress import Progress
from umpteen.objectives.losses import build_objective
from umpteen.objectives.scores import even_tile
from umpteen.parallel.allocator import keep_freed_memory
from umpteen.parallel.children import run_in_world
from umpteen.parallel.meter import Meter, Seconds, timed
from umpteen.parallel.world import World
from umpteen.search.ranking import Ranking, top_k
from umpteen.training.build import Run, build_run
from umpteen.training.observer import Silence
from umpteen.training.optimizer import set_learning_rate
from umpteen.training.step import TrainingData, TrainingStep

Numbers = NDArray[np.float64]
Batches = Sequence[NDArray[np.int64]]  # rows of queries

PARTS = ("encode_queries", "encode_labels", "loss", "replay", "optimizer")
PHASES = ("encoding", "loss", "replay", "optimizer")
COPIES = np.array([1, 2, 2, 0])  # of every text's vector, gradients included, that are there in each phase
FIRST_TOKENS = 4096  # of the smallest part that is measured
LONG = 2.0  # seconds, on the clock or of processors; after a step that takes longer, nothing larger is measured
REPEAT_SECONDS, REPEATS = 4.0, 12  # what takes less is measured more than once
QUERIES_SEARCHED, LABELS_SEARCHED = 2048, 8192
STEPS, VERIFY_SECONDS = 20, 86_400.0  # real steps, where a plan is verified, and the most that they may take


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
    seconds: Numbers  # [5, 2]
    always: int  # bytes held before it: program, data, weights, the optimizer's state
    extra: Numbers  # bytes [4] by phase, beyond vectors and their gradients
    largest: int  # padded tokens of its largest micro-batch
    queries: int
    tile: int


class Costs(NamedTuple):
    """What was measured: all that a prediction needs besides the work."""

    parts: Sequence[Part]  # the two largest
    vector_bytes: int  # of one
    gradient_bytes: int  # of the weights
    saving_bytes: int  # copies of the weights made to write them
    search: Seconds  # of all validation queries among all labels in an evaluation,
    report: Seconds  # and the report
    search_bytes: int  # beyond vectors


def measure(run: Run, config: RunConfig, batches: Batches, meter: Meter, progress: Progress) -> Costs:
    """The costs of steps over these queries, the batch that needs most memory first, and of an evaluation."""
    set_learning_rate(run.optimizer, 0.0)  # the weights stay as they are
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
    dense = sum(weight.grad.nbytes for weight in weights if weight.grad is not None)
    search = _search(run, meter)
    progress("measuring", 100, 100)
    return Costs(
        parts[-2:],
        run.towers.dimension * weights[0].element_size(),
        dense + sum(table.weight.nbytes for table in row_tables(run.towers).values()),
        2 * sum(weight.nbytes for weight in weights) if meter.device.type == "cpu" else 0,  # when the best are saved
        *search,
    )


def _part(run: Run, config: RunConfig, batches: Batches, share: float, meter: Meter) -> Part:
    """Bytes of the longest step, and seconds of the middle one of several."""
    data, labels, budget = run.data, len(run.data.labels), max(1, round(config.training.token_budget * share))
    smaller = config.model_copy(update={"training": config.training.model_copy(update={"token_budget": budget})})
    size = math.ceil(len(batches[0]) * share)
    rows = np.concatenate([batch[:size] for batch in batches])
    few = np.split(np.arange(len(rows)), np.cumsum([len(batch[:size]) for batch in batches])[:-1])
    drawn = np.random.default_rng(0).choice(labels, math.ceil(labels * share), replace=False)
    chosen = np.unique(np.concatenate([data.relevance.of(int(rows[0]))[:1], drawn]))  # with something to pull
    relevance, filtered = (Relevance(each.matrix[rows][:, chosen]) for each in (data.relevance, data.filtered))
    part = TrainingData(data.queries.take(rows), data.labels.take(chosen), relevance, filtered)
    objective = build_objective(config.objective, labels, pooled=True)  # k may be more than there are here
    marks = Marks(meter)
    step = TrainingStep(run.towers, part, objective, run.optimizer, smaller, mark=marks)
    step(few[-1], step=0, seed=0)  # libraries load, threads start, the optimizer makes its state
    run.optimizer.zero_grad(set_to_none=True)
    always, marks.weighs = meter.settle(), True
    step(few[0], step=1, seed=0)
    peaks, marks.weighs = marks.peaks(), False
    meter.settle()
    step(few[0], step=2, seed=0)  # takes the memory that the others find
    runs: list[Numbers] = []
    while len(runs) < 2 or (len(runs) < REPEATS and np.sum(runs, axis=(0, 1)).min() < REPEAT_SECONDS):
        step(few[(1 + len(runs)) % len(few)], step=3 + len(runs), seed=0)
        runs.append(marks.seconds())
    peaks[2] = max(peaks[2], meter.peak())  # freed blocks of one shape seldom fit the next: several steps hold more
    vectors = (size + len(chosen)) * run.towers.dimension * next(run.towers.parameters()).element_size()
    return Part(
        share,
        np.median(runs, axis=0),
        always,
        np.maximum(peaks - always - COPIES * vectors, 0),
        largest_micro_batch(part.queries.lengths[few[0]], part.labels.lengths, budget),
        size,
        min(config.training.tile or even_tile(size, len(chosen)), len(chosen)),
    )


class Marks:
    """When the parts of the last step ended, and what was held at most until then."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._marks: list[tuple[str, Numbers]] = []
        self.weighs = False  # which costs time

    def __call__(self, name: str) -> None:
        if self._meter.device.type == "cuda":
            torch.cuda.synchronize(self._meter.device)
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


def _search(run: Run, meter: Meter) -> tuple[Seconds, Seconds, int]:
    """Seconds of an evaluation's search and report, and bytes beyond vectors; nothing where there is no validation."""
    evaluator, device, dimension = run.evaluator, meter.device, run.towers.dimension
    if evaluator is None:
        return np.zeros(2), np.zeros(2), 0
    best, split, count = max(evaluator.at), len(evaluator.split), len(run.data.labels)
    queries = torch.randn(min(split, QUERIES_SEARCHED), dimension, device=device)
    labels = torch.randn(max(min(count, LABELS_SEARCHED), best), dimension, device=device)
    before = meter.settle()
    top_k(queries, labels, best)
    search = timed(lambda: top_k(queries, labels, best), device) * (split * count / (len(queries) * len(labels)))
    found = ((np.arange(split)[:, None] + np.arange(best)) % count).astype(np.int32)
    ranking = Ranking(found, np.zeros(found.shape, dtype=np.float32), count)
    report = timed(lambda: evaluator.report(ranking, bootstrap=0), device)
    return search, report, max(0, meter.peak() - before)


class Measured(NamedTuple):
    """What real steps took."""

    step: Seconds  # the median one
    evaluation: Seconds  # nothing if there is none
    memory: int  # bytes at most held, evaluation included


def verify(config: RunConfig) -> Measured:
    """Runs the recipe's first steps and the evaluation after them in a process of their own, and measures both."""
    measured: Measured = run_in_world(1, _take_steps, config, seconds=VERIFY_SECONDS)[0]
    return measured


def _take_steps(world: World, config: RunConfig) -> Measured:
    keep_freed_memory()  # as the process that trains does
    clocks = _Clocks()
    training = config.training.model_copy(update={"steps": STEPS, "minutes": None})
    run = build_run(config.model_copy(update={"training": training}), workspace=None, observer=clocks)
    run.loop.run()
    steps = np.diff(np.stack(clocks.steps), axis=0)[1:]  # the first one also makes the optimizer's state
    return Measured(np.median(steps, axis=0), clocks.evaluation, Meter(next(run.towers.parameters()).device).peak())


class _Clocks(Silence):
    """Collects the seconds of each step, and of the evaluation after the last."""

    def __init__(self) -> None:
        self._stepped_at = self.evaluation = np.zeros(2)
        self.steps = [np.zeros(2)]

    def stepped(self, record: dict[str, Any]) -> None:
        self.steps.append(np.array([record["seconds"], record["processor_seconds"]]))
        self._stepped_at = np.array([time.perf_counter(), time.process_time()])

    def evaluated(self, record: dict[str, Any]) -> None:
        self.evaluation = np.array([time.perf_counter(), time.process_time()]) - self._stepped_at
