"""A recipe of ours with a sparse ranker on top, weighed on validation by a model that has not seen it."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umpteen.classifier import RANKER, Classifier
from umpteen.comparing.method import Outcome, Task
from umpteen.comparing.ours import Ours, parameters_of
from umpteen.parallel.world import cores
from umpteen.ranker.ranker import Ranker
from umpteen.ranker.settings import RankerSettings
from umpteen.reranking import fit_ranker
from umpteen.storage import atomic_folder, write_atomically
from umpteen.tuning import Candidate

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
        judge = task.judge_of_validation()
        on_validation = judge.rank(weighed.towers.query, weighed.vectors, ranker=weighed.ranker)
        validation = judge.report(on_validation, bootstrap=0).metrics
        self.ours.notice(f"{self.name}: the ranker counts {weighed.ranker.weight:g}")

        final = self._fit(task, settings, folder, "train+validation", weighed.ranker)
        assert final.ranker is not None
        judge = task.judge_of_test()
        began = time.monotonic()
        ranking = judge.rank(final.towers.query, final.vectors, ranker=final.ranker)
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
