"""Benchmark: the paper's table of the gradient cache, batch × micro-batch → memory and time, beside no cache at all.

One shared transformer over synthetic texts of one length, so that nothing is padded on either side. Each configuration
is a process of its own; those of one batch take turns. docs/how-to/many-machines.md tells what the constants mean.

B: queries in the batch, L: labels, d: dimension.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import AdamW

from benchmarks.formulas import Loss, Step, fit
from benchmarks.sides import Measure, Side
from umpteen.config.settings import RunConfig
from umpteen.data.labels import Relevance
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import micro_batches
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput
from umpteen.files.progress import Progress
from umpteen.objectives import Pairs, Scores, Targets, decoupled_softmax
from umpteen.parallel.meter import Meter
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import TrainingData, TrainingStep

MODEL = "all-MiniLM-L6-v2"
BATCHES, TOKEN_BUDGETS = (64, 256, 1024), (512, 2048, 8192, 32_768)
TOKENS = 10  # of each text: eight word pieces between two special tokens
POSITIVES = 5  # of a query
TEMPERATURE = 0.05
LOSS_SIZES = (8, 32)  # times the labels: the loss alone, where it is large enough to be seen


class Case(NamedTuple):
    model: str
    labels: int
    batch: int
    token_budget: int | None  # None: one graph of everything
    seed: int


class Measured(NamedTuple):
    seconds: float
    extra_bytes: int  # peak beyond what was there before
    loss: float
    gradient_norm: float
    dimension: int


def run(
    *,
    labels: int = 2000,
    batches: Sequence[int] = BATCHES,
    token_budgets: Sequence[int] = TOKEN_BUDGETS,
    steps: int = 3,
    model: str = MODEL,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """One row for each batch and token budget, and one (token_budget null) for the step without a gradient cache.

    extra_memory_gb: peak of a step beyond weights, optimizer state and data.
    time_ratio, memory_ratio: a row ÷ the row without a cache, in the same turn; the median of the turns.
    max_relative_error: of the loss and the gradient's norm, against the step without a cache.
    fit: constants of the formulas in bench/formulas.py, and the mean relative error of what they predict.
    memory_predicted, time_predicted: by these formulas, ÷ measured.
    """
    if min(labels, steps, *batches, *token_budgets) < 1 or labels < POSITIVES:
        raise BadInput(f"the benchmark needs at least {POSITIVES} labels, and batches, budgets and steps of 1 or more")
    tell = progress or (lambda name, done, total: None)
    results: list[dict[str, Any]] = []
    for number, batch in enumerate(batches):
        cases = [Case(model, labels, batch, budget, seed) for budget in (None, *token_budgets)]
        tell(f"batches of {', '.join(map(str, batches))}", number, len(batches))
        results += compare(cases, steps)
    dimension = results[0]["dimension"]
    losses = []
    for number, size in enumerate(LOSS_SIZES):
        tell("the loss alone", number, len(LOSS_SIZES))
        losses.append(_loss_alone(max(batches), size * labels, dimension, steps))
    constants, ratios = fit([_step(row) for row in results], losses)
    for row, (memory, seconds) in zip(results, ratios, strict=True):
        row |= {"memory_predicted": memory, "time_predicted": seconds}
    return {
        "benchmark": "gradient-cache",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": model,
        "tokens_a_text": TOKENS,
        "steps": steps,
        "fit": constants,
        "results": results,
    }


def compare(cases: Sequence[Case], steps: int) -> list[dict[str, Any]]:
    """One row of results a case; the first case is what the others are compared with."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(prepare, case)) for case in cases]
        turns = [[side.measure() for side in sides] for _ in range(steps)]
    plain = [turn[0] for turn in turns]
    return [_row(case, [turn[place] for turn in turns], plain) for place, case in enumerate(cases)]


def _row(case: Case, measured: Sequence[Measured], plain: Sequence[Measured]) -> dict[str, Any]:
    pairs = list(zip(measured, plain, strict=True))
    lengths = np.full(case.batch + case.labels, TOKENS)
    parts = micro_batches(lengths, case.token_budget or int(lengths.sum()))
    ours, theirs = pairs[0]
    errors = ours.loss / theirs.loss - 1, ours.gradient_norm / theirs.gradient_norm - 1
    return {
        "batch": case.batch,
        "token_budget": case.token_budget,
        "labels": case.labels,
        "dimension": ours.dimension,
        "tokens": int(lengths.sum()),
        "micro_batches": len(parts),
        "micro_batch_tokens": TOKENS * len(parts[0]),
        "extra_memory_gb": median(each.extra_bytes for each in measured) / 1e9,
        "seconds_per_step": median(each.seconds for each in measured),
        "time_ratio": median(ours.seconds / theirs.seconds for ours, theirs in pairs),
        "memory_ratio": median(ours.extra_bytes / max(theirs.extra_bytes, 1) for ours, theirs in pairs),
        "max_relative_error": max(map(abs, errors)),
    }


def _step(row: dict[str, Any]) -> Step:
    return Step(
        cached=row["micro_batches"] > 1,
        vector_numbers=(row["batch"] + row["labels"]) * row["dimension"],
        products=row["batch"] * row["labels"] * row["dimension"],
        tokens=row["tokens"],
        micro_batches=row["micro_batches"],
        micro_batch_tokens=row["micro_batch_tokens"],
        bytes=row["extra_memory_gb"] * 1e9,
        seconds=row["seconds_per_step"],
    )


def prepare(case: Case) -> Measure:
    """A model, its optimizer and a batch; what is measured is one step."""
    towers = Towers(TransformerEncoder.load(case.model, max_length=TOKENS, hidden_dropout=0.0))
    optimizer = make_optimizer([(towers, 1e-4)], weight_decay=0.01)
    vocabulary_size = towers.query.tokenizer.vocabulary_size
    data = [_draw(sizes, vocabulary_size, case.seed) for sizes in ((2, POSITIVES), (case.batch, case.labels))]
    warm_up, step = (_step_of(case, towers, part, optimizer) for part in data)
    warm_up()  # afterwards the optimizer has its state
    meter = Meter(torch.device("cpu"))

    def measure() -> Measured:
        optimizer.zero_grad(set_to_none=True)
        before = meter.settle()
        start = time.perf_counter()
        loss, norm = step()
        seconds = time.perf_counter() - start
        return Measured(seconds, meter.peak() - before, loss, norm, towers.dimension)

    return measure


def _draw(sizes: tuple[int, int], vocabulary_size: int, seed: int) -> TrainingData:
    """Random texts of one length, and random positives."""
    rng = np.random.default_rng(seed)
    first = vocabulary_size // 4  # past special tokens and single letters
    queries, labels = (
        TokenTable.of(rng.integers(first, vocabulary_size, (count, TOKENS)).tolist(), vocabulary_size)
        for count in sizes
    )
    positives = [rng.choice(len(labels), POSITIVES, replace=False).tolist() for _ in range(len(queries))]
    relevance = Relevance.from_lists(positives, len(labels))
    return TrainingData(queries, labels, relevance, Relevance.empty(*sizes))


def _step_of(case: Case, towers: Towers, data: TrainingData, optimizer: AdamW) -> Callable[[], tuple[float, float]]:
    """One update on all queries of the data; returns the loss and the gradient's norm."""
    rows = np.arange(len(data.queries))
    if case.token_budget is None:
        return lambda: _plain_step(towers, data, optimizer)
    settings = RunConfig.model_validate(
        {"objective": {"temperature": TEMPERATURE}, "training": {"token_budget": case.token_budget}}
    )
    step = TrainingStep(towers, data, decoupled_softmax, optimizer, settings)

    def cached_step() -> tuple[float, float]:
        outcome = step(rows, step=0, seed=0)
        return outcome.loss, outcome.gradient_norm

    return cached_step


def _plain_step(towers: Towers, data: TrainingData, optimizer: AdamW) -> tuple[float, float]:
    """The same update with the graph of every text kept from the forward to the backward pass."""
    towers.train()
    optimizer.zero_grad(set_to_none=True)
    queries, labels = (
        tower(*table.batch(np.arange(len(table))))
        for tower, table in ((towers.query, data.queries), (towers.label, data.labels))
    )
    query, label = data.relevance.matrix.nonzero()
    pairs = Pairs(torch.from_numpy(query.astype(np.int64)), torch.from_numpy(label.astype(np.int64)))
    loss = decoupled_softmax(Scores(queries, labels, temperature=TEMPERATURE), Targets(pairs, pairs, len(queries)))
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(towers.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach()), float(norm)


def _loss_alone(batch: int, labels: int, dimension: int, steps: int) -> Loss:
    with Side(prepare_loss, batch, labels, dimension) as side:
        measured = [side.measure() for _ in range(steps)]
    return Loss(
        vector_numbers=(batch + labels) * dimension,
        products=batch * labels * dimension,
        seconds=median(seconds for seconds, _ in measured),
        bytes=median(extra for _, extra in measured),
    )


def prepare_loss(batch: int, labels: int, dimension: int) -> Measure:
    """Random vectors in place of encoded ones: what is measured is all that a step does between them and the replay."""
    meter = Meter(torch.device("cpu"))
    query = torch.arange(batch).repeat_interleave(POSITIVES)

    def vectors(count: int) -> Tensor:
        random = torch.randn(count, dimension)
        return normalize(random, out=random).requires_grad_()

    def measure() -> tuple[float, int]:
        before = meter.settle()
        queries, names = vectors(batch), vectors(labels)
        pairs = Pairs(query, torch.randint(labels, query.shape))
        start = time.perf_counter()
        loss = decoupled_softmax(Scores(queries, names, temperature=TEMPERATURE), Targets(pairs, pairs, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - start
        return seconds, meter.peak() - before

    measure()  # to warm up
    return measure
