"""Who watches a run: what anybody can hear of it, several as one, and the log for machines."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umpteen.errors import NotSaved
from umpteen.files.storage import write_atomically

if TYPE_CHECKING:
    from umpteen.config.settings import RunConfig
    from umpteen.evaluation.report import Report


class Observer:
    """Hears of a run and changes nothing; a subclass overrides what it wants to hear.

    Pass some to `umpteen.train`. One that raises ends the run, which can be resumed.

    >>> from umpteen import Observer, RunConfig, train
    >>> class Losses(Observer):
    ...     def started(self, config, step, steps):
    ...         self.heard = []
    ...
    ...     def stepped(self, record):
    ...         self.heard.append(record["loss"])
    >>> losses = Losses()
    >>> tiny = {"training": {"steps": 2, "batch_size": 8}, "evaluation": {"every_epochs": 0}}
    >>> _ = train(RunConfig.model_validate(tiny), output="runs/observed", observers=[losses])
    >>> len(losses.heard)
    2
    """

    def __call__(self, work: str, done: int, total: int) -> None:
        """How far a piece of work is that comes before or after training, such as reading."""

    def started(self, config: "RunConfig", step: int, steps: int) -> None:
        """Training begins, or goes on after so many steps, and will take so many in all."""

    def stepped(self, record: dict[str, Any]) -> None:
        """A step was done: `step`, `loss`, `learning_rate`, `gradient_norm` and what else metrics.jsonl has of it."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Validation after a `step`: its `metrics`, and whether it is the `best` so far."""

    def notice(self, message: str) -> None:
        """A sentence for people."""

    def finished(self, model: Path, report: "Report | None") -> None:
        """The model is in its folder; the report is of its validation, if it has any."""

    def ended(self, problem: BaseException | None) -> None:
        """Nothing comes after this: the run is complete, or was ended by a problem, `Stopped` if that was a signal."""


def _relayed(name: str) -> Any:
    return lambda self, *said: self.tell(name, *said)


class Relay(Observer, ABC):
    """Tells others what it hears."""

    @abstractmethod
    def tell(self, what: str, *said: Any) -> None:
        """Calls the method of this name, now or later."""

    def __call__(self, work: str, done: int, total: int) -> None:
        self.tell("__call__", work, done, total)

    started = _relayed("started")
    stepped = _relayed("stepped")
    evaluated = _relayed("evaluated")
    notice = _relayed("notice")
    finished = _relayed("finished")
    ended = _relayed("ended")


class Observers(Relay):
    """Several as one, who hear of the end when the block ends."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def tell(self, what: str, *said: Any) -> None:
        for observer in self._observers:
            getattr(observer, what)(*said)

    def __enter__(self) -> "Observers":
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        self.ended(problem)


class MetricsLog(Observer):
    """Appends each record to metrics.jsonl; a resumed run first drops the lines after its checkpoint."""

    def __init__(self, path: Path, *, log_every: int = 1) -> None:
        self._path, self._every = path, log_every

    def started(self, config: "RunConfig", step: int, steps: int) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        write_atomically(self._path, "".join(f"{line}\n" for line in kept))

    def stepped(self, record: dict[str, Any]) -> None:
        if record["step"] % self._every == 0:
            self._append(record)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._append(record)

    def _append(self, record: dict[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")
        except OSError as problem:
            reason = f"could not be written: {problem.strerror}"
            raise NotSaved(f"{self._path}: {reason}; --resume goes on from the last checkpoint") from problem


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line cut short by a kill is dropped
