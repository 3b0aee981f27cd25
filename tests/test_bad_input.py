"""What cannot be used is refused with exit code 2, by name, and leaves nothing half-written."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from miniature import Outcome, command, trained, unfinished, write_recipe
from umpteen.classifier import verify
from umpteen.errors import NotSaved
from umpteen.manifest import MANIFEST
from umpteen.training.observer import MetricsLog


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return trained(tmp_path, "training.steps=2")


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(outcome: Outcome, *named: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.err.strip().splitlines()[-1].startswith("error: ")
    for name in named:
        assert name in outcome.err


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


# Data: the readers' own tests go through every kind of damage; here, what a command makes of it.


@pytest.mark.parametrize(
    ("name", "line", "named"),
    [
        ("train.jsonl", '{"text": "fish", "labels": ["nowhere"]}', ("train.jsonl, line 61", "nowhere")),
        ("train.jsonl", '{"text": " ", "labels": []}', ("train.jsonl, line 61", "empty")),
        ("train.jsonl", '{"text": "fish", "labels": ["key-law-fish"], "weights": [NaN]}', ("line 61", "nan")),
        ("test.jsonl", '{"text": "fish", "labels": ["key-law-fish"], "weights": [-1]}', ("test.jsonl, line 21", "-1")),
        ("labels.jsonl", '{"key": "key-law-fish", "text": "x"}', ("labels.jsonl, line 11", "key-law-fish", "line 1")),
        ("labels.jsonl", '{"key": "new", "text": ""}', ("labels.jsonl, line 11", "empty")),
        ("test.jsonl", "{", ("test.jsonl, line 21",)),
    ],
)
def test_broken_data_is_named_by_file_and_line(name: str, line: str, named: tuple[str, ...], tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with (tmp_path / "data" / name).open("a") as file:
        file.write(line + "\n")
    before = listing(tmp_path)
    refused(command("train", recipe, "--output", tmp_path / "model"), *named)
    refused(command("data", "describe", tmp_path / "data"), *named)
    refused(command("data", "convert", tmp_path / "data", tmp_path / "converted"), *named)
    assert listing(tmp_path) == before


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    (tmp_path / "data" / "train.jsonl").write_text("")
    refused(command("train", recipe, "--output", tmp_path / "model"), "train.jsonl")
    (tmp_path / "data" / "train.jsonl").unlink()
    refused(command("train", recipe, "--output", tmp_path / "model"), "train")
    refused(command("train", recipe, "--output", tmp_path / "model", "--data", tmp_path / "nowhere"), "nowhere")
    refused(command("train", tmp_path / "none.toml", "--output", tmp_path / "model"), "none.toml", "recipe list")
    refused(command("predict", tmp_path / "nowhere", "fish"), "nowhere", "umpteen train")
    refused(command("train", recipe, "--output", tmp_path / "model", "--from", tmp_path / "nowhere"))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "start", "recipe.toml"}


def test_bytes_that_are_not_utf8_are_refused(model: Path, tmp_path: Path) -> None:
    with (tmp_path / "data" / "train.jsonl").open("ab") as file:
        file.write(b'{"text": "caf\xe9", "labels": []}\n')
    refused(command("data", "describe", tmp_path / "data"), "train.jsonl, line 61")
    refused(command("predict", model, stdin=b"fish\ncaf\xe9\n"), "text 2", "UTF-8")
    refused(command("predict", model, os.fsdecode(b"caf\xe9")), "text 1", "UTF-8")


# Settings.


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("training.epoch=3", "did you mean epochs"),
        ("trainin.epochs=3", "did you mean training"),
        ("training.epochs=-1", "training.epochs = -1"),
        ("training.epochs", "key=value"),
        ("training.device=cude", "cude"),
        ("training.device=meta", "meta"),
        ("evaluation.metric=P@7", "P@7"),
        ("evaluation.at=[0]", "evaluation.at"),
        ("objective.name=triplet", "triplet"),
        ("encoder.query.start=no/such-model", "no/such-model"),
        ("encoder.query.kind=transformer", None),  # the label tower below is static, of another dimension
    ],
)
def test_a_setting_that_cannot_be_used_is_named(setting: str, named: str | None, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    options = ["--set", setting]
    if named is None:
        named = "projection"
        options += [
            *("--set", "encoder.query.projection=7"),
            *("--set", f"encoder.label.start={tmp_path / 'start'}"),
        ]
    before = listing(tmp_path)
    refused(command("train", recipe, "--output", tmp_path / "model", *options), named)
    assert listing(tmp_path) == before


def test_k_beyond_the_labels_is_refused_wherever_it_can_be_asked_for(model: Path, tmp_path: Path) -> None:
    refused(command("predict", model, "fish", "--k", "11"), "k is 11", "10 labels")
    refused(command("predict", model, "fish", "--k", "0"), "k is 0")
    refused(command("evaluate", model, tmp_path / "data", "--at", "5", "--at", "11"), "--at 11", "10 labels")
    options = ("--set", "objective.name=soft_top_k", "--set", "objective.k=10")
    refused(
        command("train", tmp_path / "recipe.toml", "--output", tmp_path / "other", *options),
        "objective.k = 10",
        "10 labels",
    )
    assert not (tmp_path / "other.training").exists()


def test_empty_texts_are_refused_by_position(model: Path) -> None:
    refused(command("predict", model, "fish", " "), "texts[1]")
    refused(command("predict", model, stdin="fish\n\n"), "texts[1]")
    refused(command("predict", model, stdin=""), "no text given")


def test_a_split_that_is_not_there_is_refused_with_those_that_are(model: Path, tmp_path: Path) -> None:
    refused(command("evaluate", model, tmp_path / "data", "--split", "validation"), "train and test")


def test_nothing_of_value_is_overwritten_unasked(model: Path, tmp_path: Path) -> None:
    before = listing(tmp_path)
    refused(command("train", tmp_path / "recipe.toml", "--output", model), "model exists already", "--overwrite")
    refused(command("train", tmp_path / "recipe.toml", "--output", tmp_path / "data"), "exists already")
    assert listing(tmp_path) == before


# Models.


def test_a_model_of_another_format_version_is_refused(model: Path, tmp_path: Path) -> None:
    manifest = json.loads((model / MANIFEST).read_text(encoding="utf-8"))
    (model / MANIFEST).write_text(json.dumps({**manifest, "format_version": 99}), encoding="utf-8")
    for arguments in (["predict", model, "fish"], ["evaluate", model, tmp_path / "data"], ["verify", model]):
        refused(command(*arguments), "format version 99", "1 expected")


def test_a_flipped_byte_is_found_in_small_files_on_load_and_in_arrays_by_verify(model: Path) -> None:
    flip_a_byte(model / "vectors.safetensors")
    assert command("predict", model, "fish").code == 0
    refused(command("verify", model), "vectors.safetensors: was altered")
    flip_a_byte(model / "labels.jsonl")
    refused(command("predict", model, "fish"), "labels.jsonl: was altered")
    refused(command("verify", model), "vectors.safetensors", "labels.jsonl")


# Checkpoints.


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
    damage(workspace / "checkpoint" / name)
    before = listing(workspace)
    refused(command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume"), name, "afresh")
    assert listing(workspace) == before and not (tmp_path / "model").exists()


def test_a_best_model_cut_short_is_refused_and_the_checkpoint_stays(tmp_path: Path) -> None:
    workspace = unfinished(tmp_path, "evaluation.every_steps=1", "optimizer.learning_rate=1e-9", steps=4)
    cut_in_half(workspace / "best.safetensors")  # nothing after it will be better, so nothing replaces it
    refused(command("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume"), "best.safetensors")
    assert (workspace / "checkpoint" / "state.json").exists() and not (tmp_path / "model").exists()


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


# A full disk.


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
    before = listing(workspace / "checkpoint")
    resume = ("train", tmp_path / "recipe.toml", "--output", tmp_path / "model", "--resume", "--quiet")
    full_disk(".checkpoint.partial")
    refused(command(*resume), str(workspace / "checkpoint"), "No space left", "untouched")
    assert listing(workspace / "checkpoint") == before
    assert not [path for path in workspace.iterdir() if "partial" in path.name]
    monkeypatch.undo()
    assert command(*resume).code == 0


def test_a_full_disk_leaves_the_old_model_and_the_finished_training(
    model: Path, tmp_path: Path, full_disk: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listing(model)
    again = ("train", tmp_path / "recipe.toml", "--output", model, "--set", "seed=5", "--quiet")
    full_disk(".model.partial")
    refused(command(*again, "--overwrite"), str(model), "No space left", "untouched")
    assert listing(model) == before and verify(model) == []
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]
    monkeypatch.undo()
    assert command(*again, "--resume").code == 0
    assert listing(model)["vectors.safetensors"] != before["vectors.safetensors"] and verify(model) == []


def test_a_full_disk_under_the_log_is_reported_as_such() -> None:
    with pytest.raises(NotSaved, match=r"/dev/full.*No space left"):
        MetricsLog(Path("/dev/full")).stepped({"step": 1})


# A loss that is no number.


def test_a_loss_turned_nan_stops_the_run_at_its_step_and_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen import assemble

    recipe = write_recipe(tmp_path, "training.checkpoint_minutes=0", "evaluation.every_epochs=0")
    arguments = ("train", recipe, "--output", tmp_path / "model", "--quiet")
    real, calls = assemble.decoupled_softmax, iter(range(1, 100))

    def fails_at_the_third_step(*scores_and_targets: object) -> torch.Tensor:
        return real(*scores_and_targets) * (float("nan") if next(calls) == 3 else 1.0)  # type: ignore[arg-type]

    monkeypatch.setattr(assemble, "decoupled_softmax", fails_at_the_third_step)
    refused(command(*arguments), "nan at step 3", "learning_rate")
    monkeypatch.undo()
    state = json.loads((tmp_path / "model.training" / "checkpoint" / "state.json").read_text())
    assert state["state"]["step"] == 2 and not (tmp_path / "model").exists()
    assert command(*arguments, "--resume").code == 0
    assert command("train", recipe, "--output", tmp_path / "straight", "--quiet").code == 0
    resumed, straight = (tmp_path / name / "vectors.safetensors" for name in ("model", "straight"))
    assert resumed.read_bytes() == straight.read_bytes()


def test_a_learning_rate_far_too_high_ends_in_a_named_step_not_in_a_useless_model(tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path, "encoder.query.normalise=false", "optimizer.learning_rate=1e30", "optimizer.weight_decay=0"
    )
    refused(command("train", recipe, "--output", tmp_path / "model", "--quiet"), "at step 2")
    assert not (tmp_path / "model").exists()
