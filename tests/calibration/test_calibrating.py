"""A saved model is calibrated on what its training held out, or on folds; its folder then gives probabilities."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umpteen.model.calibrate
from answers import same_answers, same_numbers
from miniature import command, flip_a_byte, listing, part_of, refused, trained, write_miniature
from umpteen.calibration.calibration import Calibration, fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.config.recipes import resolve
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.model.calibrate import calibrate, fold_size
from umpteen.model.classifier import Classifier, verify
from umpteen.model.evaluate import evaluate_model
from umpteen.model.rerank import fit_ranker
from umpteen.rerank.features import RankerSettings

TEXTS = ["law and the fish", "dog in the tree", "trade food 7"]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds data and a calibrated model whose training held some of it out."""
    home = tmp_path_factory.mktemp("held")
    write_miniature(home / "data", queries=120)
    trained(home, "data.validation_fraction=0.4", "training.epochs=2")
    outcome = command("calibrate", home / "model", "--data", home / "data")
    assert outcome.code == 0, outcome.err
    (home / "said").write_text(outcome.out)
    return home


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds data and a model that was fitted on all of it."""
    home = tmp_path_factory.mktemp("final")
    trained(home, "data.fit_on=train+validation", "training.epochs=2")
    return home


def copy_of(home: Path, folder: Path) -> Path:
    shutil.copytree(home / "model", folder / "model")
    return folder / "model"


def test_people_are_told_what_it_was_fitted_on_and_what_it_is_worth(held: Path) -> None:
    said = (held / "said").read_text()
    assert "calibrated on 48 texts of data, held out of training for validation" in said
    assert "on the same texts were chosen: the best step of training" in said
    for words in ("raw   ", "calibrated   ", "ece 0.", "log loss 0.", "rule f1   ", "rule coverage   "):
        assert words in said
    assert "precisions are promised to new texts of this kind with 90 % confidence each" in said
    assert "0.9, 0.95 cannot be promised after 48 texts: calibrate on more of them, or with less --confidence" in said


def test_the_confidence_that_is_asked_for_is_kept_and_told_wherever_the_calibration_is(
    held: Path, tmp_path: Path
) -> None:
    model = copy_of(held, tmp_path)
    usual = Classifier.load(model).calibration
    outcome = command("calibrate", model, "--data", held / "data", "--confidence", "0.6", "--json")
    assert outcome.code == 0, outcome.err
    found = Classifier.load(model)
    assert json.loads(outcome.out)["confidence"] == 0.6 and found.calibration is not None and usual is not None
    assert (
        found.calibration.confidence == 0.6 and found.calibration.line(precision=0.7).least <= usual.step(0.7).threshold
    )
    evaluated = json.loads(command("evaluate", model, held / "data", "--json").out)
    assert evaluated["calibration"]["confidence"] == 0.6
    card = (model / "README.md").read_text()
    assert (
        card.count("## Probabilities") == 1 and "- confidence: 0.6" in card and "- thresholds of precisions: {" in card
    )
    found.save(tmp_path / "copy")
    assert "- confidence: 0.6" in (tmp_path / "copy" / "README.md").read_text()
    fit_ranker(model, open_dataset(held / "data"), RankerSettings(candidates=5, memory=False), weight=0.5)
    assert "## Probabilities" not in (model / "README.md").read_text()  # those of other scores
    assert "--confidence" in command("calibrate", model, "--data", held / "data", "--confidence", "1").err
    with pytest.raises(BadInput, match=r"confidence is 1\.5"):
        calibrate(model, open_dataset(held / "data"), confidence=1.5)


def test_the_held_out_texts_are_those_of_training_and_nothing_else(held: Path) -> None:
    model, dataset = Classifier.load(held / "model"), open_dataset(held / "data")
    assert model.calibration is not None
    split = dataset.with_validation(0.4, 0).validation
    assert split is not None
    expected = fit_calibration(model.held_out(split), model.calibration.origin)
    same_numbers(expected.curves.to_dict(), model.calibration.curves.to_dict())
    same_numbers(expected.steps, model.calibration.steps)


def test_test_data_is_never_looked_at(held: Path, tmp_path: Path) -> None:
    dataset = open_dataset(held / "data")
    blind = replace(dataset, test=None)
    model = copy_of(held, tmp_path)
    same_numbers(calibrate(model, blind).curves.to_dict(), calibrate(model, dataset).curves.to_dict())


def test_predictions_of_a_calibrated_model_have_probabilities_in_order(held: Path) -> None:
    model = Classifier.load(held / "model")
    for found in model.predict(TEXTS, 4):
        probabilities = [label.probability for label in found]
        assert len(found) == 4 and all(p is not None and 0 <= p <= 1 for p in probabilities)
        assert probabilities == sorted(probabilities, reverse=True, key=lambda p: p or 0)
    assert [[one.key for one in found] for found in model.predict(TEXTS, 2)] == [
        [one.key for one in found[:2]] for found in model.predict(TEXTS, 4)
    ]


def test_labels_that_are_not_probable_enough_are_left_out(held: Path) -> None:
    model = Classifier.load(held / "model")
    assert model.calibration is not None
    everything = model.predict(TEXTS, 10)
    line = float(np.median([one.probability or 0 for found in everything for one in found]))
    cut = model.predict(TEXTS, 10, min_probability=line)
    assert cut == [[one for one in found if (one.probability or 0) >= line] for found in everything]
    assert model.predict(TEXTS, 10, min_probability=1.0) == [[], [], []]
    least = model.calibration.line(precision=0.5).least
    assert model.predict(TEXTS, 10, precision=0.5) == model.predict(TEXTS, 10, min_probability=least)
    rule = model.calibration.rules["f1"]
    by_rule = model.predict(TEXTS, rule="f1")
    assert by_rule == [found[: rule.at_most] for found in model.predict(TEXTS, 10, min_probability=rule.threshold)]
    assert model.predict(TEXTS, 1, rule="coverage") == [found[:1] for found in model.predict(TEXTS, rule="coverage")]


def test_an_uncalibrated_model_has_no_probabilities_to_ask_for(final: Path) -> None:
    model = Classifier.load(final / "model")
    assert all(one.probability is None for found in model.predict(TEXTS) for one in found)
    for asked in ({"min_probability": 0.5}, {"precision": 0.9}, {"rule": "f1"}):
        with pytest.raises(BadInput, match="umpteen calibrate"):
            model.predict(TEXTS, **asked)  # type: ignore[arg-type]
    refused(command("predict", final / "model", "a text", "--precision", "0.9"), "umpteen calibrate")


def test_the_command_line_gives_probabilities_to_people_and_machines(held: Path) -> None:
    people = command("predict", held / "model", *TEXTS, "--k", "2")
    assert people.code == 0 and people.out.count(" %  ") == 6
    assert "no label is as probable" in command("predict", held / "model", "law", "--min-probability", "1").out
    machines = [json.loads(line) for line in command("predict", held / "model", *TEXTS, "--json").out.splitlines()]
    expected = Classifier.load(held / "model").predict(TEXTS)
    same_numbers(
        [[one["probability"] for one in answer["labels"]] for answer in machines],
        [[one.probability for one in found] for found in expected],
    )
    refused(command("predict", held / "model", "law", "--precision", "1"), "cannot be promised with 90 %")


def test_a_calibrated_folder_is_whole_and_says_what_it_was_fitted_on(held: Path) -> None:
    folder = part_of(held / "model", "calibration")
    assert {path.name for path in folder.iterdir()} == {"calibration.json", "part.json"}
    assert verify(held / "model") == []
    content = json.loads((folder / "calibration.json").read_text())
    assert content["held_out"]["source"] == "validation" and content["held_out"]["texts"] == 48
    assert content["figures"]["ece"] <= content["figures"]["ece_raw"]
    assert not (held / "model.calibration").exists()


def test_an_altered_or_foreign_calibration_is_refused_by_name(held: Path, final: Path, tmp_path: Path) -> None:
    model = copy_of(held, tmp_path)
    flip_a_byte(part_of(model, "calibration") / "calibration.json")
    with pytest.raises(DamagedModel, match=r"calibration\.json: was altered"):
        Classifier.load(model)
    other = copy_of(final, tmp_path / "other")
    shutil.copyfile(next((held / "model").glob("model-*.db")), next(other.glob("model-*.db")))
    with pytest.raises(DamagedModel, match="belongs to another model"):
        Classifier.load(other)


def test_a_saved_copy_keeps_the_calibration(held: Path, tmp_path: Path) -> None:
    model = Classifier.load(held / "model")
    model.save(tmp_path / "copy")
    same_answers(Classifier.load(tmp_path / "copy").predict(TEXTS), model.predict(TEXTS))


def test_evaluate_reports_calibration_error_precisions_and_f1(held: Path) -> None:
    outcome = command("evaluate", held / "model", held / "data", "--json", "--at", "1", "--at", "3")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    report, ranking = evaluate_model(Classifier.load(held / "model"), open_dataset(held / "data"), at=(1, 3))
    assert ranking.width == 3 and report.calibration == found["calibration"]
    assert {"ece", "ece_raw", "by_depth", "precision", "rules", "held_out"} <= found["calibration"].keys()
    assert found["metrics"]["micro-F1"] == 100 * found["calibration"]["rules"]["f1"]["micro"]
    assert found["metrics"]["macro-F1"] == 100 * found["calibration"]["rules"]["f1"]["macro"]
    people = command("evaluate", held / "model", held / "data").out
    assert "calibration error   0." in people and "--rule f1   " in people


def test_evaluate_of_another_model_has_no_calibration(final: Path) -> None:
    found = json.loads(command("evaluate", final / "model", final / "data", "--json").out)
    assert "calibration" not in found and "micro-F1" not in found["metrics"]


def test_a_final_fit_is_calibrated_on_folds_only(final: Path, tmp_path: Path) -> None:
    model = copy_of(final, tmp_path)
    before = listing(model)
    refused(command("calibrate", model, "--data", final / "data"), "fitted on validation, too", "--folds 3")
    assert listing(model) == before
    outcome = command("calibrate", model, "--data", final / "data", "--folds", "2", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["held_out"]["source"] == "folds" and found["held_out"]["texts"] == 60
    assert "one of 2 models trained without it and 29 others" in found["held_out"]["said"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    after, alters = listing(model), ("README.md", next(model.glob("model-*.db")).name)
    assert all(after[name] == content for name, content in before.items() if name not in alters)
    assert Classifier.load(model).predict(TEXTS)[0][0].probability is not None


class Killed(Exception):
    """Ends the work as a kill would."""


def test_folds_go_on_after_a_kill_and_give_the_same(
    final: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(final / "data")
    expected = calibrate(copy_of(final, tmp_path / "unkilled"), dataset, folds=2)
    model = copy_of(final, tmp_path / "killed")
    real, trainings = umpteen.model.calibrate.train, []

    def train_once(*arguments: object, **options: object) -> Classifier:
        if trainings:
            raise Killed
        trainings.append(options["output"])
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(umpteen.model.calibrate, "train", train_once)
    with pytest.raises(Killed):
        calibrate(model, dataset, folds=2)
    assert Classifier.load(model).calibration is None
    assert {path.name for path in Path(f"{model}.calibration").glob("fold-*")} == {"fold-0.npz", "fold-1"}
    trainings.clear()
    found = calibrate(model, dataset, folds=2)
    assert [Path(str(output)).parent.name for output in trainings] == ["fold-1"]
    same_numbers(found.curves.to_dict(), expected.curves.to_dict())
    same_numbers(found.figures, expected.figures)
    assert not Path(f"{model}.calibration").exists()


def test_a_neighbour_named_like_the_unfinished_work_is_left_alone(final: Path, held: Path, tmp_path: Path) -> None:
    for home, folds in ((final, 2), (held, None)):
        neighbour = tmp_path / home.name / "model.calibration"
        model, dataset = copy_of(home, neighbour.parent), open_dataset(home / "data")
        neighbour.mkdir()
        (neighbour / "thesis.txt").write_text("mine")
        if folds is None:
            calibrate(model, dataset)  # which needs no workspace
        else:
            with pytest.raises(BadInput, match=r"model\.calibration is in the way.*move it away"):
                calibrate(model, dataset, folds=folds)
        assert listing(neighbour) == {"thesis.txt": b"mine"}


def test_each_fold_is_scored_by_a_model_that_was_not_trained_on_it(
    final: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[set[str], set[str]]] = []
    real_train, real_scores = umpteen.model.calibrate._train, Classifier.held_out

    def watched_train(recipe: object, dataset: Dataset, *rest: object) -> Classifier:
        seen.append((set(dataset.train.texts), set()))
        assert dataset.validation is None and dataset.test is None
        return real_train(recipe, dataset, *rest)  # type: ignore[arg-type]

    def watched_scores(classifier: Classifier, split: Split) -> HeldOut:
        seen[-1][1].update(split.texts)
        return real_scores(classifier, split)

    monkeypatch.setattr(umpteen.model.calibrate, "_train", watched_train)
    monkeypatch.setattr(Classifier, "held_out", watched_scores)
    dataset = open_dataset(final / "data")
    calibrate(copy_of(final, tmp_path), dataset, folds=3)
    assert len(seen) == 3 and all(not trained_on & scored for trained_on, scored in seen)
    assert set().union(*(scored for _, scored in seen)) == set(dataset.train.texts)


def test_folds_are_small_where_there_are_texts_enough() -> None:
    assert fold_size(60, 2, 20_000) == 30  # all there are
    assert fold_size(6000, 3, 20_000) == 800  # enough in all
    assert fold_size(100_000, 3, 20_000) == 5000  # a twentieth
    assert fold_size(10_000_000, 4, 20_000) == 5000  # no more than are used


def test_the_fused_score_is_what_is_calibrated_and_without_the_ranker_there_is_none(held: Path, tmp_path: Path) -> None:
    model, dataset = copy_of(held, tmp_path), open_dataset(held / "data")
    fit_ranker(model, dataset, RankerSettings.of({"candidates": 5}), rare=0.0)
    assert Classifier.load(model).calibration is None  # that of the encoder's scores is gone
    found = calibrate(model, dataset)
    assert "the ranker's weight and its head start of rare labels" in found.origin["also_chosen_on_them"]
    loaded = Classifier.load(model)
    split = dataset.with_validation(0.4, 0).validation
    assert split is not None and loaded.ranker is not None and loaded.calibration is not None
    assert loaded.calibration.curves.to_dict() == found.curves.to_dict()
    expected = fit_calibration(loaded.held_out(split), found.origin)
    assert expected.curves.to_dict() == found.curves.to_dict()
    assert Classifier.load(model, ranker=False).calibration is None
    gone = f"its probabilities were those of other scores, and are gone: umpteen calibrate {model} --data "
    again = command("rerank", "fit", model, "--data", held / "data", "--set", "candidates=5")
    assert f"{gone}{held / 'data'}" in again.out and Classifier.load(model).calibration is None
    calibrate(model, dataset)
    told = command("rerank", "fit", model, "--data", held / "data", "--set", "candidates=5", "--json")
    assert json.loads(told.out)["dropped_calibration"] is True
    calibrate(model, dataset)
    removed = command("rerank", "remove", model)
    assert f"{gone}DATA" in removed.out
    assert Classifier.load(model).calibration is None


def test_folds_of_a_model_with_a_ranker_have_one_of_the_same_weight(final: Path, tmp_path: Path) -> None:
    model, dataset = copy_of(final, tmp_path), open_dataset(final / "data")
    fit_ranker(model, dataset, RankerSettings.of({"candidates": 5}), weight=0.5, rare=0.25)
    found = calibrate(model, dataset, folds=2)
    assert found.origin["texts"] == 60 and Classifier.load(model).calibration is not None


def test_the_models_of_folds_have_the_towers_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_queries = "encoder.query.transformer.layers=1", "encoder.label.transformer=none"
    trained(tmp_path, "data.fit_on=train+validation", "training.steps=1", *of_queries, kind="sum")
    recipes, real = [], umpteen.model.calibrate.train

    def heard(config: RunConfig, **options: Any) -> Classifier:
        recipes.append(config)
        return real(config, **options)

    monkeypatch.setattr(umpteen.model.calibrate, "train", heard)
    calibrate(tmp_path / "model", open_dataset(tmp_path / "data"), folds=2)
    asked = resolve(str(tmp_path / "recipe.toml")).encoder
    assert [*asked.label_tower.parts] == ["static", "frozen"]
    assert [config.encoder for config in recipes] == [asked, asked]


def test_data_the_model_has_never_seen_is_used_whole_when_the_caller_says_so(final: Path, tmp_path: Path) -> None:
    model = copy_of(final, tmp_path)
    write_miniature(tmp_path / "fresh", queries=90)
    refused(command("calibrate", model, "--data", tmp_path / "fresh", "--folds", "2"), "not what the model was trained")
    outcome = command("calibrate", model, "--data", tmp_path / "fresh", "--unseen", "--coverage", "0.5")
    assert outcome.code == 0, outcome.err
    assert "90 texts of fresh" in outcome.out and "as the caller says" in outcome.out
    found = Calibration.load(part_of(model, "calibration"))
    assert found.rules["coverage"].recall >= 0.5
    refused(command("calibrate", model, "--data", final / "data", "--unseen", "--folds", "2"), "give one")
    refused(command("calibrate", model, "--data", final / "data", "--unseen"), "is what the model was trained on")


def test_what_cannot_be_calibrated_is_refused_and_leaves_the_model_as_it_was(
    held: Path, final: Path, tmp_path: Path
) -> None:
    model = copy_of(held, tmp_path)
    before = listing(model)
    write_miniature(tmp_path / "other", queries=30)
    refused(command("calibrate", model, "--data", tmp_path / "other"), "not what the model was trained on")
    refused(command("calibrate", tmp_path / "nowhere", "--data", held / "data"), "no such model folder")
    refused(command("calibrate", model, "--data", held / "data", "--folds", "1000"), "from 2 to 120")
    assert command("calibrate", model, "--data", held / "data", "--coverage", "2").code == 2
    assert listing(model) == before


def test_folds_of_a_model_that_started_from_another_prove_nothing(final: Path, tmp_path: Path) -> None:
    options = ("--from", final / "model", "--output", tmp_path / "later", "--set", "training.steps=1", "--quiet")
    assert command("train", final / "recipe.toml", *options).code == 0
    outcome = command("calibrate", tmp_path / "later", "--data", final / "data", "--folds", "2")
    refused(outcome, "Started from", "may have seen")


def test_calibrating_again_replaces_the_calibration_whole(held: Path, tmp_path: Path) -> None:
    model = copy_of(held, tmp_path)
    before = part_of(model, "calibration")
    assert command("calibrate", model, "--data", held / "data", "--coverage", "0.4").code == 0
    assert part_of(model, "calibration") != before and not before.exists() and verify(model) == []
    assert Calibration.load(part_of(model, "calibration")).rules["coverage"].recall != pytest.approx(
        Calibration.load(part_of(held / "model", "calibration")).rules["coverage"].recall
    )


def test_labels_added_later_get_probabilities_too(held: Path, tmp_path: Path) -> None:
    model = Classifier.load(copy_of(held, tmp_path))
    model.add_labels({"new": "law and the fish"})
    (found,) = model.predict(["law and the fish"], 3)
    assert "new" in [one.key for one in found] and all(one.probability is not None for one in found)


def test_a_model_that_cannot_be_written_is_refused_before_anything_is_trained(
    final: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(final / "data")
    monkeypatch.setattr(umpteen.model.calibrate.os, "access", lambda *_: False)
    with pytest.raises(NotSaved, match="cannot be written"):
        calibrate(final / "model", dataset, folds=2)
    assert not (final / "model.calibration").exists()
