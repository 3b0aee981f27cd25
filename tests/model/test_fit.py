"""One call from a file to a model: tried on validation, fitted on all of train, ranked, calibrated, whole at last."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from miniature import LABELS, TOPICS, command, refused
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadInput
from umpteen.model.classifier import Classifier
from umpteen.model.fit import fit, fit_data, sized
from umpteen.training.observer import Silence


def write_table(path: Path, texts: int) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "tags"])
        for number in range(texts):
            label = number % len(LABELS)
            other = TOPICS[(7 * number) % len(TOPICS)]
            rows.writerow([f"{LABELS[label]} number {number} with {other}", f"{LABELS[label]}|{other}"])
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fit")
    table = write_table(folder / "tickets.csv", 90)
    asked = ("--trials", "1", "--output", folder / "model", "--recipe-out", folder / "recipe.toml")
    outcome = command("fit", table, *asked, "--json")
    assert outcome.code == 0, outcome.err
    return folder, json.loads(outcome.out)


def test_the_model_is_whole_calibrated_and_fitted_on_all_of_train(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, told = fitted
    model = Classifier.load(folder / "model")
    assert model.calibration is not None and 'fit_on = "train+validation"' in (model.recipe or "")
    assert "scored by a model of the same settings" in model.parts["calibration"].about["held_out"]["said"]
    assert told["model"] == str(folder / "model") and not (folder / "model.fit").exists()
    best = model.predict(["fish of tax number 3 with fish"], k=2)[0]
    assert best[0].probability is not None and {one.key for one in best} & {"fish of tax", "fish"}


def test_it_is_shown_beside_what_one_would_run_instead(fitted: tuple[Path, dict[str, Any]]) -> None:
    _, told = fitted
    assert list(told["reports"]) == ["popularity", "tf-idf neighbours", "linear one-vs-rest", "umpteen"]
    assert told["split"] == "validation" and told["trials"][0]["settings"] is not None


def test_the_recipe_that_was_chosen_trains_the_same_towers(fitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = fitted
    outcome = command("train", folder / "recipe.toml", "--output", tmp_path / "again")
    assert outcome.code == 0, outcome.err
    one, other = Classifier.load(folder / "model", ranker=False), Classifier.load(tmp_path / "again")
    assert (one.vectors - other.vectors).abs().max() < 1e-5


def test_a_model_that_is_there_is_not_replaced_unasked(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = fitted
    refused(command("fit", folder / "tickets.csv", "--output", folder / "model"), "exists already", "--overwrite")


def test_a_killed_fit_goes_on_with_what_was_tried(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 90)

    class Killed(BaseException):
        pass

    class KilledAt(Silence):
        def __init__(self, beginning: str) -> None:
            self.beginning = beginning

        def notice(self, message: str) -> None:
            if message.startswith(self.beginning):
                raise Killed

    with pytest.raises(Killed):
        fit_data(str(table), tmp_path / "model", trials=1, observer=KilledAt("tried 1"))
    assert not (tmp_path / "model").exists()
    first = (tmp_path / "model.fit" / "trials.jsonl").read_text()
    with pytest.raises(Killed):
        fit_data(str(table), tmp_path / "model", trials=1, observer=KilledAt("n-grams"))
    assert (tmp_path / "model.fit" / "trials.jsonl").read_text().startswith(first)  # it was not made again


def test_settings_of_a_part_do_not_keep_the_other_part_from_being_tried_alone(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 90)
    heard: list[str] = []

    class Killed(BaseException):
        pass

    class Listening(Silence):
        def notice(self, message: str) -> None:
            heard.append(message)
            if "kind=frozen" in message:
                raise Killed

    with pytest.raises(Killed):
        fit_data(str(table), tmp_path / "model", trials=3, observer=Listening())
    assert "kind=frozen" in heard[-1]


def test_few_texts_are_trained_in_small_batches(tmp_path: Path) -> None:
    few, many = (open_dataset(write_table(tmp_path / f"{count}.csv", count)) for count in (90, 6000))
    assert sized(few) == ("encoder.query.static.bigrams=0", "training.batch_size=32")
    assert sized(many) == ("training.batch_size=128",)


def test_a_file_is_evaluated_and_labels_the_model_lacks_are_left_out(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = fitted
    other = write_table(tmp_path / "other.csv", 20)
    other.write_text(other.read_text() + "law of fish,law of fish|never seen\n")
    outcome = command("evaluate", folder / "model", other, "--json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert told["split"] == "train" and told["queries"] == 21 and told["metrics"]["R@10"] > 50
    own = command("evaluate", folder / "model", folder / "tickets.csv")
    assert own.code == 0 and "trained on these very texts" in own.err


def test_columns_of_a_frame_are_fitted_and_labels_may_have_texts_of_their_own(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"body": ["law of fish", "tax of trade"] * 10, "tags": [["a"], ["b", "c_d"]] * 10})
    meanings = {"a": "fishing law", "later": "a label that no text has yet"}
    with pytest.raises(BadInput, match=r"texts\[1\] is missing, empty or no string"):
        fit(["a", None], ["x", "y"])
    with pytest.raises(BadInput, match="2 texts but 1 rows of labels"):
        fit(["a", "b"], ["x"])
    model = fit(frame["body"], frame["tags"], meanings, trials=1, output=tmp_path / "model", quiet=True)
    known = dict(zip(model.labels.keys, model.labels.texts, strict=True))
    assert known == {"a": "fishing law", "b": "b", "c_d": "c d", "later": "a label that no text has yet"}
    assert model.predict(["law of fish"], k=1)[0][0].key == "a" and (tmp_path / "model").exists()


def test_training_on_data_without_a_recipe_points_here(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 5)
    for data in (table, tmp_path):
        refused(command("train", data, "--output", tmp_path / "model"), "is data, not a recipe", f"umpteen fit {data}")
