"""What a comparison asks of a method, and the methods that are fitted in one go.

Systems that have to be installed first are lab/peers of the repository, not part of the package.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import umpteen
from umpteen.data.dataset import Dataset, Split
from umpteen.errors import BadInput
from umpteen.evaluation.baselines import TfidfNeighbours, popularity
from umpteen.evaluation.report import Evaluator
from umpteen.files.progress import Notice
from umpteen.search.ranking import Ranking
from umpteen.training.tune import Candidate, grid


@dataclass(frozen=True)
class Task:
    """One dataset, and what all methods share: its splits, the metric that settings are chosen by, the seed."""

    source: str
    dataset: Dataset  # as it was read
    held_out: Dataset  # with a validation split and without test
    metric: str
    seed: int
    fraction: float  # of train that was taken for validation
    propensity: tuple[float, float]

    @property
    def test(self) -> Split:
        if self.dataset.test is None:
            raise BadInput(
                f"{self.dataset.name} has no test split to compare on; add one (docs/how-to/data-formats.md)"
            )
        return self.dataset.test

    def evaluator_of_validation(self) -> Evaluator:
        assert self.held_out.validation is not None
        return Evaluator(self.held_out, self.held_out.validation, a=self.propensity[0], b=self.propensity[1])

    def evaluator_of_test(self) -> Evaluator:
        return Evaluator(self.dataset, self.test, a=self.propensity[0], b=self.propensity[1])

    def identify(self, *parts: Any) -> str:
        """One name for what follows from these parts on this data."""
        shared = [self.dataset.fingerprint, self.metric, self.seed, self.fraction, self.propensity]
        return hashlib.sha256(json.dumps([shared, parts], sort_keys=True).encode()).hexdigest()[:16]


class Outcome(NamedTuple):
    """One final fit on all of train, and its ranking of the test queries."""

    ranking: Ranking
    train_seconds: float
    predict_seconds: float
    parameters: int
    validation: dict[str, float] | None = None  # metrics there, where something was chosen after the trials


RANKED = "+ranker"  # ends the name of a recipe that gets a ranker on top


@dataclass(frozen=True)
class Method:
    """One row of the table. Trials see train and validation; only `finish` sees test, once."""

    name: str
    is_ours = False

    @property
    def trials_file(self) -> str:
        """Methods that share their trials share this file: a recipe and the same with a ranker."""
        return self.name.removesuffix(RANKED).replace(" ", "-")

    @property
    def particulars(self) -> dict[str, Any]:
        """What its result follows from besides the trial's settings; a result of others is not taken for its own."""
        return {}

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        """The settings to try on validation, its own first."""
        raise NotImplementedError

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        """The final fit with the chosen settings; what `folder` holds of an interrupted one is gone on with."""
        raise NotImplementedError


class Unavailable(Exception):
    """A peer cannot be run here; the message says why and what to do. Never the end of a comparison."""


Fit = Callable[[Split, Split, dict[str, Any], int], Outcome]


@dataclass(frozen=True)
class Baseline(Method):
    """A method that needs no checkpoint: fitted on one split, asked about another."""

    choices: tuple[str, ...]  # key=v1,v2,…; the first value of each is its own default
    fit: Fit  # (train, asked, settings, k)
    install: Callable[[Notice], None] = lambda notice: None  # raises Unavailable where it cannot be had
    release: str | None = None

    @property
    def particulars(self) -> dict[str, Any]:
        return {"release": self.release} if self.release else {}

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        evaluator = task.evaluator_of_validation()
        train, k = task.held_out.train, max(evaluator.at)

        def candidate(point: tuple[str, ...]) -> Candidate:
            def run() -> dict[str, Any]:
                outcome = self.fit(train, evaluator.split, _values(point), k)
                return {"metrics": evaluator.report(outcome.ranking, bootstrap=0).metrics}

            return Candidate(point, task.identify(self.name, point), run)

        return [candidate(point) for point in grid(self.choices, trials, task.seed, own_first=True)]

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        everything = task.dataset.with_validation_in_train().train
        return self.fit(everything, task.test, _values(settings), max(task.evaluator_of_test().at))


def _values(settings: tuple[str, ...]) -> dict[str, Any]:
    pairs = [setting.split("=", 1) for setting in settings]
    return {key: float(value) if "." in value or "e" in value else int(value) for key, value in pairs}


def _popularity(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    began = time.monotonic()
    relevance = train.relevance.without(train.filtered)
    ranking = popularity(relevance.matrix, len(asked), k, excluding=asked.filtered.matrix)
    return Outcome(ranking, time.monotonic() - began, 0.0, relevance.labels)


def _neighbours(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    began = time.monotonic()
    relevance = train.relevance.without(train.filtered).matrix
    known = TfidfNeighbours(train.texts, relevance, ngrams=settings["ngrams"])
    fitted = time.monotonic()
    excluded = asked.filtered.matrix
    ranking = known.rank(asked.texts, k, excluding=excluded, neighbours=settings["neighbours"])
    return Outcome(ranking, fitted - began, time.monotonic() - fitted, known.parameters)


BASELINES = {
    "popularity": Baseline("popularity", (), _popularity),
    "tfidf-knn": Baseline("tfidf-knn", ("neighbours=50,10,20,100,200", "ngrams=2,1"), _neighbours),
}
# Installed when they are asked for, by lab/peers of umpteen's repository.
PEERS = ("xr-linear", "xr-transformer")


def peers() -> dict[str, Baseline]:
    """The systems of lab/peers, where umpteen runs from its repository; else none."""
    repository = Path(umpteen.__file__).parents[2]
    if not (repository / "lab" / "peers" / "__init__.py").is_file():
        return {}
    if str(repository) not in sys.path:
        sys.path.append(str(repository))
    found: dict[str, Baseline] = import_module("lab.peers").PEERS
    return found
