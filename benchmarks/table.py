"""Benchmark: a classifier's head for half a million labels, trained against all of them: memory and seconds a step.

Generated titles, the real run from data to model folder: static query tower, label table, decoupled softmax, lazy
AdamW, evaluation, best weights, checkpoint. It has a process of its own, so that its peak memory is its own.
"""

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.generated import write_titles
from benchmarks.million import MODEL, Case, in_its_own_process, peak_memory
from umpteen.config.recipes import resolve
from umpteen.config.settings import RunConfig
from umpteen.errors import BadInput
from umpteen.files.progress import Progress
from umpteen.model.train import train
from umpteen.training.observer import Observer

RECIPE = f"""\
name = "table"

[data]
source = "given with --data"

[encoder.query]
kind = "static"
start = "{MODEL}"

[encoder.label]
kind = "table"

[objective]
name = "decoupled_softmax"

[evaluation]
every_epochs = 0  # at the end
"""


def run(
    labels: int = 500_000,
    *,
    batch: int = 512,
    steps: int = 3,
    train: int = 20_000,
    evaluated: int = 2_000,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """peak_rss_gb: the most the process ever held, from reading the data to the saved model.

    seconds_per_step: the median of the steps after the first. parameters: of the query tower, the table, and in all.
    """
    if min(batch, steps) < 1:
        raise BadInput("the benchmark needs a batch size and steps of 1 or more")
    tell = progress or (lambda name, done, total: None)
    with TemporaryDirectory(prefix="umpteen-table-", dir=folder) as scratch:
        data = Path(scratch, "data")
        write_titles(data, labels=labels, train=train, validation=evaluated, model=MODEL, seed=seed, progress=tell)
        row = in_its_own_process(measure, Case(labels, batch, steps), data, Path(scratch, "cache"), tell)
    return {"benchmark": "table", "torch": torch.__version__, "threads": torch.get_num_threads(), **row}


def measure(case: Case, data: Path, tell: Progress) -> dict[str, Any]:
    """The results of one run, measured in this process."""
    recipe = data / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    settings = (f"training.batch_size={case.batch}", f"training.steps={case.steps + 1}")
    clock = StepClock(tell)
    began = time.perf_counter()
    model = train(resolve(str(recipe), settings, str(data)), output=data.with_name("model"), observers=[clock])
    return {
        "labels": case.labels,
        "dimension": model.towers.dimension,
        "batch": case.batch,
        "steps": case.steps,
        "parameters": model.towers.parameter_counts(),
        "seconds_per_step": median(clock.seconds[1:]),
        "peak_rss_gb": peak_memory() / 1e9,
        "seconds": time.perf_counter() - began,
    }


class StepClock(Observer):
    """Watches a run and notes the seconds of each step."""

    def __init__(self, tell: Progress) -> None:
        self.seconds: list[float] = []
        self._tell = tell
        self._total = 0
        self._began = 0.0

    def __call__(self, work: str, done: int, total: int) -> None:
        self._tell(work, done, total)

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._total = steps
        self._began = time.perf_counter()

    def stepped(self, record: dict[str, Any]) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        self._tell("steps", record["step"], self._total)
        self._began = time.perf_counter()
