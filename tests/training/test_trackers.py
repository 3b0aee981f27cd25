"""Trackers and observers: what each hears, with the real packages where they are installed, and that none ends a run.

Packages that are missing skip their tests, or fail them if UMPTEEN_TRACKER_TESTS is "required".
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import umpteen
from miniature import EndsAfter, Enough, command, refused, write_recipe
from test_docs import ROOT, blocks_of
from umpteen.config.recipes import resolve
from umpteen.errors import Stopped
from umpteen.model.train import train, train_in
from umpteen.parallel.world import World
from umpteen.training import trackers
from umpteen.training.observer import Observer
from umpteen.training.trackers import TRACKERS, Tracker
from worlds import run_world

STEPS = 4
SETTINGS = (f"training.steps={STEPS}", "evaluation.every_steps=2", "training.checkpoint_minutes=0", "name=tiny")


def tracked(folder: Path, *names: str, more: tuple[str, ...] = ()) -> Path:
    """A recipe with these trackers."""
    return write_recipe(folder, *SETTINGS, f"training.trackers={list(names)}".replace("'", '"'), *more)


def package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        needed = f"needs {name}: make tracker-test installs it"
        if os.environ.get("UMPTEEN_TRACKER_TESTS") == "required":
            pytest.fail(needed)
        pytest.skip(needed)


class Heard(Observer):
    """Everything, in its order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in ("started", "stepped", "evaluated", "notice", "finished", "ended"):
            setattr(self, name, lambda *said, name=name: self.calls.append((name, *said)))

    def said(self, name: str) -> list[Any]:
        return [said for what, *said in self.calls if what == name]

    @property
    def notices(self) -> list[str]:
        return [message for (message,) in self.said("notice")]


class Interrupts(Observer):
    """Sends the run SIGTERM after its third step."""

    def stepped(self, record: dict[str, Any]) -> None:
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_observers_hear_of_a_run_from_its_start_to_its_end(tmp_path: Path) -> None:
    one, other = Heard(), Heard()
    model = umpteen.train(tracked(tmp_path), output=tmp_path / "model", observers=[one, other])
    assert [name for name, *_ in one.calls] == [
        "started",
        *["stepped"] * 2,
        "evaluated",
        *["stepped"] * 2,
        "evaluated",
        "finished",
        "ended",
    ]
    ((config, step, steps),) = one.said("started")
    assert (config.name, step, steps) == ("tiny", 0, STEPS)
    ((folder, report),) = one.said("finished")
    assert folder == tmp_path / "model" and report.metrics == model.report.metrics
    assert one.said("ended") == [[None]] and [name for name, *_ in other.calls] == [name for name, *_ in one.calls]


def test_an_observer_that_raises_ends_the_run_and_the_others_hear_why(tmp_path: Path) -> None:
    heard = Heard()
    with pytest.raises(Enough) as ended:
        train(tracked(tmp_path), output=tmp_path / "model", observers=[EndsAfter(1), heard])
    assert heard.said("ended") == [[ended.value]] and not heard.said("finished")


def test_a_run_is_in_tensorboard_once_also_if_it_was_resumed(tmp_path: Path) -> None:
    package("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = tracked(tmp_path, "tensorboard")
    with pytest.raises(Enough):
        train(recipe, output=tmp_path / "model", observers=[EndsAfter(2)])  # its third step is done, but not saved
    model = train(recipe, output=tmp_path / "model", resume=True)
    events = EventAccumulator(str(tmp_path / "model.tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("validation/P@1")] == [2, 4]
    assert events.Scalars("report/P@1")[0].value == pytest.approx(model.report.metrics["P@1"])
    (text,) = events.Tensors("recipe/text_summary")[0].tensor_proto.string_val
    assert b'name = "tiny"' in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between MLflow and what it is made of
def test_a_resumed_run_goes_on_in_its_run_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = package("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    recipe, heard, client = tracked(tmp_path, "mlflow"), Heard(), mlflow.MlflowClient()

    def runs() -> list[Any]:
        found = client.search_runs([client.get_experiment_by_name("umpteen").experiment_id])
        return [(run.info.run_name, run.info.status) for run in found]

    with pytest.raises(Stopped):
        train(recipe, output=tmp_path / "model", observers=[Interrupts(), heard])
    assert runs() == [("tiny", "KILLED")]
    model = train(recipe, output=tmp_path / "model", resume=True, observers=[heard])
    assert runs() == [("tiny", "FINISHED")]
    (run,) = client.search_runs([client.get_experiment_by_name("umpteen").experiment_id])
    assert run.data.params["training.batch_size"] == "16" and run.data.params["encoder.query.kind"] == "static"
    steps = [entry.step for entry in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(steps) == [1, 2, 3, 4]
    assert run.data.metrics["report/nDCG_at_5"] == pytest.approx(model.report.metrics["nDCG@5"])
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["README.md"]

    train(recipe, output=tmp_path / "model", overwrite=True, observers=[heard])
    assert runs() == [("tiny", "FINISHED")] * 2 and [line for line in heard.notices if "mlflow" in line] == []


def of_this_test(environment: Path, folder: Path) -> bool:
    """Whether a process has the variable that only those of this test have."""
    try:
        return (
            environment.parent.name != str(os.getpid()) and f"WANDB_DIR={folder}".encode() in environment.read_bytes()
        )
    except OSError:
        return False


def test_a_resumed_run_has_its_identity_in_wandb_and_no_process_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = package("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    recipe, heard = tracked(tmp_path, "wandb"), Heard()
    with pytest.raises(Stopped):
        train(recipe, output=tmp_path / "model", observers=[Interrupts(), heard])
    wandb.teardown()  # else its process lives until this one ends
    again = [sys.executable, "-m", "umpteen", "train", str(recipe), "--output", str(tmp_path / "model"), "--resume"]
    subprocess.run(again, capture_output=True, check=True)
    assert not [process for process in Path("/proc").glob("[0-9]*/environ") if of_this_test(process, tmp_path)]
    first, second = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert first.name.rpartition("-")[2] == second.name.rpartition("-")[2]
    (before,), (after,) = first.glob("*.wandb"), second.glob("*.wandb")
    assert b"train/loss" in before.read_bytes() and b"report/P@1" not in before.read_bytes()
    assert b"report/P@1" in after.read_bytes() and b"batch_size" in after.read_bytes()
    assert (second / "files" / "README.md").read_text() == (tmp_path / "model" / "README.md").read_text()
    assert [line for line in heard.notices if "wandb" in line] == []


class Toy(Tracker):
    """Keeps what is logged; fails, or waits, where it is told to."""

    needs = "json"
    at: Callable[[str], None] = staticmethod(lambda what: None)
    logged: list[str]

    def started(self, *begun: Any) -> None:
        type(self).logged = [self.identity(lambda: "an identity")]
        self.at("started")

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append(f"{next(iter(metrics))} {step}")
        self.at("log")

    def attach(self, file: Path) -> None:
        self.logged.append(file.name)

    def ended(self, problem: BaseException | None) -> None:
        self.logged.append(type(problem).__name__)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    """A tracker that is added as the architecture page says: a class and a row."""
    kind = type("OwnToy", (Toy,), {})
    monkeypatch.setitem(TRACKERS, "toy", kind)
    return kind


def test_a_tracker_is_a_class_and_a_row(toy: type[Toy], tmp_path: Path) -> None:
    train(tracked(tmp_path, "toy", more=("training.log_every=3",)), output=tmp_path / "model")
    assert toy.logged == [
        "an identity",
        "validation/P@1 2",
        "train/loss 3",
        "validation/P@1 4",
        "report/P@1 4",
        "README.md",
        "NoneType",
    ]


def test_a_tracker_hears_that_a_signal_ended_the_run(toy: type[Toy], tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tracked(tmp_path, "toy"), output=tmp_path / "model", observers=[Interrupts()])
    assert toy.logged[-1] == "Stopped" and (tmp_path / "model.training" / "tracked" / "toy").is_file()


@pytest.mark.parametrize("place", ["started", "log"])
def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(
    place: str, toy: type[Toy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(what: str) -> None:
        if what == place:
            raise OSError("no space left on device")

    monkeypatch.setattr(toy, "at", staticmethod(fail))
    heard = Heard()
    train(tracked(tmp_path, "toy"), output=tmp_path / "model", observers=[heard])
    assert heard.notices == ["toy has failed, and the run goes on without it: OSError: no space left on device"]
    assert heard.said("finished") and heard.said("ended") == [[None]]


def test_a_run_does_not_wait_for_a_tracker(toy: type[Toy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()  # a server that never gives one
    monkeypatch.setattr(toy, "at", staticmethod(lambda what: answer.wait() and None))
    monkeypatch.setattr(trackers, "PATIENCE", 0.1)
    heard = Heard()
    try:
        train(tracked(tmp_path, "toy"), output=tmp_path / "model", observers=[heard])
        assert len(heard.said("stepped")) == STEPS and "has not taken all within 0.1 s" in heard.notices[-1]
    finally:
        answer.set()


def test_a_missing_package_and_an_unknown_name_are_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    outcome = command("train", tracked(tmp_path, "mlflow"), "--output", tmp_path / "model")
    refused(outcome, "mlflow needs pip install 'umpteen[mlflow]'")
    outcome = command("train", tracked(tmp_path, "mlfow"), "--output", tmp_path / "model")
    refused(outcome, "there is no tracker 'mlfow'; did you mean mlflow?")
    assert not list(tmp_path.glob("model*"))


def train_with_a_toy(world: World, recipe: str, output: Path) -> bool:
    """Whether this process of a run tracked it."""
    TRACKERS["toy"] = Toy
    train_in(world, resolve(recipe), output=output)
    return hasattr(Toy, "logged")


def test_of_several_processes_the_first_one_tracks(tmp_path: Path) -> None:
    recipe = tracked(tmp_path, "toy")
    assert run_world(2, train_with_a_toy, str(recipe), tmp_path / "model") == [True, False]


def test_the_example_of_the_page_prints_how_a_run_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = (block for block in blocks_of(ROOT / "docs" / "how-to" / "trackers.md") if block.language == "python")
    recipe = tracked(tmp_path)
    exec(compile(example.text.replace('"wordnet-nouns"', repr(str(recipe))), str(example), "exec"), {})
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "tiny: 4 steps with batches of 16" and told[-1].startswith("runs/watched reached ")
    assert [line.split()[0] for line in told[1:-1]] == ["2", "4"]
