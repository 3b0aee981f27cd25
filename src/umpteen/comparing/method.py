"""What every method of a comparison is given, what it can do, and what comes out of it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from umpteen.data.dataset import Dataset, Split
from umpteen.errors import BadInput
from umpteen.judge import Judge
from umpteen.retrieval.ranking import Ranking
from umpteen.tuning import Candidate


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
            raise BadInput(f"{self.dataset.name} has no test split to compare on; add one (docs/data-formats.md)")
        return self.dataset.test

    def judge_of_validation(self) -> Judge:
        assert self.held_out.validation is not None
        return self._judge(self.held_out, self.held_out.validation)

    def judge_of_test(self) -> Judge:
        return self._judge(self.dataset, self.test)

    def _judge(self, dataset: Dataset, split: Split) -> Judge:
        a, b = self.propensity
        return Judge(dataset, split, a=a, b=b)

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


class Method(Protocol):
    """One row of the table. Trials see train and validation; only `finish` sees test, once."""

    @property
    def name(self) -> str: ...

    @property
    def is_ours(self) -> bool: ...

    @property
    def trials_file(self) -> str:
        """Methods that share their trials share this file."""
        ...

    @property
    def particulars(self) -> dict[str, Any]:
        """What its result follows from besides the trial's settings; a result of others is not taken for its own."""
        ...

    def candidates(self, task: Task, trials: int) -> list[Candidate]:
        """The settings to try on validation, its own first."""
        ...

    def finish(self, task: Task, settings: tuple[str, ...], folder: Path) -> Outcome:
        """The final fit with the chosen settings; what `folder` holds of an interrupted one is gone on with."""
        ...


Notice = Callable[[str], None]
