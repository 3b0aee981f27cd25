"""Benchmark: steps against all of a million labels on a small machine, and what their matrix products alone take.

Generated titles, the real run: dataset, static towers, objective, optimizer and evaluation as `umpteen train` puts them
together. Each size has a process of its own, so that its peak memory is its own.
"""

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.generated import write_titles
from umpteen.config.recipes import resolve
from umpteen.config.settings import RunConfig
from umpteen.errors import BadInput
from umpteen.files.progress import Progress
from umpteen.objectives.scores import even_tile
from umpteen.parallel.world import spread
from umpteen.training.build import build_run
from umpteen.training.observer import Observer

SIZES = (131_073, 501_070, 1_305_265)  # of LF-AmazonTitles-131K, LF-Wikipedia-500K and LF-AmazonTitles-1.3M
MODEL = "all-MiniLM-L6-v2"
RECIPE = f"""\
name = "million"

[data]
source = "given with --data"

[encoder]
towers = "separate"

[encoder.query]
kind = "static"
start = "{MODEL}"

[objective]
name = "decoupled_softmax"

[training]
token_budget = 131072  # each micro-batch adds to the gradient of the whole token table: few and large ones

[evaluation]
every_epochs = 0  # at the end
"""


class Case(NamedTuple):
    labels: int
    batch: int
    steps: int  # timed ones, after one to warm up
    half_labels: bool = False


Measure = Callable[[Case, Path, Progress], dict[str, Any]]


def run(
    labels: Sequence[int] = SIZES,
    *,
    batch: int = 1024,
    other_batches: Sequence[int] = (256, 2048),
    half_labels: bool = False,
    steps: int = 3,
    train: int = 20_000,
    evaluated: int = 10_000,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """One row for each number of labels, and for the middle one a row for each of the other batch sizes.

    With `half_labels`, instead of other batches, a second row for each number of labels, with training.half_labels.

    matmul_multiple: a step's seconds ÷ those of its four matrix products, in turns; the median of the turns.
    peak_rss_gb: the most the process ever held, evaluation and the reading of the data included.
    first_step_peak_gb: the same until the first step's end, before bare products take float32 vectors of all labels.
    memory_spread_gb: by how much the peaks of the batch sizes differ.
    linearity: seconds a label at the most labels ÷ seconds a label at the fewest.
    """
    if not labels or min(batch, steps, *labels, *other_batches) < 1:
        raise BadInput("the benchmark needs numbers of labels, a batch size and steps of 1 or more")
    sizes = sorted(set(labels))
    middle = sizes[len(sizes) // 2]
    tell = progress or (lambda name, done, total: None)
    results = []
    with TemporaryDirectory(prefix="umpteen-million-", dir=folder) as scratch:
        for size in sizes:
            data = Path(scratch, f"{size}-labels")
            write_titles(data, labels=size, train=train, validation=evaluated, model=MODEL, seed=seed, progress=tell)
            others = [Case(size, queries, steps) for queries in other_batches if size == middle]
            for case in (Case(size, batch, steps), *([Case(size, batch, steps, True)] if half_labels else others)):
                results.append(in_its_own_process(measure, case, data, Path(scratch, "cache"), tell))
    seconds = [
        row["seconds_per_step"] / row["labels"] for row in results if row["batch"] == batch and not row["half_labels"]
    ]
    peaks = [row["peak_rss_gb"] for row in results if row["labels"] == middle and not row["half_labels"]]
    return {
        "benchmark": "million",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "steps": steps,
        "evaluated_queries": evaluated,
        "memory_spread_gb": max(peaks) - min(peaks),
        "linearity": seconds[-1] / seconds[0],
        "results": sorted(results, key=lambda row: (row["batch"] != batch, row["labels"], row["batch"])),
    }


def in_its_own_process(work: Measure, case: Case, data: Path, cache: Path, tell: Progress) -> dict[str, Any]:
    """What the work gives for a case, in a new process with a cache of its own."""
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    child = processes.Process(target=_child, args=(sender, work, case, data, cache), daemon=True)
    child.start()
    sender.close()  # so that the end of the child is the end of the pipe
    try:
        while not isinstance(message := receiver.recv(), dict):
            name, done, total = message
            tell(f"{case.labels:,} labels, batch {case.batch:,}: {name}", done, total)
        return message
    except EOFError:
        child.join()
        raise BadInput(
            f"the process with {case.labels:,} labels ended early ({child.exitcode}); is there enough memory?"
        ) from None
    finally:
        child.kill()
        child.join()


def _child(connection: Connection, work: Measure, case: Case, data: Path, cache: Path) -> None:
    os.environ["UMPTEEN_CACHE"] = str(cache)
    connection.send(work(case, data, lambda *report: connection.send(report)))


def measure(case: Case, data: Path, tell: Progress) -> dict[str, Any]:
    """One row of the results, measured in this process."""
    recipe = data / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    given = {"batch_size": case.batch, "steps": case.steps + 1, "half_labels": str(case.half_labels).lower()}
    settings = tuple(f"training.{key}={value}" for key, value in given.items())
    turns = StepsAndProducts(partial(products_seconds, case.batch, case.labels), tell)
    run = build_run(resolve(str(recipe), settings, str(data)), workspace=None, observer=turns)
    turns.dimension = run.towers.dimension
    run.loop.run()
    return {
        "labels": case.labels,
        "batch": case.batch,
        "half_labels": case.half_labels,
        "seconds_per_step": median(turns.steps[1:]),
        "matmul_multiple": median(step / products for step, products in turns.timed()),
        "peak_rss_gb": peak_memory() / 1e9,
        "first_step_peak_gb": turns.first_peak / 1e9,
        "evaluation_seconds": turns.evaluation,
        "seconds_of_products": median(turns.products[1:]),
    }


class StepsAndProducts(Observer):
    """Watches a run: after each of its steps come the matrix products of one, so that both see the same machine."""

    def __init__(self, products: Callable[[int], float], tell: Progress) -> None:
        self.dimension = 0
        self.steps: list[float] = []
        self.products: list[float] = []
        self.evaluation = 0.0
        self.first_peak = 0
        self._products = products
        self._tell = tell
        self._total = 0
        self._began = 0.0

    def timed(self) -> list[tuple[float, float]]:
        """Seconds of each step and of the products after it; the first turn has warmed up and is left out."""
        return list(zip(self.steps, self.products, strict=True))[1:]

    def __call__(self, work: str, done: int, total: int) -> None:
        self._tell(work, done, total)

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._total = steps
        self._began = time.perf_counter()

    def stepped(self, record: dict[str, Any]) -> None:
        self.steps.append(time.perf_counter() - self._began)
        self.first_peak = self.first_peak or peak_memory()
        self.products.append(self._products(self.dimension))
        self._tell("steps", record["step"], self._total)
        self._began = time.perf_counter()

    def evaluated(self, record: dict[str, Any]) -> None:
        self.evaluation = time.perf_counter() - self._began


def products_seconds(batch: int, labels: int, dimension: int) -> float:
    """X Zᵀ for the bars, then X Zᵀ again, Wᵀ X and W Z for the gradients: in the tiles and threads of a step."""
    queries = normalize(torch.randn(batch, dimension))  # [B, d]
    vectors = normalize(torch.randn(min(labels, 4096), dimension)).repeat(-(-labels // 4096), 1)[:labels]  # [L, d]
    gradients = torch.zeros_like(vectors)
    size = even_tile(batch, labels)
    tiles = [slice(start, min(start + size, labels)) for start in range(0, labels, size)]
    shares = min(torch.get_num_threads(), len(tiles))

    def walk(share: int, *, backward: bool) -> Tensor:
        to_queries = torch.zeros_like(queries)
        buffer = queries.new_empty(batch * size)
        for tile in tiles[len(tiles) * share // shares : len(tiles) * (share + 1) // shares]:
            scores = buffer[: batch * (tile.stop - tile.start)].view(batch, -1)
            torch.mm(queries, vectors[tile].t(), out=scores)
            if backward:
                torch.mm(scores.t(), queries, out=gradients[tile])
                to_queries.addmm_(scores, vectors[tile])
        return to_queries

    began = time.perf_counter()
    spread(partial(walk, backward=False), shares)
    spread(partial(walk, backward=True), shares)
    return time.perf_counter() - began


def peak_memory() -> int:
    """The most this process ever held, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0
