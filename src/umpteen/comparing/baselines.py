"""The methods that are fitted in one go: popularity, tf-idf nearest neighbours, and PECOS's."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from umpteen.comparing.method import Outcome, Task
from umpteen.data.dataset import Split
from umpteen.encoders.pretrained import DEFAULT_MODEL, locate
from umpteen.evaluation.baselines import TfidfNeighbours, popularity
from umpteen.peers import pecos
from umpteen.tuning import Candidate, grid

Fit = Callable[[Split, Split, dict[str, Any], int], Outcome]


@dataclass(frozen=True)
class Baseline:
    """A method that needs no checkpoint: fitted on one split, asked about another."""

    name: str
    choices: tuple[str, ...]  # key=v1,v2,…; the first value of each is its own default
    fit: Fit  # (train, asked, settings, k)
    is_ours = False

    @property
    def trials_file(self) -> str:
        return self.name

    @property
    def particulars(self) -> dict[str, Any]:
        return {"release": pecos.RELEASE} if self.name in pecos.ENVIRONMENTS else {}

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        judge = task.judge_of_validation()
        train, k = task.held_out.train, max(judge.at)

        def candidate(point: tuple[str, ...]) -> Candidate:
            def run() -> dict[str, Any]:
                outcome = self.fit(train, judge.split, _values(point), k)
                return {"metrics": judge.report(outcome.ranking, bootstrap=0).metrics}

            return Candidate(point, task.identify(self.name, point), run)

        return [candidate(point) for point in grid(self.choices, trials, task.seed, own_first=True)]

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        everything = task.dataset.with_validation_in_train().train
        return self.fit(everything, task.test, _values(settings), max(task.judge_of_test().at))


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


def _xr_linear(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    return Outcome(*pecos.fit("xr-linear", settings, train, asked, k, threads=torch.get_num_threads()))


def _xr_transformer(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    start = str(locate(DEFAULT_MODEL).resolve())
    settings = {"threshold": 0.1, "ngrams": 2, **settings, "start": start}
    return Outcome(*pecos.fit("xr-transformer", settings, train, asked, k, threads=torch.get_num_threads()))


BASELINES = {
    "popularity": Baseline("popularity", (), _popularity),
    "tfidf-knn": Baseline("tfidf-knn", ("neighbours=50,10,20,100,200", "ngrams=2,1"), _neighbours),
    "xr-linear": Baseline("xr-linear", ("threshold=0.1,0.01,0.03,0.3", "ngrams=2,1"), _xr_linear),
    "xr-transformer": Baseline(
        "xr-transformer", ("learning_rate=0.0001,0.00005,0.0002", "epochs=5,3,8"), _xr_transformer
    ),
}
