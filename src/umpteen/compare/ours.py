"""Who takes part in a comparison: the peers that can be had here, and our recipes, with a ranker where asked."""

import difflib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umpteen.compare.methods import BASELINES, PEERS, RANKED, Method, Outcome, Task, Unavailable, peers
from umpteen.config.recipes import path_of, resolve
from umpteen.config.settings import RunConfig
from umpteen.errors import BadInput
from umpteen.files.progress import Notice, Progress
from umpteen.files.storage import atomic_folder, write_atomically
from umpteen.model.classifier import Classifier
from umpteen.model.rerank import fit_ranker
from umpteen.model.train import train
from umpteen.parallel.world import cores
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.ranker import Ranker
from umpteen.training.observer import Observer
from umpteen.training.tune import Candidate, candidates, grid, identify, usual_choices

OURS = "umpteen "  # begins the name of each


@dataclass(frozen=True)
class Ours(Method):
    """A recipe by name or by path, with a ranker where the method's name says so; all else is the comparison's."""

    recipe: str
    notice: Notice
    observer: Observer
    progress: Progress
    is_ours = True

    @property
    def is_ranked(self) -> bool:
        return self.name.endswith(RANKED)

    @property
    def particulars(self) -> dict[str, Any]:
        return RankerSettings().to_dict() if self.is_ranked else {}

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        points = grid(usual_choices(self._config(task)), trials, task.seed, own_first=True)
        configs = [(point, self._config(task, point)) for point in points]
        return candidates(configs, notice=self.notice, progress=self.progress, observer=self.observer)

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        """Fits on all of train and ranks test; a ranker is fitted on train and weighed on validation before."""
        weighed, validation = None, None
        if self.is_ranked:
            model, _ = self._fit(task, settings, folder, "train")
            evaluator, weighed = task.evaluator_of_validation(), model.ranker
            assert weighed is not None
            on_validation = evaluator.rank(model.towers.query, model.vectors, ranker=weighed)
            validation = evaluator.report(on_validation, bootstrap=0).metrics
            self.notice(f"{self.name}: the ranker counts {weighed.weight:g}")
        model, train_seconds = self._fit(task, settings, folder, "train+validation", weighed)
        evaluator = task.evaluator_of_test()
        began = time.monotonic()
        ranking = evaluator.rank(model.towers.query, model.vectors, ranker=model.ranker)
        predict_seconds = time.monotonic() - began
        # Numbers that training sets, those of a shared tower once; label vectors follow from them.
        parameters = sum(weight.numel() for weight in model.towers.parameters())
        if model.ranker is not None:
            parameters += int(model.ranker.weights.nnz) + len(model.ranker.intercepts)
        return Outcome(ranking, train_seconds, predict_seconds, parameters, validation)

    def _fit(
        self, task: Task, settings: tuple[str, ...], folder: Path, fit_on: str, weighed: Ranker | None = None
    ) -> tuple[Classifier, float]:
        """The model with these settings, trained now or found as it was trained, and the seconds that took.

        Its folder is named after everything it follows from; with a ranker it has another one beside that.
        """
        config = self._config(task, settings, fit_on)
        identity = identify(config, task.dataset.fingerprint)
        plain = folder / f"{self.name.removeprefix(OURS).removesuffix(RANKED)}-{identity}"
        began = time.monotonic()
        model = train(config, output=plain, resume=True, observer=self.observer, progress=self.progress)
        # An interrupted run has trained for longer than this call took.
        seconds = max(time.monotonic() - began, float(model.training["seconds"]))
        if not self.is_ranked:
            return model, seconds
        ranked = plain.with_name(plain.name + RANKED)
        clock = ranked.with_name(f"{ranked.name}.seconds")  # written last: it says that the ranker is there
        if not ranked.exists():
            clock.unlink(missing_ok=True)
            with atomic_folder(ranked) as copy:
                shutil.copytree(plain, copy, dirs_exist_ok=True)
        if not clock.exists():
            chosen = RankerSettings(candidates=min(RankerSettings.candidates, len(model.labels)))
            found = {}
            if weighed is not None:
                chosen = weighed.settings
                found = {"weight": weighed.weight, "votes": weighed.votes, "rare": weighed.rare}
            began = time.monotonic()
            fit_ranker(ranked, task.dataset, chosen, **found, jobs=cores(), progress=self.progress)
            write_atomically(clock, f"{time.monotonic() - began:.3f}")
        return Classifier.load(ranked), seconds + float(clock.read_text())

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
    methods: dict[str, Ours] = {}
    for recipe in recipes:
        plain = recipe.removesuffix(RANKED)
        name = label or path_of(plain).stem
        for end in [RANKED] if recipe.endswith(RANKED) else ["", RANKED] if ranker else [""]:
            row = f"{OURS}{name}{end}"
            one = methods.setdefault(row, Ours(row, plain, notice, observer, progress))
            if one.recipe != plain:
                raise BadInput(f"two recipes are called {name}: {one.recipe} and {plain}; rename one of the files")
    return list(methods.values())
