"""What cannot be used is refused with exit code 2, by name, and leaves nothing half-written."""

import json
import os
from pathlib import Path

import pytest

from miniature import command, files_of, flip_a_byte, listing, refused, trained, write_recipe
from umpteen.model import folder as model_folder
from umpteen.model.folder import MANIFEST


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return trained(tmp_path, "training.steps=2")


# Data: the readers' own tests go through every kind of damage; here, what a command makes of it.


@pytest.mark.parametrize(
    ("name", "line", "named"),
    [
        ("train.jsonl", '{"text": "fish", "labels": ["nowhere"]}', ("train.jsonl, line 61", "nowhere")),
        ("train.jsonl", '{"text": " ", "labels": []}', ("train.jsonl, line 61", "empty")),
        ("train.jsonl", '{"text": "fish", "labels": ["key-law-fish"], "weights": [NaN]}', ("line 61", "nan")),
        ("test.jsonl", '{"text": "fish", "labels": ["key-law-fish"], "weights": [-1]}', ("test.jsonl, line 21", "-1")),
        ("labels.jsonl", '{"key": "key-law-fish", "text": "x"}', ("labels.jsonl, line 11", "key-law-fish", "line 1")),
        (
            "labels.jsonl",
            '{"key": "caf\\u00e9", "text": "x"}\n{"key": "cafe\\u0301", "text": "x"}',
            ("labels.jsonl, line 12", "line 11 (in another Unicode form)"),
        ),
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
    refused(command("predict", model, os.fsdecode(b"caf\xe9")), "the argument", "UTF-8")


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
    ],
)
def test_a_setting_that_cannot_be_used_is_named(setting: str, named: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    before = listing(tmp_path)
    refused(command("train", recipe, "--output", tmp_path / "model", "--set", setting), named)
    assert listing(tmp_path) == before


def test_towers_of_different_dimensions_are_refused_with_the_way_out(tmp_path: Path) -> None:
    towers = ("encoder.query.kind=transformer", "encoder.query.projection=7", "encoder.label.kind=static")
    recipe = write_recipe(tmp_path)
    options = [part for setting in towers for part in ("--set", setting)]
    options += ["--set", f"encoder.label.start={tmp_path / 'start'}"]
    refused(command("train", recipe, "--output", tmp_path / "model", *options), "7", "32", "projection")
    assert not (tmp_path / "model.training").exists()


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
    for options in ([], ["--resume"], ["--overwrite"]):
        outcome = command("train", tmp_path / "recipe.toml", "--output", tmp_path / "data", *options)
        refused(outcome, "data exists and is not a model folder")
    outcome = command("train", tmp_path / "recipe.toml", "--output", tmp_path / "new", "--resume", "--overwrite")
    refused(outcome, "give one of them")
    assert listing(tmp_path) == before


# Models.


def test_a_model_of_another_format_version_is_refused(model: Path, tmp_path: Path) -> None:
    content = json.loads((model / MANIFEST).read_text(encoding="utf-8"))
    (model / MANIFEST).write_text(json.dumps({**content, "format": 99}), encoding="utf-8")
    for arguments in (["predict", model, "fish"], ["evaluate", model, tmp_path / "data"], ["verify", model]):
        refused(command(*arguments), "format 99", "3 expected")


def test_a_flipped_byte_is_found_on_load_and_one_that_leaves_no_trace_in_a_large_file_by_verify(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 1000)
    vectors = files_of(model) / "vectors.safetensors"
    assert command("predict", model, "fish").code == 0  # hashed, and remembered
    before = vectors.stat()
    flip_a_byte(vectors)
    refused(command("predict", model, "fish"), "vectors.safetensors: was altered")
    os.utime(vectors, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert command("predict", model, "fish").code == 0
    refused(command("verify", model), "vectors.safetensors: was altered")
    flip_a_byte(files_of(model) / "recipe.toml")
    refused(command("predict", model, "fish"), "recipe.toml: was altered")
    refused(command("verify", model), "vectors.safetensors", "recipe.toml")


def test_a_diverged_run_names_the_step_and_the_learning_rate(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "objective.temperature=1e-39")
    outcome = command("train", recipe, "--output", tmp_path / "model", "--quiet")
    refused(outcome, "the loss is nan at step 1, where the learning rate was 0.03", "lower optimizer.learning_rate")
