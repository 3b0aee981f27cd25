"""Our side of a comparison: a recipe, tuned by learning rate and temperature, then fitted on all of train."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umpteen.assemble import Progress
from umpteen.classifier import Classifier
from umpteen.comparing.method import Notice, Outcome, Task
from umpteen.config import RunConfig
from umpteen.recipes import resolve
from umpteen.running import train
from umpteen.training.observer import Observer
from umpteen.tuning import Candidate, candidates, grid, identify, usual_choices


@dataclass(frozen=True)
class Ours:
    """A recipe by name or by path; data, split, seed, metric and propensities are the comparison's."""

    recipe: str
    label: str  # of the recipe, for people
    notice: Notice
    observer: Observer
    progress: Progress
    is_ours = True

    @property
    def name(self) -> str:
        return f"umpteen {self.label}"

    @property
    def trials_file(self) -> str:
        return f"umpteen-{self.label}"

    @property
    def particulars(self) -> dict[str, Any]:
        return {}

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        points = grid(usual_choices(self._config(task)), trials, task.seed, own_first=True)
        configs = [self._config(task, point) for point in points]
        return candidates(
            list(zip(points, configs, strict=True)),
            notice=self.notice,
            progress=self.progress,
            observer=self.observer,
        )

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        began = time.monotonic()
        classifier = self.fit(task, settings, folder, "train+validation")
        # An interrupted run has trained for longer than this call took.
        train_seconds = max(time.monotonic() - began, float(classifier.training["seconds"]))
        judge = task.judge_of_test()
        began = time.monotonic()
        ranking = judge.rank(classifier.towers.query, classifier.vectors)
        return Outcome(ranking, train_seconds, time.monotonic() - began, parameters_of(classifier))

    def fit(self, task: Task, settings: tuple[str, ...], folder: Path, fit_on: str) -> Classifier:
        """The recipe's model with these settings, trained now or found as it was trained."""
        config = self._config(task, settings, fit_on)
        output = self.folder_of(task, settings, folder, fit_on)
        return train(config, output=output, resume=True, observer=self.observer, progress=self.progress)

    def folder_of(self, task: Task, settings: tuple[str, ...], folder: Path, fit_on: str) -> Path:
        """Where that model is: named after everything that it follows from."""
        identity = identify(self._config(task, settings, fit_on), task.dataset.fingerprint)
        return folder / f"{self.label}-{identity}"

    def _config(self, task: Task, settings: tuple[str, ...] = (), fit_on: str = "train") -> RunConfig:
        a, b = task.propensity
        shared = (
            f"seed={task.seed}",
            f"data.validation_fraction={task.fraction}",
            f"data.fit_on={fit_on}",
            f"evaluation.metric={json.dumps(task.metric)}",
            f"evaluation.at={list(task.judge_of_validation().at)}",
            f"evaluation.propensity_a={a}",
            f"evaluation.propensity_b={b}",
        )
        return resolve(self.recipe, (*shared, *settings), task.source)


def parameters_of(classifier: Classifier) -> int:
    """Numbers that training sets: the towers', a shared one counted once; label vectors follow from them."""
    return sum(weight.numel() for weight in classifier.towers.parameters())
