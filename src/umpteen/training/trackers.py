"""Experiment trackers, each around somebody's package, in threads that training neither waits for nor ends with."""

import os
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, ClassVar

from umpteen.config.recipes import flat, to_toml
from umpteen.config.settings import RunConfig
from umpteen.errors import BadConfig, NotSaved, Stopped, known
from umpteen.evaluation.report import Report
from umpteen.files.progress import Notice
from umpteen.files.storage import write_atomically
from umpteen.training.checkpoint import TRACKED
from umpteen.training.observer import Observer, Relay

OF_A_STEP = ("loss", "learning_rate", "gradient_norm")
PATIENCE = 30.0  # seconds that the end of a run waits for what a tracker has not taken yet


class Tracker(Observer, ABC):
    """Logs a run elsewhere, from its start on, by names such as train/loss and validation/P@1."""

    needs: ClassVar[str]  # a module, imported at once: a missing one is told before any work

    def __init__(self, name: str, config: RunConfig, output: Path, workspace: Path) -> None:
        self.package: Any = import_module(self.needs)
        self.output, self._step, self._every = output, 0, config.training.log_every
        self._kept = workspace / TRACKED / name

    @abstractmethod
    def log(self, metrics: dict[str, float], step: int) -> None:
        """Numbers by name, after a step."""

    @abstractmethod
    def attach(self, file: Path) -> None:
        """A small file that belongs to the run."""

    def identity(self, make: Callable[[], str]) -> str:
        """What the tracker calls the run: as before it was resumed, or as it is made now, kept in the workspace."""
        if self._kept.exists():
            return self._kept.read_text(encoding="utf-8")
        made = make()
        with suppress(OSError, NotSaved):  # a short run, and its workspace, may be gone by now
            self._kept.parent.mkdir(exist_ok=True)
            write_atomically(self._kept, made)
        return made

    def stepped(self, record: dict[str, Any]) -> None:
        self._step = record["step"]
        if self._step % self._every == 0:
            self.log({f"train/{name}": record[name] for name in OF_A_STEP}, self._step)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.log({f"validation/{name}": value for name, value in record["metrics"].items()}, self._step)

    def finished(self, model: Path, report: Report | None) -> None:
        if report is not None:
            self.log({f"report/{name}": value for name, value in report.metrics.items()}, self._step)
        self.attach(model / "README.md")


class TensorBoard(Tracker):
    """Events in OUTPUT.tensorboard/, which stays; those of a resumed run hide what came after its checkpoint."""

    needs = "torch.utils.tensorboard"

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._writer = self.package.SummaryWriter(f"{self.output}.tensorboard", purge_step=step + 1, flush_secs=10)
        self._writer.add_text("recipe", f"```toml\n{to_toml(config)}```")

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def attach(self, file: Path) -> None:
        self._writer.add_text(file.name, file.read_text(encoding="utf-8"))

    def ended(self, problem: BaseException | None) -> None:
        self._writer.close()


class MLflow(Tracker):
    """A run of the experiment MLFLOW_EXPERIMENT_NAME where MLFLOW_TRACKING_URI says; in a local store without it."""

    needs = "mlflow"

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._client = self.package.MlflowClient()
        self._run = self.identity(lambda: self._create(config))
        self._client.update_run(self._run, status="RUNNING")

    def _create(self, config: RunConfig) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "umpteen")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        run: str = self._client.create_run(experiment, run_name=config.name).info.run_id
        param, settings = self.package.entities.Param, flat(config.model_dump(mode="json"))
        params = [param(key, str(value)) for key, value in settings.items()]
        for start in range(0, len(params), 100):  # the most that it takes at once
            self._client.log_batch(run, params=params[start : start + 100])
        return run

    def log(self, metrics: dict[str, float], step: int) -> None:
        now, metric = int(1000 * time.time()), self.package.entities.Metric
        named = {name.replace("@", "_at_"): value for name, value in metrics.items()}  # it refuses an @
        self._client.log_batch(self._run, [metric(name, value, now, step) for name, value in named.items()])

    def attach(self, file: Path) -> None:
        self._client.log_artifact(self._run, str(file))

    def ended(self, problem: BaseException | None) -> None:
        stopped = isinstance(problem, Stopped | KeyboardInterrupt)
        self._client.set_terminated(self._run, "KILLED" if stopped else "FAILED" if problem else "FINISHED")


class WeightsAndBiases(Tracker):
    """A run of the project WANDB_PROJECT; on this machine only, for `wandb sync`, unless WANDB_MODE says online."""

    needs = "wandb"

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._run = self.package.init(
            id=self.identity(lambda: secrets.token_hex(4)),
            resume="allow",
            reinit="create_new",  # beside a run that the caller may have
            name=config.name,
            project=os.environ.get("WANDB_PROJECT", "umpteen"),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=config.model_dump(mode="json"),
            settings=self.package.Settings(console="off", silent=True),
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def attach(self, file: Path) -> None:
        self._run.save(shutil.copy(file, self._run.dir), base_path=self._run.dir, policy="now")

    def ended(self, problem: BaseException | None) -> None:
        self._run.finish(exit_code=1 if problem else 0)


class Apart(Relay):
    """A tracker in a thread of its own; where it fails there is a notice, and it hears no more."""

    def __init__(self, name: str, tracker: Tracker, notice: Notice) -> None:
        self._name, self._tracker, self._notice = name, tracker, notice
        self._todo = SimpleQueue[tuple[str, Any]]()
        self._thread = Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._problem: Exception | None = None

    def tell(self, what: str, *said: Any) -> None:
        if what == "started":
            self._thread.start()
        if self._thread.is_alive():
            self._todo.put((what, said))
            if what == "ended":
                self._thread.join(PATIENCE)
                if self._thread.is_alive():
                    self._notice(f"{self._name} has not taken all within {PATIENCE:g} s; what is left of it is lost")
        if self._problem is not None:  # told by the thread of the run, whose observers need not know of another
            told = f"{type(self._problem).__name__}: {self._problem}".splitlines()[0]
            self._notice(f"{self._name} has failed, and the run goes on without it: {told}")
            self._problem = None

    def _work(self) -> None:
        what = ""
        try:
            while what != "ended":
                what, said = self._todo.get()
                getattr(self._tracker, what)(*said)
        except Exception as problem:  # whatever a server, a disk or a package comes up with
            self._problem = problem


# A new tracker is a subclass of `Tracker` and a row here.
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def build_trackers(config: RunConfig, output: Path, workspace: Path, notice: Notice) -> list[Observer]:
    """Those that the recipe names; an error if one is unknown, or its package is not here."""
    found: list[Observer] = []
    for name in dict.fromkeys(config.training.trackers):
        kind = known(TRACKERS, name, f"training.trackers: there is no tracker {name!r}")
        try:
            found.append(Apart(name, kind(name, config, output, workspace), notice))
        except ImportError as missing:
            raise BadConfig(f"training.trackers: {name} needs pip install 'umpteen[{name}]' ({missing})") from None
    return found
