"""One call from a file to a model: tried on validation, fitted on all of train, ranked, calibrated, whole at last."""

import csv
import json
import math
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import umpteen
from miniature import LABELS, TOPICS, command, refused, write_recipe
from test_docs import ROOT, blocks_of
from tiny import tiny_default_model
from umpteen.config.recipes import resolve
from umpteen.data.dataset import given_dataset, open_dataset
from umpteen.errors import BadInput, Stopped
from umpteen.model.classifier import Classifier
from umpteen.model.fit import _Pace, _Search, _TooSlow, fit, fit_data, sized
from umpteen.training import tune
from umpteen.training.checkpoint import Checkpoints, TrainState
from umpteen.training.observer import Observer


def write_table(path: Path, texts: int) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "tags"])
        for number in range(texts):
            label = number % len(LABELS)
            other = TOPICS[(7 * number) % len(TOPICS)]
            rows.writerow([f"{LABELS[label]} number {number} with {other}", f"{LABELS[label]}|{other}"])
    return path


class Listening(Observer):
    """Hears what people are told."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def notice(self, message: str) -> None:
        self.heard.append(message)


@pytest.fixture(autouse=True, scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MiniLM itself is fitted in the example of `umpteen.fit`."""
    with tiny_default_model(tmp_path_factory.mktemp("default")):
        yield


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

    class KilledAt(Observer):
        def __init__(self, beginning: str) -> None:
            self.beginning = beginning

        def notice(self, message: str) -> None:
            if message.startswith(self.beginning):
                raise Killed

    with pytest.raises(Killed):
        fit_data(str(table), tmp_path / "model", trials=1, observer=KilledAt("  1 tried"))
    assert not (tmp_path / "model").exists()
    first = (tmp_path / "model.fit" / "trials.jsonl").read_text()
    with pytest.raises(Killed):
        fit_data(str(table), tmp_path / "model", trials=1, observer=KilledAt("n-grams"))
    assert (tmp_path / "model.fit" / "trials.jsonl").read_text().startswith(first)  # it was not made again


def test_a_model_that_was_changed_while_another_was_fitted_is_kept_aside(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model, heard = Path(shutil.copytree(fitted[0] / "model", tmp_path / "model")), list[str]()

    class Teaching(Observer):
        def notice(self, message: str) -> None:
            heard.append(message)
            if message.startswith("n-grams"):
                Classifier.load(model).learn(["law of fish"], ["fish"])

    asked: dict[str, Any] = {"trials": 1, "recipe": "static", "overwrite": True, "compare": False}
    fit_data(str(fitted[0] / "tickets.csv"), model, **asked, observer=Teaching())
    (kept,) = tmp_path.glob("model.kept-*")
    assert len(Classifier.load(kept).examples()) == 1 and Classifier.load(model).examples() == []
    assert f"what stood there is kept in {kept}" in heard[-1]


def test_what_a_model_learnt_between_a_kill_and_the_same_fit_again_is_kept_aside(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(fitted[0] / "model", tmp_path / "model"))

    class Killed(BaseException):
        pass

    class Kills(Observer):
        def notice(self, message: str) -> None:
            if message.startswith("n-grams"):
                raise Killed

    asked: dict[str, Any] = {"trials": 1, "recipe": "static", "overwrite": True, "compare": False}
    with pytest.raises(Killed):
        fit_data(str(fitted[0] / "tickets.csv"), model, **asked, observer=Kills())
    Classifier.load(model).learn(["law of fish"], ["fish"])
    fit_data(str(fitted[0] / "tickets.csv"), model, **asked)
    (kept,) = tmp_path.glob("model.kept-*")
    assert len(Classifier.load(kept).examples()) == 1 and Classifier.load(model).examples() == []


def test_stages_of_the_same_name_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 100.0, 104.0])  # the first report of a stage is not always its beginning
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    pace = _Pace(math.inf)
    for done, total in ((0, 8), (8, 8), (2, 4), (4, 4)):
        pace("reading texts", done, total)
    assert pace.read == 14


def test_settings_of_a_part_do_not_keep_the_other_part_from_being_tried_alone(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 90)
    heard: list[str] = []

    class Killed(BaseException):
        pass

    class Listening(Observer):
        def notice(self, message: str) -> None:
            heard.append(message)
            if "kind=frozen" in message:
                raise Killed

    with pytest.raises(Killed):
        fit_data(str(table), tmp_path / "model", trials=5, observer=Listening())  # one is kept for a transformer
    assert "kind=frozen" in heard[-1]


@pytest.mark.parametrize("share", [0.8, 1e-6])
def test_a_transformer_is_trained_beside_the_best_of_the_others_where_time_allows(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = share > 0.1
    monkeypatch.setattr("umpteen.model.fit.TRANSFORMER_SHARE", share)  # of what is left, that it may take
    heard: list[str] = []

    table = write_table(tmp_path / "tickets.csv", 90)
    found = fit_data(str(table), tmp_path / "model", minutes=100, trials=2, compare=False, observer=Listening(heard))
    tried = [trial for trial in found.trials if "encoder.label.transformer=none" in trial["settings"]]
    assert len(tried) == allowed and len(found.trials) == 2
    advised = [float(message.split()[1]) for message in heard if message.startswith("--minutes")]
    assert len(advised) == (not allowed) and all(minutes > 100 for minutes in advised)
    assert ("transformer" in found.recipe.encoder.query.parts) == (found.trials[0] in tried)  # validation decides


def test_texts_that_take_too_long_to_read_are_read_less_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umpteen.model.fit.SHORTER", (8, 4))
    table, heard = write_table(tmp_path / "tickets.csv", 90), list[str]()

    class Slow(_Pace):
        def __call__(self, work: str, done: int, total: int) -> None:
            if work.startswith("reading") and not any("tokens then" in message for message in heard):
                raise _TooSlow(310.0, True)
            super().__call__(work, done, total)

    monkeypatch.setattr("umpteen.model.fit._Pace", Slow)
    found = fit_data(str(table), tmp_path / "model", trials=1, compare=False, observer=Listening(heard))
    (told,) = (message for message in heard if "tokens then" in message)
    length = int(told.split()[-3])
    assert length in (8, 4) and found.recipe.encoder.query.parts["frozen"].max_length == length
    assert found.recipe.encoder.query.parts["static"].max_length == "auto"


def test_a_fit_goes_on_where_texts_have_no_n_grams(tmp_path: Path) -> None:
    table, heard = tmp_path / "marks.csv", list[str]()
    table.write_text("text,labels\n" + "".join(f"{'!?+'[n % 3] * (1 + n)},label {n % 3}\n" for n in range(60)))

    found = fit_data(str(table), tmp_path / "model", trials=1, compare=False, observer=Listening(heard))
    assert any(message.startswith("no n-grams: ") for message in heard) and len(found.classifier.labels.keys) == 3
    assert any("validation is 6 texts" in message for message in heard)


def test_a_transformer_is_not_trained_where_memory_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umpteen.model.fit.free_memory", lambda: 1_000_000_000)
    heard: list[str] = []

    table = write_table(tmp_path / "tickets.csv", 90)
    found = fit_data(str(table), tmp_path / "model", minutes=100, trials=2, compare=False, observer=Listening(heard))
    assert "no transformer is trained: about 2.5 GB of memory would be needed, and 1.0 GB are free" in heard
    assert "transformer" not in found.recipe.encoder.query.parts and len(found.trials) == 2


def test_what_a_transformer_takes_is_measured_once_and_a_recipe_that_has_one_gets_no_other(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 90)
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        'extends = "mixed"\n[encoder.query.transformer]\nlayers = 1\n[encoder.label]\ntransformer = "none"\n'
    )

    class StoppedAtSecond(Observer):
        tried = 0

        def notice(self, message: str) -> None:
            self.tried += message.startswith("trying")
            if self.tried == 2:
                raise KeyboardInterrupt

    def decided(model: Path, **more: Any) -> Any:
        with pytest.raises(Stopped):
            fit_data(str(table), model, minutes=100, trials=5, observer=StoppedAtSecond(), **more)
        return json.loads(model.with_name(f"{model.name}.fit").joinpath("decided.json").read_text())

    first = decided(tmp_path / "model")
    assert 0 < first[2] < math.inf and decided(tmp_path / "model") == first
    assert decided(tmp_path / "other", recipe=str(recipe))[2] is None


def test_a_transformer_is_trained_for_fewer_epochs_than_the_best_where_these_would_take_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Search, "_seconds_of_transformer", lambda _: 2000.0)  # of the 6,000 that there are
    monkeypatch.setattr("umpteen.model.fit.choices_of", lambda _: ["training.epochs=0.1,8"])
    recipe = tmp_path / "own.toml"
    recipe.write_text('extends = "mixed"\n[training]\nepochs = 0.1\n')
    table, asked = write_table(tmp_path / "tickets.csv", 90), {"minutes": 100, "trials": 3, "recipe": str(recipe)}
    found = fit_data(str(table), tmp_path / "model", compare=False, **asked)
    (tried,) = (trial for trial in found.trials if "encoder.label.transformer=none" in trial["settings"])
    (longest,) = (trial for trial in found.trials if "training.epochs=8" in trial["settings"])
    (shortest,) = (trial for trial in found.trials if trial not in (tried, longest))
    assert longest["metrics"]["nDCG@5"] > shortest["metrics"]["nDCG@5"]
    assert tried is not longest and not any("training.epochs" in setting for setting in tried["settings"])


@pytest.mark.parametrize(("seconds", "epochs"), [(4000, 3), (8000, 1.5), (16000, None)])
def test_a_transformer_is_trained_for_as_many_epochs_as_time_allows_but_not_for_less_than_one(
    seconds: int, epochs: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(_Search, "_seconds_of_transformer", lambda _: float(seconds))  # of the 6,000 that there are
    monkeypatch.setattr("umpteen.model.fit.choices_of", lambda _: [])
    table, asked = write_table(tmp_path / "tickets.csv", 90), {"minutes": 100, "trials": 2}
    found = fit_data(str(table), tmp_path / "model", compare=False, observer=Listening(heard), **asked)  # type: ignore[arg-type]
    tried = [trial["settings"] for trial in found.trials if "encoder.label.transformer=none" in trial["settings"]]
    trained = [float(own.partition("=")[2]) for settings in tried for own in settings if "training.epochs" in own]
    assert trained == ([] if epochs is None else [pytest.approx(epochs, abs=0.11)])
    assert any("would also try a transformer that is trained" in message for message in heard) == (epochs is None)


def test_a_transformer_has_fewer_epochs_before_it_goes_without_labels_texts_as_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Search, "_seconds_of_transformer", lambda _: 4000.0)  # of the 6,000 that there are
    monkeypatch.setattr("umpteen.model.fit.choices_of", lambda _: ["data.label_queries=0.1"])
    monkeypatch.setattr("umpteen.training.tune.Trials.best_first", lambda self: [*self.tried.values()][::-1])
    table = write_table(tmp_path / "tickets.csv", 90)
    found = fit_data(str(table), tmp_path / "model", minutes=100, trials=3, compare=False)
    (tried,) = (trial["settings"] for trial in found.trials if "encoder.label.transformer=none" in trial["settings"])
    (epochs,) = (float(own.partition("=")[2]) for own in tried if "training.epochs" in own)
    assert "data.label_queries=0.1" in tried and 1 <= epochs < 3  # with as many texts alone it would be 3


def test_what_fit_adds_to_the_mix_is_the_recipe_finetuned() -> None:
    ours, shipped = resolve("mixed", tune.with_transformer((), 512)), resolve("finetuned")
    assert ours.encoder == shipped.encoder and ours.training == shipped.training


def test_a_transformer_takes_the_place_of_a_bag_that_was_left_out() -> None:
    with_bag = resolve("mixed", tune.with_transformer(("encoder.query.kind=concat", "objective.temperature=0.05"), 512))
    without = resolve("mixed", tune.with_transformer(("encoder.query.kind=frozen",), 64))
    assert [*with_bag.encoder.query.parts] == ["static", "frozen", "transformer"]
    assert [*without.encoder.query.parts] == ["frozen", "transformer"]
    assert (with_bag.training.batch_size, without.training.batch_size) == (256, 64)
    assert [*without.encoder.label_tower.parts] == ["frozen"] and with_bag.objective.temperature == 0.05


def test_a_language_that_the_encoder_cuts_to_pieces_is_told(tmp_path: Path) -> None:
    heard: list[str] = []

    class Enough(BaseException):
        pass

    class Listening(Observer):
        def notice(self, message: str) -> None:
            heard.append(message)

        def started(self, *begun: Any) -> None:
            raise Enough

    for number, words in enumerate(("dog and fish", "Xylqx zzwvk qqjxz", "Xylqx zzwvk qqjxz " * 400)):
        table = tmp_path / f"{number}.csv"
        table.write_text("text,labels\n" + "".join(f"{words} {row},label {row % 7}\n" for row in range(30)))
        with pytest.raises(Enough):
            fit_data(str(table), tmp_path / f"model{number}", trials=1, observer=Listening())
    told = [message for message in heard if "word pieces a word" in message]
    assert len(told) == 2 and all("may not know this language" in message for message in told)


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
    frame = pandas.DataFrame({"body": [f"{text} {n}" for n in range(10) for text in ("law of fish", "tax of trade")]})
    frame["tags"] = [["a"], ["b", "c_d"]] * 10
    meanings = {"a": "fishing law", "later": "a label that no text has yet"}
    with pytest.raises(BadInput, match=r"texts\[1\] is missing, empty or no string"):
        fit(["a", None], ["x", "y"])
    with pytest.raises(BadInput, match="2 texts but 1 rows of labels"):
        fit(["a", "b"], ["x"])
    model = fit(frame["body"], frame["tags"], meanings, trials=1, output=tmp_path / "model", quiet=True)
    known = dict(zip(model.labels.keys, model.labels.texts, strict=True))
    assert known == {"a": "fishing law", "b": "b", "c_d": "c d", "later": "a label that no text has yet"}
    assert model.predict(["law of fish"], k=1)[0][0].key == "a" and (tmp_path / "model").exists()


def test_a_dataset_of_hugging_face_is_fitted_as_its_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("tickets.csv", "later.csv"):
        rows = [f"{text} {number},{text[:3]}" for number in range(10) for text in ("law of fish", "tax of trade")]
        Path(name).write_text("\n".join(["body,tag", *rows]))
    (block,) = (one for one in blocks_of(ROOT / "docs" / "how-to" / "data-formats.md") if one.language == "python")
    monkeypatch.setattr(umpteen, "fit", partial(fit, trials=1, quiet=True), raising=False)
    exec(compile(block.text, str(block), "exec"), found := {})
    best = [labels[0].key for labels in found["classifier"].predict(found["tickets"]["test"]["body"], k=1)]
    assert best == ["law", "tax"] * 10
    with pytest.raises(BadInput, match=r"texts\[0\] is a dict, not a string; of a table, give its column of texts"):
        found["classifier"].predict(found["tickets"]["test"])


class Column:
    """As polars and pyarrow have them, under a name of theirs."""

    def __init__(self, *values: Any, name: str = "to_pylist") -> None:
        setattr(self, name, lambda: list(values))


def test_columns_are_read_in_their_order_whatever_their_rows_are_called(fitted: tuple[Path, dict[str, Any]]) -> None:
    pandas = pytest.importorskip("pandas")
    model, texts = Classifier.load(fitted[0] / "model"), ["law of fish", "book of network", "dog of tree"]
    expected = model.predict(texts)
    for column in (pandas.Series(texts, index=[2, 0, 7]), Column(*texts), Column(*texts, name="to_list")):
        assert model.predict(column) == expected  # type: ignore[arg-type]


def test_labels_of_columns_are_keys_whatever_holds_them() -> None:
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    texts = ["a", "b", "c"]

    def keys(labels: Any) -> list[list[str]]:
        found = given_dataset(texts, labels)
        return [[found.labels.keys[row] for row in found.train.relevance.of(query)] for query in range(3)]

    assert keys(pandas.Series([1, None, 3])) == [["1"], [], ["3"]]  # as floats, beside the gap
    assert keys(pandas.array(["x", None, "y"], dtype="string")) == [["x"], [], ["y"]]
    assert keys(list(numpy.array([4, 5, 4]))) == [["4"], ["5"], ["4"]]
    assert keys(Column(["x", None], (), numpy.array(["y"]))) == [["x"], [], ["y"]]
    with pytest.raises(BadInput, match=r"labels\[1\] is 0\.5, which is no label"):
        given_dataset(texts, [1, 0.5, 2])
    with pytest.raises(BadInput, match=r"a table of 3 × 2.*LabelClassifier"):
        given_dataset(texts, numpy.array([[0, 1], [1, 0], [1, 1]]))


def test_what_separates_labels_in_a_small_file_is_known_by_the_model(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    other = tmp_path / "few.csv"
    other.write_text('said,about\nlaw of fish,"law of fish,law"\ndog of tree,"dog of tree,never seen"\n')
    asked = ("evaluate", fitted[0] / "model", other, "--text", "said", "--labels", "about", "--json")
    told = json.loads(command(*asked).out)
    assert told["labels_left_out"] == 1 and told["metrics"]["R@10"] == 100
    as_one = command("evaluate", fitted[0] / "model", f"{other}?text=said&labels=about", "--json")
    assert json.loads(as_one.out)["metrics"] == told["metrics"]
    refused(command(*asked, "--separator", "|"), "2 of 2 labels of few are not in the model")  # as it was asked for


def test_a_fit_that_is_stopped_while_it_compares_loses_nothing(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 90)

    class StoppedAt(Observer):
        def notice(self, message: str) -> None:
            if message.startswith("on validation, beside"):
                raise KeyboardInterrupt

    asked: dict[str, Any] = {"trials": 1, "recipe": "static"}
    with pytest.raises(Stopped, match="the same command goes on"):
        fit_data(str(table), tmp_path / "model", **asked, observer=StoppedAt())
    assert not (tmp_path / "model").exists()
    trials = (tmp_path / "model.fit" / "trials.jsonl").read_text()
    found = fit_data(str(table), tmp_path / "model", **asked)
    assert set(found.reports) > {"umpteen"} and [json.dumps(trial) for trial in found.trials] == trials.splitlines()


def test_a_stopped_call_goes_on_though_its_data_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{label} number {number}" for number in range(12) for label in LABELS]
    recipe = str(write_recipe(tmp_path, "training.checkpoint_minutes=0", "training.steps=12"))
    asked: dict[str, Any] = {"trials": 1, "recipe": recipe, "quiet": True}
    real, steps = Checkpoints.save, list[int]()

    def dies(own: Checkpoints, state: TrainState, *rest: Any) -> None:
        real(own, state, *rest)
        steps.append(state.step)
        raise Stopped("enough", signal=signal.SIGTERM)

    monkeypatch.setattr(Checkpoints, "save", dies)
    with pytest.raises(Stopped, match="nothing is kept; with an `output`"):
        fit(texts, LABELS * 12, **asked)
    with pytest.raises(Stopped, match="the same command goes on"):
        fit(texts, LABELS * 12, **asked, output=tmp_path / "model")

    def counted(own: Checkpoints, state: TrainState, *rest: Any) -> None:
        real(own, state, *rest)
        steps.append(state.step)

    monkeypatch.setattr(Checkpoints, "save", counted)
    fit(texts, LABELS * 12, **asked, output=tmp_path / "model")
    assert steps[:2] == [1, 1] and steps[2] == 2


def test_with_more_time_it_is_decided_anew_what_the_time_allows(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 90)

    class StoppedAt(Observer):
        def __init__(self, beginning: str) -> None:
            self.beginning = beginning

        def notice(self, message: str) -> None:
            if message.startswith(self.beginning):
                raise KeyboardInterrupt

    def decided(minutes: float) -> list[Any]:
        with pytest.raises(Stopped):
            fit_data(str(table), tmp_path / "model", minutes=minutes, trials=1, observer=StoppedAt("n-grams"))
        return list(json.loads((tmp_path / "model.fit" / "decided.json").read_text()))

    seconds = [decided(minutes)[-1] for minutes in (10, 5, 20)]
    assert seconds[0] == seconds[1] < seconds[2]


def test_a_classifier_evaluates_and_calibrates_itself_as_the_commands_do(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    other = write_table(tmp_path / "other.csv", 40)
    with other.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts, labels = [row["body"] for row in rows], [row["tags"].split("|") for row in rows]
    model = Classifier.load(shutil.copytree(fitted[0] / "model", tmp_path / "model"))
    told = json.loads(command("evaluate", tmp_path / "model", other, "--json").out)
    assert model.evaluate(texts, labels).metrics == pytest.approx(told["metrics"])
    assert model.calibrate(texts, labels).origin["texts"] == 40
    kept = Classifier.load(tmp_path / "model").calibration
    assert kept is not None and model.calibration is not None and kept.rules == model.calibration.rules
    assert model.calibration.origin["source"] == "unseen"
    for said in ("40 texts, none of which", f"labels {model.labels.count()};", "on validation P@1"):
        assert said in repr(model)
    assert "<th>encoder</th>" in model._repr_html_() and "static" in model._repr_html_()


def test_rows_of_the_same_text_become_one_with_all_labels() -> None:
    dataset = given_dataset(["a b", "c", "a b"], ["x", ["y"], ["z", "x"]])
    assert list(dataset.train.texts) == ["a b", "c"] and dataset.told == (
        "1 rows repeat a text; their labels are merged",
    )
    assert [dataset.labels.keys[row] for row in dataset.train.relevance.of(0)] == ["x", "z"]


def test_training_on_data_without_a_recipe_points_here(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tickets.csv", 5)
    for data in (table, tmp_path):
        refused(command("train", data, "--output", tmp_path / "model"), "is data, not a recipe", f"umpteen fit {data}")
