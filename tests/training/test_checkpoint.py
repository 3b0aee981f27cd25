"""What a run keeps through damage, a full disk and a loss that is no number, and what it refuses to go on from."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from miniature import (
    Enough,
    checkpoint_of,
    command,
    files_of,
    flip_a_byte,
    listing,
    refused,
    trained,
    unfinished,
    write_recipe,
)
from umpteen.errors import InUse, NotSaved
from umpteen.model.classifier import verify
from umpteen.model.train import train
from umpteen.objectives.losses import OBJECTIVES, decoupled_softmax
from umpteen.training.checkpoint import BEST, Checkpoints, TrainState
from umpteen.training.observer import MetricsLog, Observer


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("weights.safetensors", cut_in_half),
        ("weights.safetensors", flip_a_byte),
        ("optimizer.safetensors", cut_in_half),
        ("optimizer.safetensors", Path.unlink),
        ("state.json", cut_in_half),
        ("state.json", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_refused(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    workspace = unfinished(tmp_path)
    damage(checkpoint_of(workspace) / name)
    before = listing(workspace)
    refused(command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume"), name, "afresh")
    assert listing(workspace) == before and not (tmp_path / "model").exists()


def test_of_two_checkpoints_that_a_kill_has_left_the_newer_counts(tmp_path: Path) -> None:
    workspace = unfinished(tmp_path)
    shutil.copytree(checkpoint_of(workspace), older := workspace / "checkpoint-000000001")
    (older / "state.json").unlink()  # half removed
    outcome = command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume")
    assert outcome.code == 0 and "resumed after step 3" in outcome.err and not workspace.exists()


def test_a_best_model_cut_short_is_refused_and_the_checkpoint_stays(tmp_path: Path) -> None:
    workspace = unfinished(tmp_path, "evaluation.every_steps=1", "optimizer.learning_rate=1e-9", steps=4)
    cut_in_half(checkpoint_of(workspace) / BEST)  # nothing after it will be better, so nothing replaces it
    refused(command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume"), BEST)
    assert (checkpoint_of(workspace) / "state.json").exists() and not (tmp_path / "model").exists()


def test_a_kill_between_a_better_evaluation_and_its_checkpoint_leaves_the_best_weights_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, "evaluation.every_steps=1", "training.checkpoint_minutes=0")
    real, written = Checkpoints.save, Path(tmp_path, "model.training")

    kept: list[bytes] = []

    def dies_after_a_better_evaluation(own: Checkpoints, state: TrainState, *rest: Any) -> None:
        if state.step > 1 and state.best_step == state.step:
            raise Enough
        real(own, state, *rest)
        kept.append((checkpoint_of(written) / "weights.safetensors").read_bytes())

    monkeypatch.setattr(Checkpoints, "save", dies_after_a_better_evaluation)
    with pytest.raises(Enough):
        train(recipe, output=tmp_path / "model")
    state = json.loads((checkpoint_of(written) / "state.json").read_text())["state"]
    assert (checkpoint_of(written) / BEST).read_bytes() == kept[state["best_step"] - 1]
    monkeypatch.undo()
    train(recipe, output=tmp_path / "model", resume=True)
    assert not written.exists()


class TriesAgain(Observer):
    """Starts the same training once more while it is under way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.refusals: list[str] = []

    def stepped(self, record: dict[str, Any]) -> None:
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(InUse) as refusal:
                train(self._folder / "recipe.toml", output=self._folder / "model", **how)
            self.refusals.append(str(refusal.value))


def test_two_trainings_into_one_output_do_not_both_start(tmp_path: Path) -> None:
    second = TriesAgain(tmp_path)
    train(write_recipe(tmp_path, "training.steps=2"), output=tmp_path / "model", observers=[second])
    assert len(second.refusals) == 6 and verify(tmp_path / "model") == []
    for refusal in second.refusals:
        assert f"another process (pid {os.getpid()}) is at work in {tmp_path / 'model.training'}" in refusal


@pytest.mark.parametrize("options", [[], ["--resume"], ["--overwrite"]])
def test_a_neighbour_named_like_the_unfinished_run_is_refused_and_left_alone(
    options: list[str], tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path)
    (tmp_path / "model.training").mkdir()
    (tmp_path / "model.training" / "thesis.txt").write_text("mine")
    outcome = command("train", recipe, "--output", tmp_path / "model", *options)
    refused(outcome, "model.training is in the way", "move it away")
    assert listing(tmp_path / "model.training") == {"thesis.txt": b"mine"}


def test_a_checkpoint_is_not_resumed_with_another_recipe_or_other_data(tmp_path: Path) -> None:
    workspace = unfinished(tmp_path)
    before = listing(workspace)
    resume = ("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume", "--quiet")
    refused(command(*resume, "--set", "training.batch_size=8"), "training.batch_size was 16, is 8")
    refused(command(*resume, "--set", "encoder.query.dropout=0.2"), "encoder.query.dropout was 0.1, is 0.2")
    train = tmp_path / "data" / "train.jsonl"
    queries = train.read_text()
    train.write_text(queries + '{"text": "one more", "labels": []}\n')
    refused(command(*resume), "other data")
    assert listing(workspace) == before
    train.write_text(queries)
    assert command(*resume).code == 0
    assert not workspace.exists()


def test_an_unfinished_run_is_neither_lost_nor_taken_for_another(tmp_path: Path) -> None:
    workspace = unfinished(tmp_path)
    before = listing(workspace)
    again = ("train", tmp_path / "recipe.toml", "--output", tmp_path / "model")
    refused(command(*again), "model.training holds an unfinished run", "--resume", "--overwrite")
    assert listing(workspace) == before
    assert command(*again, "--overwrite", "--quiet").code == 0
    assert not workspace.exists()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on nothing can be flushed to a path that holds the given name."""
    real = os.fsync

    def fill(name: str) -> None:
        def fsync(handle: int) -> None:
            if name in str(Path(f"/proc/self/fd/{handle}").readlink()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, full_disk: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = unfinished(tmp_path)
    before = listing(checkpoint_of(workspace))
    resume = ("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume", "--quiet")
    full_disk(".checkpoint-")
    refused(command(*resume), str(workspace / "checkpoint-"), "No space left", "nothing was left behind")
    assert listing(checkpoint_of(workspace)) == before
    assert not [path for path in workspace.iterdir() if "partial" in path.name]
    monkeypatch.undo()
    assert command(*resume).code == 0


def test_a_full_disk_leaves_the_old_model_and_the_finished_training(
    tmp_path: Path, full_disk: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(tmp_path, "training.steps=2")
    before = listing(model)
    again = ("train", tmp_path / "recipe.toml", "--output", model, "--set", "seed=5", "--quiet")
    full_disk("/.model-")
    refused(command(*again, "--overwrite"), str(model), "No space left", "nothing was left behind")
    assert listing(model) == before and verify(model) == []
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]
    monkeypatch.undo()
    assert command(*again, "--resume").code == 0
    assert (files_of(model) / "vectors.safetensors").read_bytes() not in before.values() and verify(model) == []


def test_a_full_disk_under_the_log_is_reported_as_such() -> None:
    with pytest.raises(NotSaved, match=r"/dev/full.*No space left"):
        MetricsLog(Path("/dev/full")).stepped({"step": 1})


def test_a_loss_turned_nan_stops_the_run_at_its_step_and_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, "training.checkpoint_minutes=0", "evaluation.every_epochs=0")
    arguments = ("train", recipe, "--output", tmp_path / "model", "--quiet")
    calls = iter(range(1, 100))

    def fails_at_the_third_step(*scores_and_targets: object) -> torch.Tensor:
        return decoupled_softmax(*scores_and_targets) * (float("nan") if next(calls) == 3 else 1.0)  # type: ignore[arg-type]

    monkeypatch.setitem(OBJECTIVES, "decoupled_softmax", lambda settings, labels: fails_at_the_third_step)
    refused(command(*arguments), "nan at step 3", "learning_rate")
    monkeypatch.undo()
    state = json.loads((checkpoint_of(tmp_path / "model.training") / "state.json").read_text())
    assert state["state"]["step"] == 2 and not (tmp_path / "model").exists()
    assert command(*arguments, "--resume").code == 0
    assert command("train", recipe, "--output", tmp_path / "straight", "--quiet").code == 0
    resumed, straight = (files_of(tmp_path / name) / "vectors.safetensors" for name in ("model", "straight"))
    assert resumed.read_bytes() == straight.read_bytes()
