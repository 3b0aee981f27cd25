"""Several models beside each other, judged on the same queries."""

import json
from pathlib import Path

import pytest

from miniature import LABELS, command, refused, trained, write_miniature, write_recipe
from umpteen.data.dataset import open_dataset
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import compare_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds data, a model, one of other vector size with the labels in another order, and one of fewer labels."""
    home = tmp_path_factory.mktemp("models")
    trained(home, "training.epochs=1")
    turned = write_miniature(home / "turned", labels=list(reversed(range(len(LABELS)))))
    few = write_miniature(home / "few", labels=range(6))
    recipe = write_recipe(home, "training.epochs=1")
    for data, name, *changes in (
        (turned, "other", "seed=1", "encoder.query.random_weights=true", "encoder.query.dimension=24"),
        (few, "small"),
    ):
        options = [part for change in changes for part in ("--set", change)]
        made = command("train", recipe, "--data", data, *options, "--output", home / name, "--quiet")
        assert made.code == 0, made.err
    return home


def test_differences_are_those_of_the_two_reports(folder: Path) -> None:
    models = [str(folder / "model"), str(folder / "other")]
    outcome = command("evaluate", *models, folder / "data", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert [result["model"] for result in found["results"]] == models
    for model, result in zip(models, found["results"], strict=True):
        alone = json.loads(command("evaluate", model, folder / "data", "--json").out)
        assert result["metrics"] == alone["metrics"] and result["intervals"] == alone["intervals"]
    (pair,) = found["differences"]
    assert (pair["model"], pair["minus"]) == (models[1], models[0])
    for name, difference in pair["metrics"].items():
        first, second = (result["metrics"][name] for result in found["results"])
        assert difference["value"] == pytest.approx(second - first)
        assert difference["interval"][0] <= difference["value"] + 1e-9
    people = command("evaluate", *models, folder / "data")
    assert people.code == 0 and f"minus {models[0]}" in people.out.replace("\n", "")


def test_a_model_does_not_differ_from_itself(folder: Path) -> None:
    model = Classifier.load(folder / "model")
    (_, _), (same,) = compare_models([model, model], open_dataset(folder / "data"))
    assert all(difference == (0.0, (0.0, 0.0), 1.0) for difference in same.values())


def test_models_of_other_labels_are_not_compared(folder: Path) -> None:
    models = (folder / "model", folder / "small")
    refused(command("evaluate", *models, folder / "data"), "not in the model")
    refused(command("evaluate", *models, folder / "data", "--predictions", "x.npz"), "give one model")
