"""Who takes part in a comparison: the peers that can be had here, and our recipes, with a ranker where asked."""

import difflib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umpteen.compare.methods import BASELINES, PEERS, Method, Outcome, Task, Unavailable, peers
from umpteen.config.recipes import path_of, resolve
from umpteen.config.settings import RunConfig
from umpteen.errors import BadInput
from umpteen.files.progress import Notice, Progress
from umpteen.files.storage import atomic_folder, write_atomically
from umpteen.model.classifier import RANKER, Classifier
from umpteen.model.rerank import fit_ranker
from umpteen.model.train import train
from umpteen.parallel.world import cores
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.ranker import Ranker
from umpteen.training.observer import Observer
from umpteen.training.tune import Candidate, candidates, grid, identify, usual_choices


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
        evaluator = task.evaluator_of_test()
        began = time.monotonic()
        ranking = evaluator.rank(classifier.towers.query, classifier.vectors)
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
            f"evaluation.at={list(task.evaluator_of_validation().at)}",
            f"evaluation.propensity_a={a}",
            f"evaluation.propensity_b={b}",
        )
        return resolve(self.recipe, (*shared, *settings), task.source)


def parameters_of(classifier: Classifier) -> int:
    """Numbers that training sets: the towers', a shared one counted once; label vectors follow from them."""
    return sum(weight.numel() for weight in classifier.towers.parameters())


MARK = "+ranker"


@dataclass(frozen=True)
class OursWithRanker:
    """The same trials and the same dual encoder as the recipe without; the ranker's weight is chosen after them."""

    ours: Ours
    is_ours = True

    @property
    def name(self) -> str:
        return f"{self.ours.name}{MARK}"

    @property
    def trials_file(self) -> str:
        return self.ours.trials_file

    @property
    def particulars(self) -> dict[str, Any]:
        return RankerSettings().to_dict()

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        return self.ours.candidates(task, trials)

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        """Fit on train, weigh on validation; fit on all of train with that weight; rank test."""
        weighed = self._fit(task, settings, folder, "train", None)
        assert weighed.ranker is not None
        evaluator = task.evaluator_of_validation()
        on_validation = evaluator.rank(weighed.towers.query, weighed.vectors, ranker=weighed.ranker)
        validation = evaluator.report(on_validation, bootstrap=0).metrics
        self.ours.notice(f"{self.name}: the ranker counts {weighed.ranker.weight:g}")

        final = self._fit(task, settings, folder, "train+validation", weighed.ranker)
        assert final.ranker is not None
        evaluator = task.evaluator_of_test()
        began = time.monotonic()
        ranking = evaluator.rank(final.towers.query, final.vectors, ranker=final.ranker)
        predict_seconds = time.monotonic() - began
        parameters = parameters_of(final) + int(final.ranker.weights.nnz) + len(final.ranker.intercepts)
        seconds = float(final.training["seconds"]) + self._ranker_seconds(task, settings, folder)
        return Outcome(ranking, seconds, predict_seconds, parameters, validation)

    def _ranker_seconds(self, task: Task, settings: tuple[str, ...], folder: Path) -> float:
        """What the final ranker's fit took, which may have been before a kill."""
        plain = self.ours.folder_of(task, settings, folder, "train+validation")
        return float(_clock(plain.with_name(plain.name + MARK)).read_text())

    def _fit(
        self, task: Task, settings: tuple[str, ...], folder: Path, fit_on: str, weighed: Ranker | None
    ) -> Classifier:
        """The model with a ranker, in a folder of its own beside the model without."""
        plain = self.ours.fit(task, settings, folder, fit_on)
        plain_folder = self.ours.folder_of(task, settings, folder, fit_on)
        output = plain_folder.with_name(plain_folder.name + MARK)
        if not output.exists():
            with atomic_folder(output) as copy:
                shutil.copytree(plain_folder, copy, dirs_exist_ok=True)
        if RANKER not in Classifier.load(output, index=False).parts:
            chosen = RankerSettings(candidates=min(RankerSettings.candidates, len(plain.labels)))
            found = {} if weighed is None else {"weight": weighed.weight, "rare": weighed.rare}
            began = time.monotonic()
            fit_ranker(output, task.dataset, chosen, **found, jobs=cores(), progress=self.ours.progress)
            write_atomically(_clock(output), f"{time.monotonic() - began:.3f}")
        return Classifier.load(output)


def _clock(model: Path) -> Path:
    """Beside a model: the seconds its ranker took."""
    return model.with_name(f"{model.name}.seconds")


def available_peers(names: Sequence[str], notice: Notice) -> tuple[list[Method], list[dict[str, str]]]:
    """The peers by name, and those that cannot be had here with the reason."""
    known = BASELINES | (peers() if set(names) - set(BASELINES) else {})
    there = list(dict.fromkeys([*known, *PEERS]))
    for name in names:
        if name not in there:
            nearest = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(there)}"
            raise BadInput(f"--peers {name}: no such method; {hint}")
    found: list[Method] = []
    skipped = []
    for name in dict.fromkeys(names):
        try:
            if name not in known:
                raise Unavailable("it comes with umpteen's repository, not with the package: clone it and run `make`")
            known[name].install(notice)
            found.append(known[name])
        except Unavailable as reason:
            notice(f"{name} is left out: {reason}")
            skipped.append({"method": name, "reason": str(reason)})
    return found, skipped


def our_methods(
    recipes: Sequence[str],
    *,
    ranker: bool,
    notice: Notice,
    observer: Observer,
    progress: Progress,
    label: str | None = None,
) -> list[Method]:
    """Each recipe, and with a ranker on top where it is marked so or all are; `label` renames a single one."""
    wanted: dict[str, str] = {}  # name in the table → recipe
    for recipe in recipes:
        plain = recipe.removesuffix(MARK)
        name = label or path_of(plain).stem
        marked = recipe.endswith(MARK)
        for row in [f"{name}{MARK}"] if marked else [name, f"{name}{MARK}"] if ranker else [name]:
            if wanted.setdefault(row, plain) != plain:
                raise BadInput(f"two recipes are called {name}: {wanted[row]} and {plain}; rename one of the files")
    methods: list[Method] = []
    for row, recipe in wanted.items():
        ours = Ours(recipe, row.removesuffix(MARK), notice, observer, progress)
        methods.append(OursWithRanker(ours) if row.endswith(MARK) else ours)
    return methods
