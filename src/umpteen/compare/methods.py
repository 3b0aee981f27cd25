"""Who takes part in a comparison: baselines fitted in one go, peers that can be had here, and our recipes."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

import umpteen
from umpteen.config.recipes import path_of, resolve, with_overrides
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, Split
from umpteen.errors import BadInput, known
from umpteen.evaluation.baselines import TfidfNeighbours, popularity
from umpteen.evaluation.report import Evaluator
from umpteen.files.progress import Notice, silent
from umpteen.files.storage import digest_of, write_atomically
from umpteen.model.classifier import Classifier
from umpteen.model.rerank import fit_ranker
from umpteen.model.train import train, train_trial
from umpteen.parallel.world import cores
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.ranker import Ranker
from umpteen.search.ranking import NO_LABEL, Ranking
from umpteen.training.observer import Observer
from umpteen.training.tune import Candidate, Point, candidate, choices_of, identify

OURS, RANKED = "umpteen ", "+ranker"  # begin the names of ours, and end those of recipes that get a ranker on top


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
            advice = "add one (docs/how-to/data-formats.md)"
            raise BadInput(f"{self.dataset.name} has no test split to compare on; {advice}")
        return self.dataset.test

    def evaluator_of_validation(self) -> Evaluator:
        assert self.held_out.validation is not None
        return Evaluator(self.held_out, self.held_out.validation, a=self.propensity[0], b=self.propensity[1])

    def evaluator_of_test(self) -> Evaluator:
        return Evaluator(self.dataset, self.test, a=self.propensity[0], b=self.propensity[1])

    def identify(self, *parts: Any) -> str:
        """One name for what follows from these parts on this data."""
        shared = [self.dataset.fingerprint, self.metric, self.seed, self.fraction, self.propensity]
        return digest_of([shared, parts])[:16]


class Outcome(NamedTuple):
    """One final fit on all of train, and its ranking of the test queries."""

    ranking: Ranking
    train_seconds: float
    predict_seconds: float
    parameters: int
    validation: dict[str, float] | None = None  # metrics there, where something was chosen after the trials


class Unavailable(Exception):
    """A peer cannot be run here; the message says why and what to do. Never the end of a comparison."""


Fit = Callable[..., Outcome]  # (train, asked, settings, k), and the labels' texts where they are read


@dataclass(frozen=True)
class Baseline:
    """A method that needs no checkpoint: fitted on one split, asked about another."""

    name: str
    knobs: tuple[str, ...]  # key=v1,v2,…; the first value of each is its own default
    fit: Fit
    install: Callable[[Notice], None] = silent  # raises Unavailable where it cannot be had
    # What its result follows from besides the trial's settings; a result of others is not taken for its own.
    particulars: dict[str, Any] = field(default_factory=dict)
    reads_labels: bool = False  # `fit` takes the labels' texts, too
    seeded: bool = False  # among the settings that `fit` takes is a seed
    is_ours = False

    def choices(self, task: Task) -> Sequence[str]:
        """What may be tried on validation as key=v1,v2,…; the first values are its own."""
        return self.knobs

    def candidate(self, task: Task, point: Point, folder: Path) -> Candidate:
        evaluator = task.evaluator_of_validation()

        def run() -> dict[str, Any]:
            outcome = self._fit(task, task.held_out.train, evaluator.split, point, max(evaluator.at), task.seed)
            return {"metrics": evaluator.report(outcome.ranking, bootstrap=0).metrics}

        return Candidate(point, task.identify(self.name, point, self.particulars), run)

    def finish(self, task: Task, settings: Point, then: Point, folder: Path, seed: int) -> Outcome:
        everything = task.dataset.with_validation_in_train().train
        return self._fit(task, everything, task.test, settings, max(task.evaluator_of_test().at), seed)

    def _fit(self, task: Task, train: Split, asked: Split, settings: Point, k: int, seed: int) -> Outcome:
        more = {"labels": task.dataset.labels.texts} if self.reads_labels else {}
        return self.fit(train, asked, with_overrides({}, settings) | ({"seed": seed} if self.seeded else {}), k, **more)


def _popularity(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    began = time.monotonic()
    ranking = popularity(train, asked, k)
    return Outcome(ranking, time.monotonic() - began, 0.0, ranking.labels)


def _neighbours(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    began = time.monotonic()
    known = TfidfNeighbours(train, ngrams=settings["ngrams"], neighbours=settings["neighbours"])
    fitted = time.monotonic()
    ranking = known.rank(asked, k)
    return Outcome(ranking, fitted - began, time.monotonic() - fitted, known.parameters)


BASELINES = {
    "popularity": Baseline("popularity", (), _popularity),
    "tfidf-knn": Baseline("tfidf-knn", ("neighbours=50,10,20,100,200", "ngrams=2,1"), _neighbours),
}
# Installed when they are asked for, by lab/peers of umpteen's repository.
PEERS = ("xr-linear", "xr-transformer", "bonsai", "mnrl", "linear-svm", "minilm-knn", "minilm-probe")


def peers() -> dict[str, Baseline]:
    """The systems of lab/peers, where umpteen runs from its repository; else none."""
    repository = Path(umpteen.__file__).parents[2]
    if not (repository / "lab" / "peers" / "__init__.py").is_file():
        return {}
    if str(repository) not in sys.path:
        sys.path.append(str(repository))
    found: dict[str, Baseline] = import_module("lab.peers").PEERS
    return found


@dataclass(frozen=True)
class Ours:
    """A recipe by name or by path, with a ranker where the method's name says so; all else is the comparison's."""

    name: str
    recipe: str
    observer: Observer
    is_ours = seeded = True
    install = staticmethod(silent)  # it is here

    @property
    def is_ranked(self) -> bool:
        return self.name.endswith(RANKED)

    @property
    def particulars(self) -> dict[str, Any]:
        return asdict(RankerSettings()) if self.is_ranked else {}

    def choices(self, task: Task) -> Sequence[str]:
        return choices_of(self._config(task))

    def candidate(self, task: Task, point: Point, folder: Path) -> Candidate:
        """A trial; where there will be a ranker, its model stays in `folder` to weigh that."""
        config = self._config(task, point)
        found = candidate(point, config, self.observer)
        if not self.is_ranked:
            return found
        return found._replace(run=partial(train_trial, config, self._place(folder, found.identity), self.observer))

    def finish(self, task: Task, settings: Point, then: Point, folder: Path, seed: int) -> Outcome:
        """Fits on all of train, or goes on with that in `folder`, and ranks test; validation weighs a ranker once.

        `then` are settings that validation chose after the trial's training.
        """
        weighed, validation = None, None
        if self.is_ranked:
            model, _ = self._fit(task, settings, folder, "train")
            evaluator, weighed = task.evaluator_of_validation(), model.ranker
            assert weighed is not None
            ranking = model.rank(evaluator.split.texts, max(evaluator.at), evaluator.split.filtered.matrix)
            validation = evaluator.report(ranking, bootstrap=0).metrics
            self.observer.notice(f"{self.name}: the ranker counts {weighed.weight:g}")
        task, settings = replace(task, seed=seed), (*settings, *then)
        model, train_seconds = self._fit(task, settings, folder, "train+validation", weighed)
        began = time.monotonic()
        ranking = model.rank(task.test.texts, max(task.evaluator_of_test().at), task.test.filtered.matrix)
        predict_seconds = time.monotonic() - began
        # Numbers that training sets, those of a shared tower once; label vectors follow from them.
        parameters = sum(weight.numel() for weight in model.towers.parameters())
        if model.ranker is not None:
            parameters += int(model.ranker.weights.nnz) + len(model.ranker.intercepts)
        return Outcome(ranking, train_seconds, predict_seconds, parameters, validation)

    def _fit(
        self, task: Task, settings: Point, folder: Path, fit_on: str, weighed: Ranker | None = None
    ) -> tuple[Classifier, float]:
        """The model with these settings, trained now or found as it was trained, and the seconds that took.

        Its folder is named after everything it follows from but for a ranker, which may be in it for another method.
        """
        config = self._config(task, settings, fit_on)
        place = self._place(folder, identify(config, task.dataset.fingerprint))
        began = time.monotonic()
        model = train(config, output=place, resume=True, observers=[self.observer])
        # An interrupted run has trained for longer than this call took.
        seconds = max(time.monotonic() - began, float(model.training["seconds"]))
        if not self.is_ranked:
            return Classifier.load(place, ranker=False), seconds
        clock = place.with_name(f"{place.name}{RANKED}.seconds")
        if model.ranker is None or not clock.exists():
            chosen, found = (RankerSettings(), {}) if weighed is None else (weighed.settings, weighed.chosen())
            began = time.monotonic()
            fit_ranker(place, task.dataset, chosen, **found, jobs=cores(), progress=self.observer)
            write_atomically(clock, f"{time.monotonic() - began:.3f}")
        return Classifier.load(place), seconds + float(clock.read_text())

    def _place(self, folder: Path, identity: str) -> Path:
        return folder / f"{self.name.removeprefix(OURS).removesuffix(RANKED)}-{identity}"

    def _config(self, task: Task, settings: Point = (), fit_on: str = "train") -> RunConfig:
        a, b = task.propensity
        shared = (
            f"seed={task.seed}",
            f"data.validation_fraction={task.fraction}",
            f"data.fit_on={fit_on}",
            f"evaluation.metric={json.dumps(task.metric)}",
            f"evaluation.at={list(task.evaluator_of_validation().at)}",
            f"evaluation.propensity_a={a}",
            f"evaluation.propensity_b={b}",
        )
        return resolve(self.recipe, (*shared, *settings), task.source)


class Ensemble:
    """A method with the task's seed and those that follow: a label's score is the mean of its models'."""

    def __init__(self, of: "Baseline | Ours", models: int) -> None:
        self.of, self.models, self.name, self.is_ours = of, models, f"{of.name} × {models}", of.is_ours
        self.install, self.particulars = of.install, of.particulars
        self.choices, self.candidate = of.choices, of.candidate

    def finish(self, task: Task, settings: Point, then: Point, folder: Path, seed: int) -> Outcome:
        found = [self.of.finish(task, settings, then, folder, seed + model) for model in range(self.models)]
        rankings, trained, predicted, parameters, validation = zip(*found, strict=True)
        return Outcome(mean_of(rankings), sum(trained), sum(predicted), sum(parameters), validation[0])


def mean_of(rankings: Sequence[Ranking]) -> Ranking:
    """Labels by the mean of their scores in the lists; in one that lacks a label, its last score counts."""
    parts = []
    for ranking in rankings:
        last = np.where(ranking.rows == NO_LABEL, np.inf, ranking.scores).min(1, keepdims=True)
        above = (ranking.scores - last + np.finfo(np.float32).eps) / len(rankings)  # what is 0 would not be in the sum
        parts.append(replace(ranking, scores=above.astype(np.float32)).to_csr())
    return Ranking.from_csr(scipy.sparse.csr_array(sum(parts[1:], parts[0])), rankings[0].width)


# A row of the table: trials see train and validation; only `finish` sees test, once.
Method = Baseline | Ours | Ensemble


def with_ensembles(methods: Sequence[Baseline | Ours], models: int) -> list[Method]:
    """Each method, and after one that has a seed the mean of so many of its models."""
    return [row for one in methods for row in ((one, Ensemble(one, models)) if one.seeded and models > 1 else (one,))]


def trials_file(method: Method) -> str:
    """Methods that share their trials share this file: a recipe, the same with a ranker, and ensembles of either."""
    alone = method.of if isinstance(method, Ensemble) else method
    return alone.name.removesuffix(RANKED).replace(" ", "-") + ".jsonl"


def their_methods(names: Sequence[str]) -> list[Baseline]:
    """The peers by name; one that is only in the repository cannot be had without it."""
    absent = {name: Baseline(name, (), _popularity, _refuse_absent) for name in PEERS}
    there = absent | BASELINES | (peers() if set(names) - set(BASELINES) else {})
    return [known(there, name, f"--peers {name}: no such method", BadInput) for name in dict.fromkeys(names)]


def _refuse_absent(notice: Notice) -> None:
    raise Unavailable("it comes with umpteen's repository, not with the package: clone it and run `make`")


def our_methods(recipes: Sequence[str], observer: Observer) -> list[Ours]:
    """Each recipe, with a ranker on top where it is marked so."""
    methods: dict[str, Ours] = {}
    for recipe in recipes:
        plain = recipe.removesuffix(RANKED)
        row = OURS + path_of(plain).stem + recipe.removeprefix(plain)
        one = methods.setdefault(row, Ours(row, plain, observer))
        if one.recipe != plain:
            raise BadInput(f"two recipes are called {row}: {one.recipe} and {plain}; rename one of the files")
    return list(methods.values())
