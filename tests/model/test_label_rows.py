"""Runs with a vector per label, from the recipe to the model folder, and what such a model can and cannot do."""

import json
from pathlib import Path

import pytest
import torch

from miniature import KEYS, LABELS, command, refused, trained, write_miniature, write_recipe
from umpteen.config.recipes import resolve
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.table import LabelTable
from umpteen.errors import BadInput
from umpteen.model.classifier import Classifier
from umpteen.model.train import train_in
from umpteen.parallel.world import World
from worlds import run_world

TABLE = "encoder.label.kind=table"
FUSED = ("encoder.label.kind=sum", "encoder.label.static.bigrams=0", "encoder.label.table.skip=0")
QUERIES = ["the law of fish", "a book in the library", "dog and tree"]


def saved_parameters(model: Path) -> dict[str, int]:
    manifest = json.loads((model / "manifest.json").read_text(encoding="utf-8"))
    counts: dict[str, int] = manifest["settings"]["training"]["parameters"]
    return counts


@pytest.mark.parametrize(
    "changes",
    [
        (TABLE,),
        (TABLE, "objective.name=soft_top_k", "objective.k=2"),
        (TABLE, "encoder.query.normalise=false", "objective.name=one_vs_all", "objective.temperature=1"),
        (*FUSED, "objective.name=softmax"),
    ],
    ids=["table", "table, SoftTop-2", "classic classifier", "fused"],
)
def test_a_model_with_a_vector_per_label_trains_predicts_evaluates_and_verifies(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    model = trained(tmp_path, *changes, "training.epochs=25", "evaluation.every_epochs=5")
    report = json.loads(command("evaluate", model, tmp_path / "data", "--json").out)
    assert report["metrics"]["P@1"] > 60, report["metrics"]  # chance is 15
    assert command("verify", model).code == 0
    classifier = Classifier.load(model)
    label = classifier.towers.label
    assert isinstance(label, PartsEncoder if FUSED[0] in changes else LabelTable)
    every = torch.arange(len(LABELS)).numpy()
    torch.testing.assert_close(encode_texts(label, LABELS, rows=every), classifier.vectors)
    counts = saved_parameters(model)
    assert counts["label"] >= len(LABELS) * classifier.towers.dimension
    assert (
        counts["total"] == counts["query"] + counts["label"] == sum(w.numel() for w in classifier.towers.parameters())
    )
    assert f"{counts['total']:,}" in (model / "README.md").read_text(encoding="utf-8")


def test_new_labels_are_refused_by_a_table_and_go_by_their_texts_in_a_fused_tower(tmp_path: Path) -> None:
    new = LabelCatalogue(["one", "two"], ["a dog of law", "a tree of tax"])
    table = Classifier.load(trained(tmp_path / "table", TABLE, "training.steps=2"))
    with pytest.raises(BadInput, match="2 labels are new"):
        Classifier.build(table.towers, new)
    fused = Classifier.load(trained(tmp_path / "fused", *FUSED, "training.steps=2"))
    built = Classifier.build(fused.towers, new)
    assert isinstance(fused.towers.label, PartsEncoder)
    torch.testing.assert_close(built.vectors, fused.towers.label.encoders["static"].encode(list(new.texts)))


@pytest.mark.parametrize("change", [(TABLE,), FUSED], ids=["table", "fused"])
def test_training_goes_on_from_a_model_with_other_labels_each_row_with_its_key(
    change: tuple[str, ...], tmp_path: Path
) -> None:
    first = trained(tmp_path / "first", *change, "training.steps=3")
    second, order = tmp_path / "second", [7, 2, 9, 0]
    write_miniature(second / "data", labels=order)
    recipe = write_recipe(second, *change, "training.steps=1", "optimizer.learning_rate=1e-12", "evaluation.metric=P@1")
    outcome = command("train", recipe, "--from", first, "--output", second / "model", "--quiet")
    assert outcome.code == 0, outcome.err
    before, after = Classifier.load(first), Classifier.load(second / "model")
    assert list(after.labels.keys) == [KEYS[row] for row in order]
    torch.testing.assert_close(after.vectors, before.vectors[order], rtol=1e-5, atol=1e-6)


def train_in_world(world: World, recipe: Path, output: Path) -> None:
    train_in(world, resolve(str(recipe)), output=output)


@pytest.mark.parametrize("change", [(TABLE,), FUSED], ids=["table", "fused"])
def test_two_processes_that_share_the_rows_save_the_model_of_one(change: tuple[str, ...], tmp_path: Path) -> None:
    alone = trained(tmp_path, *change, "training.steps=4", "encoder.query.dropout=0")
    run_world(2, train_in_world, tmp_path / "recipe.toml", tmp_path / "together")
    one, two = (Classifier.load(model) for model in (alone, tmp_path / "together"))
    torch.testing.assert_close(two.vectors, one.vectors, rtol=1e-4, atol=1e-5)
    for (name, ours), theirs in zip(two.towers.named_parameters(), one.towers.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    assert saved_parameters(tmp_path / "together") == saved_parameters(alone)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("encoder.query.kind=table",), '"table" is for labels'),
        (("encoder.query.kind=sum", "encoder.query.static.idf=true", "encoder.query.table.skip=0"), "is for labels"),
        ((TABLE, "encoder.label.table.skip=0"), 'table is for kind = "sum or concat", not for "table"'),
        ((TABLE, "encoder.towers=shared"), "shared towers are one encoder"),
        ((TABLE, "training.replay_fraction=0.5"), "training.replay_fraction = 0.5"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(changes: tuple[str, ...], named: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    given = [word for change in changes for word in ("--set", change)]
    refused(command("train", recipe, "--output", tmp_path / "model", "--quiet", *given), named)


def test_a_run_with_a_vector_per_label_can_be_planned(tmp_path: Path) -> None:
    outcome = command("plan", write_recipe(tmp_path, TABLE), "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["memory_gb"] > 0
