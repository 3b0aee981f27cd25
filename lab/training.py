"""What most experiments train: a recipe's variants on a dataset, evaluated on test once validation has chosen.

The base recipe is the shipped one of the dataset's name, else that of wordnet-nouns; a size cuts the data and sets
what makes it cheap, and a variant's settings come on top.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lab.comparison import BY_QUERY
from lab.cutting import cut
from lab.experiment import Setup, chosen
from umpteen.config import recipes
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, open_dataset, write_native
from umpteen.encoders.encoder import encode_tokens
from umpteen.errors import BadInput
from umpteen.evaluation.report import Evaluator, Report
from umpteen.files.progress import Progress
from umpteen.search.ranking import Ranking
from umpteen.training.build import Run, build_evaluator, build_run
from umpteen.training.checkpoint import TrainState
from umpteen.training.observer import Observer

DEFAULT_DATA = "wordnet-nouns"
KEPT_BY_QUERY = ("P@1", "P@5", "nDCG@5", "R@10", "R@100")


@dataclass(frozen=True)
class Design:
    """What one size consists of; without numbers, all of the dataset."""

    queries: int | None = None  # for training
    labels: int | None = None
    settings: tuple[str, ...] = ()  # on top of the base recipe
    whole_test: bool = False  # all test queries that have one of the labels, where training is what costs


# A small table of random vectors instead of MiniLM's, so that a run takes less than a second.
TINY = Design(
    300,
    150,
    (
        "encoder.query.random_weights=true",
        "encoder.query.dimension=16",
        "encoder.query.bigrams=0",
        "encoder.query.max_length=16",
        "optimizer.learning_rate=0.03",
        "training.batch_size=64",
        "training.epochs=2",
        "training.threads=1",
    ),
)
# A third of the queries of wordnet-nouns and half of its labels, without bigrams: about a tenth of the time.
SMALL = Design(4000, 2000, ("encoder.query.bigrams=0", "training.batch_size=256"))
# Steps, not minutes: what a run reaches must not hang on what else the machine does.
SMALL_TRANSFORMER = Design(4000, 2000, ("training.minutes=none", "training.steps=25", "training.batch_size=128"))
DESIGNS = {"tiny": TINY, "small": SMALL, "paper": Design()}
# What two cores can train until validation stops improving: the first two layers of MiniLM, shared towers.
SHORT = (
    "encoder.query.layers=2",
    "training.minutes=none",
    "evaluation.every_steps=none",
    "evaluation.patience=3",
)
SHORT_DESIGNS = {
    "small": Design(
        1500,
        250,
        (
            *SHORT,
            "encoder.query.max_length=24",
            "data.validation_fraction=0.2",  # 300 queries choose learning rates and epochs
            "training.batch_size=64",
            "training.epochs=12",
        ),
        whole_test=True,
    ),
    "paper": Design(settings=(*SHORT, "encoder.query.max_length=48", "training.epochs=30")),
}

# What --encoder may say: the end of a recipe's name, and the recipe for datasets that have none of that name.
ENCODERS = {
    "static": ("", DEFAULT_DATA),
    "minilm": ("-minilm", "eurlex-titles-minilm"),
    "minilm-short": ("-minilm", "eurlex-titles-minilm"),
    "minilm-static": ("-minilm-static", "eurlex-titles-minilm-static"),
}


@dataclass(frozen=True)
class Trained:
    """One finished run, with the weights that were best on validation."""

    run: Run
    config: RunConfig
    state: TrainState
    records: list[dict[str, Any]]  # of every step

    @property
    def dataset(self) -> Dataset:
        return self.run.dataset

    def label_vectors(self) -> Tensor:
        budget = self.config.training.token_budget
        return encode_tokens(self.run.towers.label, self.run.data.labels, token_budget=budget)

    def evaluator(self) -> Evaluator:
        """The evaluator of the test split."""
        assert self.dataset.test is not None
        return build_evaluator(self.config.evaluation, self.dataset, self.dataset.test)

    def rank(self, evaluator: Evaluator) -> Ranking:
        budget = self.config.training.token_budget
        return evaluator.rank(self.run.towers.query, self.label_vectors(), token_budget=budget)

    def metrics(self) -> dict[str, Any]:
        """The metrics on test, in percent, those that are means over queries also query by query."""
        evaluator = self.evaluator()
        return percents(evaluator.report(self.rank(evaluator), bootstrap=0))

    def label_counts(self) -> NDArray[np.int64]:
        """How many training queries each label has, those held out for validation included."""
        return self.dataset.with_validation_in_train().train.relevance.label_counts()

    def course(self, metric: str) -> list[tuple[int, float]]:
        """What validation said through training: step and value."""
        return [(point["step"], round(point["metrics"][metric], 2)) for point in self.state.evaluations]

    def cost(self) -> dict[str, float]:
        """What training took, the steps alone."""
        return {"steps": self.state.step, "processor_seconds": round(self.state.processor_seconds, 2)}


class Workbench:
    """A dataset, the part of it that a size asks for, and the base recipe that goes with it."""

    def __init__(
        self,
        setup: Setup,
        variants: Mapping[str, Sequence[str]],
        designs: Mapping[str, Design] | None = None,
        short: Mapping[str, Design] | None = None,
    ) -> None:
        self.setup = setup
        self.variants = variants
        source = setup.source or DEFAULT_DATA
        whole = open_dataset(source)
        if whole.test is None:
            raise BadInput(f"{whole.name} has no test split; the lab's figures need one")
        ending, default = chosen("encoder", setup.encoder or "static", ENCODERS)
        design = (designs or DESIGNS)[setup.size]
        if ending and setup.size == "tiny":
            raise BadInput(f"--size tiny trains a small static encoder; give --encoder {setup.encoder} another")
        if setup.encoder == "minilm-short":
            if designs is not None and short is None:
                raise BadInput(f"--encoder minilm-short: {setup.name} has a design of its own; losses and bank take it")
            design = (short or SHORT_DESIGNS)[setup.size]
        elif ending and setup.size == "small":
            design = SMALL_TRANSFORMER
        self.recipe = whole.name + ending if whole.name + ending in recipes.names() else default
        self.name = whole.name
        self.source, dataset = self._part(whole, source, design)
        self._design = design
        self.settings = {
            "size": setup.size,
            "data": {
                "name": whole.name,
                "fingerprint": dataset.fingerprint,
                "training_queries": len(dataset.train),
                "labels": len(dataset.labels),
            },
            "recipe": self.recipe,
            "on_top": list(design.settings),
            "variants": {name: list(settings) for name, settings in variants.items()},
        }

    def _part(self, whole: Dataset, source: str, design: Design) -> tuple[str, Dataset]:
        if design.queries is None or design.labels is None:
            return source, whole
        folder = self.setup.output / "data" / f"{design.queries}-{design.labels}"
        if not folder.exists():
            write_native(cut(whole, design.queries, design.labels, whole_test=design.whole_test), folder)
        return str(folder), open_dataset(folder)

    def config(self, variant: str, seed: int, *more: str, source: str | None = None) -> RunConfig:
        settings = (*self._design.settings, *self.variants[variant], *more, f"seed={seed}")
        return recipes.resolve(self.recipe, settings, source or self.source)

    def train(self, variant: str, seed: int, *more: str) -> Trained:
        """One run from start to end, with more settings on top if they are given."""
        return train(self.config(variant, seed, *more), Steps(f"{variant}, seed {seed}", self.setup.progress))


def train(config: RunConfig, watcher: "Steps") -> Trained:
    """A recipe from start to end; what is best on validation is kept in memory and put back at the end."""
    run = build_run(config, workspace=None, observer=watcher)
    watcher.run = run
    state = run.loop.run()
    if watcher.best is not None:
        run.towers.load_state_dict(watcher.best)
    run.towers.eval()
    return Trained(run, config, state, watcher.records)


def percents(report: Report) -> dict[str, Any]:
    """A report's metrics, those that are means over queries also query by query."""
    by_query = {
        name: (100 * report.terms[name].achieved).round(2).tolist() for name in KEPT_BY_QUERY if name in report.terms
    }
    return {**rounded(report.metrics), BY_QUERY: by_query}


def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in metrics.items()}


class Steps(Observer):
    """Passes the steps of a run on as progress under its name, and keeps the best weights once it knows the run."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._name = name
        self._progress = progress
        self._steps = 0
        self.records: list[dict[str, Any]] = []
        self.run: Run | None = None
        self.best: dict[str, Tensor] | None = None

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._steps = steps

    def stepped(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self._progress(self._name, record["step"], self._steps)

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["best"] and self.run is not None:
            self.best = {name: value.detach().clone() for name, value in self.run.towers.state_dict().items()}
