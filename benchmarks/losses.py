"""Benchmark: streaming objectives against the paper's formulas over the whole score matrix, in time and memory.

Each side lives in a process of its own and computes the same loss and gradients from the same vectors; they take
turns, so that whatever else the machine does disturbs all of them.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks import dense
from benchmarks.sides import Measure, Side
from umpteen.errors import BadInput
from umpteen.objectives import Pairs, Scores, Targets, decoupled_softmax, soft_top_k

TEMPERATURE = 0.05
POSITIVES = 5  # of a query
K, ALPHA = 5, 2.0
SIDES = ("streaming", "fastest", "as_written")


class Case(NamedTuple):
    """What is computed, and how large."""

    objective: str  # "decoupled_softmax" or "soft_top_5"
    labels: int
    batch: int
    dimension: int
    seed: int


def run(
    labels: int = 131_072,
    dimension: int = 384,
    decoupled_batch: int = 1024,
    top_k_batch: int = 512,
    repeats: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Time, extra memory and error of both streaming objectives relative to the dense ones.

    The dense side is the fastest eager form of the formula we found; the keys ending in "as_written" compare with the
    formula put down plainly (both in bench/dense.py).

    time_ratio: our seconds ÷ theirs for loss and gradients together, median over the turns.
    memory_ratio: our peak beyond the vectors and their gradients ÷ theirs, median over the turns.
    max_relative_error: the largest of max|ours − theirs| ÷ max|theirs| of the loss and both gradients.
    """
    if labels <= K or min(dimension, decoupled_batch, top_k_batch, repeats) < 1:
        raise BadInput(f"the benchmark needs more than {K} labels, and sizes and repeats of 1 or more")
    cases = [
        Case("decoupled_softmax", labels, decoupled_batch, dimension, seed),
        Case(f"soft_top_{K}", labels, top_k_batch, dimension, seed),
    ]
    return {
        "benchmark": "losses",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dimension": dimension,
        "repeats": repeats,
        "results": [compare(case, repeats) for case in cases],
    }


def compare(case: Case, repeats: int) -> dict[str, Any]:
    """One row of the results: all sides in turns."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        sides = {name: stack.enter_context(Side(prepare, case, name, Path(folder))) for name in SIDES}
        turns = [{name: side.measure() for name, side in sides.items()} for _ in range(repeats)]
        error = relative_error(Path(folder))

    def ratio(quantity: str, to: str) -> float:
        each = [getattr(turn["streaming"], quantity) / max(getattr(turn[to], quantity), 1e-9) for turn in turns]
        return float(median(each))

    return {
        "objective": case.objective,
        "labels": case.labels,
        "batch": case.batch,
        "time_ratio": ratio("seconds", "fastest"),
        "memory_ratio": ratio("extra_bytes", "fastest"),
        "max_relative_error": error,
        "time_ratio_as_written": ratio("seconds", "as_written"),
        "memory_ratio_as_written": ratio("extra_bytes", "as_written"),
        "seconds": {name: median(turn[name].seconds for turn in turns) for name in SIDES},
        "extra_megabytes": {name: median(turn[name].extra_bytes for turn in turns) / 1e6 for name in SIDES},
    }


def relative_error(folder: Path) -> float:
    """The largest deviation of what the streaming side saved, relative to the largest number of the dense side."""
    errors = []
    for name in ("loss", "queries", "labels"):
        ours, theirs = (np.load(folder / f"{side}-{name}.npy", mmap_mode="r") for side in ("streaming", "fastest"))
        errors.append(float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
    return max(errors) if np.isfinite(errors).all() else float("nan")


class Measurement(NamedTuple):
    seconds: float
    extra_bytes: int  # peak beyond what was there before and the gradients that are there after


def prepare(case: Case, side: str, folder: Path) -> Measure:
    """Draws the vectors of one side; the first measurement leaves loss and gradients in the folder."""
    _loss(side, *_draw(case._replace(labels=64, batch=8)), case.objective).backward()  # type: ignore[no-untyped-call]
    queries, labels, positives = _draw(case)

    def measure() -> Measurement:
        queries.grad = labels.grad = None
        gradients = queries.nbytes + labels.nbytes
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
        before = _memory("VmRSS")
        start = time.perf_counter()
        loss = _loss(side, queries, labels, positives, case.objective)
        loss.backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - start
        extra = _memory("VmHWM") - before - gradients
        if not (folder / f"{side}-loss.npy").exists():
            for name, array in (("queries", queries.grad), ("labels", labels.grad), ("loss", loss.detach())):
                np.save(folder / f"{side}-{name}.npy", np.asarray(array))
        return Measurement(seconds, extra)

    return measure


def _draw(case: Case) -> tuple[Tensor, Tensor, Pairs]:
    """Normalised random vectors, and a few random positives for each query."""
    rng = torch.Generator().manual_seed(case.seed)
    vectors = []
    for count in (case.batch, case.labels):
        random = torch.randn(count, case.dimension, generator=rng)
        vectors.append(random.div_(torch.linalg.vector_norm(random, dim=1, keepdim=True)).requires_grad_())
    query = torch.arange(case.batch).repeat_interleave(POSITIVES)
    return vectors[0], vectors[1], Pairs(query, torch.randint(case.labels, query.shape, generator=rng))


def _loss(side: str, queries: Tensor, labels: Tensor, positives: Pairs, objective: str) -> Tensor:
    decoupled = objective == "decoupled_softmax"
    if side == "streaming":
        scores, targets = Scores(queries, labels, temperature=TEMPERATURE), Targets(positives, positives, len(queries))
        return decoupled_softmax(scores, targets) if decoupled else soft_top_k(scores, targets, K, ALPHA)
    given = (queries, labels, positives, TEMPERATURE)
    if side == "fastest":
        return dense.decoupled_softmax_fastest(*given) if decoupled else dense.soft_top_k_fastest(*given, K, ALPHA)
    return dense.decoupled_softmax_as_written(*given) if decoupled else dense.soft_top_k_as_written(*given, K, ALPHA)


def _memory(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
