"""Several models beside each other and averaged, judged on the same queries."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from miniature import LABELS, command, refused, trained, write_miniature, write_recipe
from umpteen.data.dataset import open_dataset
from umpteen.encoders.encoder import encode_texts
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import compare_models, evaluate_ensemble, evaluate_model


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


def test_an_ensemble_scores_by_the_mean_of_scores(folder: Path) -> None:
    dataset = open_dataset(folder / "data")
    assert dataset.test is not None
    models = [Classifier.load(folder / name) for name in ("model", "other")]
    assert models[0].towers.dimension != models[1].towers.dimension
    _, ranking = evaluate_ensemble(models, dataset)
    mean = np.zeros((len(dataset.test), len(LABELS)))
    for model in models:
        scores = encode_texts(model.towers.query, dataset.test.texts).double() @ model.vectors.double().T
        mean += scores.numpy()[:, [model.labels.keys.index(key) for key in models[0].labels.keys]] / 2
    kept = ranking.rows >= 0
    expected = np.take_along_axis(mean, np.maximum(ranking.rows, 0), 1)
    np.testing.assert_allclose(ranking.scores[kept], expected[kept], atol=1e-6)
    filtered = dataset.test.filtered.matrix.toarray() > 0
    best = np.where(filtered, -np.inf, mean).argmax(1)
    assert ranking.rows[:, 0].tolist() == best.tolist()


def test_an_ensemble_of_one_model_twice_is_that_model(folder: Path, tmp_path: Path) -> None:
    model, dataset = Classifier.load(folder / "model"), open_dataset(folder / "data")
    assert evaluate_ensemble([model, model], dataset)[0].metrics == evaluate_model(model, dataset)[0].metrics
    options = ("--ensemble", "--json", "--predictions", tmp_path / "mean.npz")
    outcome = command("evaluate", folder / "model", folder / "other", folder / "data", *options)
    assert json.loads(outcome.out)["ensemble"] == [str(folder / "model"), str(folder / "other")]
    assert scipy.sparse.load_npz(tmp_path / "mean.npz").shape == (20, len(LABELS))


def test_models_of_other_labels_are_not_averaged_or_compared(folder: Path) -> None:
    models = (folder / "model", folder / "small")
    refused(command("evaluate", *models, folder / "data", "--ensemble"), "same labels", "key-")
    refused(command("evaluate", *models, folder / "data"), "not in the model")
    refused(command("evaluate", *models, folder / "data", "--predictions", "x.npz"), "--ensemble")
