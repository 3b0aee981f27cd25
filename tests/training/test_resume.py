"""A run that was killed or stopped at any moment and resumed ends as the one that was never disturbed, bit for bit."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from miniature import checkpoint_of, command, files_of, unfinished, write_recipe
from umpteen.config.settings import RunConfig
from umpteen.parallel.children import StopRequest
from umpteen.training.observer import MetricsLog

# Real processes, forked from one that has imported torch already: starting each anew would take seconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["umpteen.model.train", "umpteen.cli.main", "umpteen.config.recipes"])

STEPS, EVERY = 24, 4
CALLS = 40_000  # of functions, about as many as a step and its checkpoint have
# Everything random is on: dropout, sampled positives, shuffling. A checkpoint after every step.
CHANGES = (
    f"training.steps={STEPS}",
    "training.checkpoint_minutes=0",
    f"evaluation.every_steps={EVERY}",
    "encoder.query.dropout=0.3",
    "objective.positives_per_query=1",
)


class Signal(NamedTuple):
    """A run sends it to itself: after so many records and then calls of functions, however fast the machine is."""

    number: int
    records: int
    calls: int = 0


def signal_myself(given: Signal) -> None:
    append, records, calls = MetricsLog._append, given.records, given.calls

    def called(*_: object) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            sys.setprofile(None)
            os.kill(os.getpid(), given.number)

    def appended(log: MetricsLog, record: dict[str, Any]) -> None:
        nonlocal records
        append(log, record)
        records -= 1
        if records == 0:
            sys.setprofile(called)

    MetricsLog._append = appended  # type: ignore[method-assign]
    if records == 0:
        sys.setprofile(called)


def run_in_child(arguments: list[str], cache: str, errors: Path, given: Signal | None) -> None:
    os.environ["UMPTEEN_CACHE"] = cache
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["umpteen", *arguments]
    from umpteen.cli.main import main

    if given is not None:
        signal_myself(given)
    main()


def exit_code(folder: Path, *options: str, given: Signal | None = None) -> int | None:
    """Of a run that has ended."""
    arguments = ["train", str(folder / "recipe.toml"), "--output", str(folder / "model"), *options]
    work = (arguments, os.environ["UMPTEEN_CACHE"], folder / "errors", given)
    process = PROCESSES.Process(target=run_in_child, args=work, daemon=True)
    process.start()
    process.join()
    return process.exitcode


def finished(folder: Path, *options: str) -> Path:
    assert exit_code(folder, *options) == 0, (folder / "errors").read_text()
    return folder / "model"


def weights(model: Path) -> dict[str, bytes]:
    files = files_of(model)
    found = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob("*.safetensors")}
    assert len(found) > 1
    return found


def course(model: Path) -> list[dict[str, object]]:
    """The log without its clock."""
    clock = {"seconds", "processor_seconds", "queries_per_second"}
    lines = (files_of(model) / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in clock} for line in lines]


RUNS = {
    "static": ("static", "separate", ()),
    "transformer": ("transformer", "shared", ()),
    "shortlist": (
        "static",
        "separate",
        ("pool.name=shortlist", "pool.shortlist=4", "pool.refresh_epochs=0.7", "pool.from_epoch=0.3", "pool.margin=0"),
    ),
    "cache, learned scale and bias": (
        "static",
        "shared",
        ("pool.name=cache", "objective.name=one_vs_all", "objective.logit_bias=-2"),
    ),
    "table, biases": (
        "static",
        "separate",
        ("encoder.label.kind=table", "encoder.label.bias=true", "pool.name=random", "pool.negatives=2"),
    ),
    "bank": ("static", "separate", ("pool.name=bank", "pool.renewed=1", "training.batch_size=4")),
    "mixed": (
        "sum",
        "separate",
        (
            "encoder.query.static.skip=0.3",
            "encoder.query.transformer.layers=1",
            "encoder.query.transformer.learning_rate=0.003",
            "encoder.label.transformer=none",
            "encoder.label.table.skip=0",
        ),
    ),
    "fused": (
        "static",
        "separate",
        ("encoder.label.kind=sum", "encoder.label.static.bigrams=0", "encoder.label.table.skip=0"),
    ),
}


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, start, recipe and the model of a run that nobody disturbed."""
    forkserver.ensure_running()  # it imports while we write
    folder = tmp_path_factory.mktemp("undisturbed")
    kind, towers, pool = RUNS[request.param]
    write_recipe(folder, *CHANGES, *pool, kind=kind, towers=towers)
    finished(folder)
    return folder


@pytest.fixture
def folder(undisturbed: Path, tmp_path: Path) -> Path:
    """A place for another run of the same recipe, on the same data."""
    (tmp_path / "recipe.toml").write_text((undisturbed / "recipe.toml").read_text())
    return tmp_path


@pytest.mark.parametrize("undisturbed", RUNS, indirect=True)
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_weights(
    undisturbed: Path, folder: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(request.node.name)  # other moments for each
    for records in (0, 6, 9):
        kill = Signal(signal.SIGKILL, records, chance.randrange(CALLS))
        assert exit_code(folder, "--resume", "--quiet", given=kill) == -signal.SIGKILL
        assert not (folder / "model").exists()
    model = finished(folder, "--resume", "--quiet")
    assert weights(model) == weights(undisturbed / "model")
    assert course(model) == course(undisturbed / "model")
    steps = [record["step"] for record in course(model) if "loss" in record]
    evaluations = [record["step"] for record in course(model) if "metrics" in record]
    assert steps == list(range(1, STEPS + 1)) and evaluations == list(range(EVERY, STEPS + 1, EVERY))
    assert {path.name for path in folder.iterdir()} == {"recipe.toml", "model", "errors"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("undisturbed", ["static"], indirect=True)
def test_a_signal_saves_and_leaves_and_the_run_goes_on_exactly(number: int, undisturbed: Path, folder: Path) -> None:
    assert exit_code(folder, given=Signal(number, 5)) == 128 + number
    state = json.loads((checkpoint_of(folder / "model.training") / "state.json").read_text())["state"]
    said = (folder / "errors").read_text()
    assert said.strip().endswith(f"stopped and saved after step {state['step']}; --resume goes on")
    assert "Traceback" not in said and not (folder / "model").exists()
    model = finished(folder, "--resume")
    assert "resumed after step" in (folder / "errors").read_text()
    assert weights(model) == weights(undisturbed / "model") and course(model) == course(undisturbed / "model")


def test_ended_after_any_step_and_resumed_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    changes = ("training.steps=6", "evaluation.every_steps=2", "encoder.query.dropout=0.3")
    train = ("train", write_recipe(tmp_path, "training.checkpoint_minutes=0", *changes), "--quiet", "--output")
    assert command(*train, tmp_path / "straight").code == 0
    for steps in range(1, 6):
        unfinished(tmp_path, *changes, steps=steps)
        assert command(*train, tmp_path / "model", "--resume").code == 0
        assert weights(tmp_path / "model") == weights(tmp_path / "straight")
        shutil.rmtree(tmp_path / "model")


def test_resume_starts_a_run_where_there_is_none(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "training.steps=1")
    assert command("train", recipe, "--output", tmp_path / "model", "--resume", "--quiet").code == 0
    assert (tmp_path / "model" / "manifest.json").exists()


def test_early_stopping_counts_on_across_a_resume(tmp_path: Path) -> None:
    # Nothing changes at such a learning rate, so the first evaluation stays the best and three more end the run.
    changes = ("evaluation.every_steps=1", "evaluation.patience=3", "optimizer.learning_rate=1e-12")
    unfinished(tmp_path, *changes, steps=3)
    outcome = command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume")
    assert outcome.code == 0 and "stopped early" in outcome.err and "best at step 1" in outcome.err
    assert [record["step"] for record in course(tmp_path / "model") if "loss" in record] == [1, 2, 3, 4]
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["training"]["best_step"] == 1


def test_the_best_model_is_kept_not_the_last(tmp_path: Path) -> None:
    # A learning rate that ruins what the first step achieved: the saved model must be the first step's.
    changes = ("evaluation.every_steps=1", "optimizer.learning_rate=3", "optimizer.warmup=0")
    unfinished(tmp_path, *changes, steps=2)
    assert command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume", "--quiet").code == 0
    evaluations = [record for record in course(tmp_path / "model") if "metrics" in record]
    values = [record["metrics"]["nDCG@5"] for record in evaluations]  # type: ignore[index]
    assert values[-1] < max(values)
    report = json.loads((files_of(tmp_path / "model") / "report.json").read_text())
    assert report["metrics"]["nDCG@5"] == pytest.approx(max(values))


def test_a_log_line_cut_short_or_after_the_checkpoint_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "metrics": {}}\n{"step": 3}\n{"step": 4, "lo')
    MetricsLog(path).started(RunConfig(), 2, 10)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2, "metrics": {}}\n'


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    request = StopRequest()
    request(signal.SIGINT, None)
    assert request.signal == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        request(signal.SIGINT, None)
