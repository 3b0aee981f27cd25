"""`umpteen compare` on a miniature: a table of all methods, nothing done twice, test left alone until the end."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from lab.peers import apart
from lab.peers.environment import Environment
from stub_peer import calls, make_stub

import umpteen.model.train
from miniature import command, refused, write_miniature, write_recipe
from umpteen.cli.evaluate import _usual_recipes
from umpteen.compare.methods import mean_of
from umpteen.config.recipes import names, resolve
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Split, open_dataset
from umpteen.evaluation.baselines import TfidfNeighbours
from umpteen.evaluation.report import Evaluator, Report
from umpteen.search.ranking import Ranking
from umpteen.training.build import Run

QUICK = ("training.epochs=1", "evaluation.at=[1]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds data, start and recipe.toml."""
    home = tmp_path_factory.mktemp("compared")
    write_recipe(home, *QUICK)
    return home


def compare(folder: Path, output: Path, *options: str) -> dict[str, Any]:
    outcome = command(
        "compare", folder / "data", "--recipe", folder / "recipe.toml", "--output", output, "--json", *options
    )
    assert outcome.code == 0, outcome.err
    answer: dict[str, Any] = json.loads(outcome.out)
    return answer


class Compared(NamedTuple):
    """A comparison of all usual methods, two trials each."""

    output: Path
    found: dict[str, Any]
    peer: list[dict[str, Any]]  # what the stand-in for PECOS was asked
    evaluated: list[list[str]]  # the texts of each evaluation, in order


@pytest.fixture(scope="module")
def compared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    home, evaluated = tmp_path_factory.mktemp("usual"), list[list[str]]()
    original = Evaluator.report

    def report(self: Evaluator, ranking: Ranking, **more: int) -> Report:
        evaluated.append(list(self.split.texts))
        return original(self, ranking, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMPTEEN_CACHE", str(home / "cache"))
        patch.setattr(Evaluator, "report", report)
        make_stub(home / "log", sys.executable)
        found = compare(folder, home / "out", "--trials", "2")
    return Compared(home / "out", found, calls(home / "log"), evaluated)


def test_every_method_is_in_the_json_and_on_the_page(compared: Compared) -> None:
    output, found, _, _ = compared
    assert found["dataset"] == "data" and found["skipped"] == [] and found["reference"] == "umpteen recipe"
    assert [result["method"] for result in found["results"]] == [
        "popularity",
        "tfidf-knn",
        "xr-linear",
        "umpteen recipe",
    ]
    for result in found["results"]:
        wanted = {"metrics", "intervals", "differences", "train_seconds", "predict_seconds", "parameters"}
        assert wanted | {"settings", "trials", "method"} <= set(result)
        assert set(result["metrics"]) == set(result["intervals"]) >= {"P@1", "PSP@5", "R@10"}
        assert len(result["trials"]) == (1 if result["method"] == "popularity" else 2)
        assert result["trials"][0]["settings"] == result["settings"]
        assert result["trials"][0]["metrics"]["nDCG@5"] >= result["trials"][-1]["metrics"]["nDCG@5"]
    popular, _, linear, ours = found["results"]
    assert ours["differences"] == {} and ours["ours"]
    one = popular["differences"]["P@1"]
    assert one["value"] == pytest.approx(popular["metrics"]["P@1"] - ours["metrics"]["P@1"])
    assert one["interval"][0] <= one["value"] <= one["interval"][1] and 0 < one["p"] <= 1
    assert (linear["train_seconds"], linear["predict_seconds"], linear["parameters"]) == (1.5, 0.5, 7)
    page = (output / "index.html").read_text()
    for result in found["results"]:
        assert page.count(result["method"]) >= 4  # both figures, the table, the trials
    assert page.count("<svg") == 2 and "http" not in page
    assert json.loads((output / "results.json").read_text()) == found


def test_an_ensemble_is_the_mean_of_as_many_seeds_with_the_settings_of_the_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMPTEEN_CACHE", str(tmp_path / "cache"))
    make_stub(tmp_path / "log", sys.executable)
    found = compare(folder, tmp_path / "out", "--trials", "1", "--peers", "tfidf-knn,xr-linear", "--ensemble", "2")
    rows = [f"{name}{times}" for name in ("xr-linear", "umpteen recipe") for times in ("", " × 2")]
    assert [result["method"] for result in found["results"]] == ["tfidf-knn", *rows]
    assert found["reference"] == "umpteen recipe"
    assert [call["settings"]["seed"] for call in calls(tmp_path / "log")] == [0, 0, 1]
    by_name = {result["method"]: result for result in found["results"]}
    for name in ("xr-linear", "umpteen recipe"):
        single, several = by_name[name], by_name[f"{name} × 2"]
        assert several["parameters"] == 2 * single["parameters"] and several["settings"] == single["settings"]
    assert len([place for place in (tmp_path / "out" / "models").iterdir() if place.is_dir()]) == 2
    assert len([*(tmp_path / "out" / "trials").glob("umpteen*")]) == 1  # shared with the single model


def test_the_mean_of_rankings_adds_up_scores_and_takes_the_last_for_what_is_not_listed() -> None:
    first = Ranking(np.array([[0, 1, 2]], np.int32), np.array([[9.0, 8.0, 1.0]], np.float32), 5)
    second = Ranking(np.array([[3, 1, -1]], np.int32), np.array([[6.0, 2.0, -np.inf]], np.float32), 5)
    mean = mean_of([first, second])  # 0: 9, 2; 1: 8, 2; 2: 1, 2; 3: 1, 6
    assert mean.rows.tolist() == [[0, 1, 3]] and mean.width == 3
    assert np.diff(mean.scores[0]).tolist() == pytest.approx([-0.5, -1.5])


def ours_of(compared: Compared, place: Path) -> Path:
    """The same comparison before a peer was asked: our own method is done, and goes into another folder."""
    but = shutil.ignore_patterns("xr-linear*", "index.html", "results.json")
    return Path(shutil.copytree(compared.output, place / "out", ignore=but))


def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason(
    folder: Path, compared: Compared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMPTEEN_PEER_PYTHON", str(tmp_path / "nowhere"))
    outcome = command(
        *("compare", folder / "data", "--recipe", folder / "recipe.toml", "--output", ours_of(compared, tmp_path)),
        *("--trials", "2", "--peers", "xr-linear"),
    )
    assert outcome.code == 0, outcome.err
    assert "xr-linear is left out" in outcome.err and "UMPTEEN_PEER_PYTHON" in outcome.err
    assert "Traceback" not in outcome.err and "left out: xr-linear" in outcome.out
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [skip["method"] for skip in kept["skipped"]] == ["xr-linear"]
    assert [result["method"] for result in kept["results"]] == ["umpteen recipe"]
    assert "xr-linear" in (tmp_path / "out" / "index.html").read_text()


def test_a_peer_that_breaks_is_left_out_with_its_last_words(folder: Path, compared: Compared, tmp_path: Path) -> None:
    make_stub(tmp_path / "log", sys.executable, body='sys.exit("the tree has no leaves")')
    found = compare(folder, ours_of(compared, tmp_path), "--trials", "2", "--peers", "xr-linear")
    (skip,) = found["skipped"]
    assert skip["method"] == "xr-linear" and "the tree has no leaves" in skip["reason"]


def test_after_a_kill_between_trials_nothing_runs_twice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    make_stub(log, sys.executable)
    options = ("compare", folder / "data", "--recipe", folder / "recipe.toml", "--output", output, "--trials", "2")
    run = apart._run

    def interrupted(environment: Environment, worker: str, job: Path) -> dict[str, Any]:
        figures = run(environment, worker, job)
        if len(calls(log)) == 2:
            raise KeyboardInterrupt
        return figures

    with monkeypatch.context() as patch:
        patch.setattr(apart, "_run", interrupted)
        assert command(*options, "--peers", "xr-linear", "--json").code == 130
    assert len(calls(log)) == 2
    found = compare(folder, output, "--trials", "2", "--peers", "xr-linear")
    asked = [call["settings"] for call in calls(log)]
    assert asked[0] != asked[1] == asked[2] and len(asked) == 4  # the one that was killed, again; the final fit

    trials = (output / "trials" / "umpteen-recipe.jsonl").read_text()
    monkeypatch.setattr("umpteen.model.train.build_run", None)
    monkeypatch.setattr("umpteen.training.tune.build_run", None)
    assert compare(folder, output, "--trials", "2", "--peers", "xr-linear") == found
    assert len(calls(log)) == 4 and (output / "trials" / "umpteen-recipe.jsonl").read_text() == trials


def test_trials_never_see_the_test_split(folder: Path, compared: Compared) -> None:
    evaluated = compared.evaluated
    data = open_dataset(folder / "data")
    assert data.test is not None
    train, test = list(data.train.texts), list(data.test.texts)
    *trials, final = compared.peer
    for call in trials:
        assert len(call["queries"]) == 6 and len(call["texts"]) == 54
        assert sorted([*call["queries"], *call["texts"]]) == sorted(train)
    assert final["queries"] == test and final["texts"] == train
    ends = evaluated.index(test)
    assert ends == 1 + 2 + 2 + 2 and all(
        texts == test for texts in evaluated[ends:]
    )  # once test is read, all choices are made
    assert all(not set(texts) & set(test) for texts in evaluated[:ends])


def test_data_without_a_recipe_of_its_own_gets_those_that_serve_any_data() -> None:
    shipped = names()
    assert _usual_recipes("mine", shipped) == ("mixed+ranker", "static")
    assert _usual_recipes("eurlex-titles", shipped) == ("eurlex-titles-mixed+ranker", "eurlex-titles")
    assert _usual_recipes("eurlex-4k", shipped) == ("eurlex-4k",)
    for name in ("mixed", "static"):
        assert resolve(name, (), "mine").data.source == "mine"


def test_a_recipe_marked_so_gets_a_ranker() -> None:
    from umpteen.compare.methods import our_methods, trials_file
    from umpteen.training.observer import Observer

    rows = our_methods(["wordnet-nouns", "wordnet-nouns+ranker"], Observer())
    assert [row.name for row in rows] == ["umpteen wordnet-nouns", "umpteen wordnet-nouns+ranker"]
    assert trials_file(rows[0]) == trials_file(rows[1])


def test_a_ranker_is_weighed_on_validation_and_shares_trials_and_dual_encoder(folder: Path, tmp_path: Path) -> None:
    ranked = f"{folder / 'recipe.toml'}+ranker"
    asked = (folder, tmp_path / "out", "--trials", "1", "--peers", "none", "--recipe", ranked)
    plain, ranked = compare(*asked)["results"]
    assert (plain["method"], ranked["method"]) == ("umpteen recipe", "umpteen recipe+ranker")
    assert ranked["trials"] == plain["trials"] and ranked["parameters"] > plain["parameters"]
    assert ranked["validation"]["P@1"] >= 0 and len(list((tmp_path / "out" / "trials").glob("*.jsonl"))) == 1
    assert sum(path.is_dir() for path in (tmp_path / "out" / "models").iterdir()) == 2  # for validation and for test
    shutil.rmtree(tmp_path / "out" / "results")
    again, _ = compare(*asked)["results"]  # from a folder that has a ranker by now
    assert (again["metrics"], again["parameters"]) == (plain["metrics"], plain["parameters"])


def test_a_ranked_recipe_is_trained_once_for_each_trial_and_once_for_test(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = list[str]()
    original = umpteen.model.train.build_run

    def build_run(config: RunConfig, **more: Any) -> Run:
        trained.append(config.data.fit_on)
        return original(config, **more)

    monkeypatch.setattr("umpteen.model.train.build_run", build_run)
    output = tmp_path / "out"
    answer = command(
        *("compare", folder / "data", "--recipe", f"{folder / 'recipe.toml'}+ranker"),
        *("--output", output, "--json", "--trials", "2", "--peers", "popularity"),
    )
    assert answer.code == 0, answer.err
    ours = json.loads(answer.out)["results"][-1]
    assert trained == ["train", "train", "train+validation"]
    kept = [path for path in (output / "models").iterdir() if path.is_dir()]
    assert len(kept) == 2 and len(ours["trials"]) == 2  # of the trials the best, and what was fitted for test


def test_what_cannot_be_compared_is_refused(folder: Path, tmp_path: Path) -> None:
    asked = ("compare", folder / "data", "--output", tmp_path / "out")
    refused(command(*asked, "--recipe", folder / "recipe.toml", "--peers", "xr-linar"), "xr-linar", "xr-linear")
    refused(command(*asked, "--recipe", folder / "recipe.toml", "--metric", "P@2"), "P@2", "P@1")
    refused(command(*asked, "--recipe", "nowhere"), "nowhere")
    bare = write_miniature(tmp_path / "bare")
    (bare / "test.jsonl").unlink()
    refused(command("compare", bare, "--recipe", folder / "recipe.toml", "--output", tmp_path / "out"), "no test split")
    assert not (tmp_path / "out").exists()


def test_with_one_trial_a_peer_has_nothing_to_choose_and_is_fitted_once(folder: Path, tmp_path: Path) -> None:
    fitted: list[int] = []
    original = TfidfNeighbours.__init__

    def count(self: TfidfNeighbours, train: Split, **settings: int) -> None:
        fitted.append(len(train))
        original(self, train, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TfidfNeighbours, "__init__", count)
        found = compare(folder, tmp_path / "out", "--trials", "1", "--peers", "tfidf-knn")
    peer, ours = found["results"]
    assert fitted == [found["train_queries"]]
    assert peer["settings"] == ["neighbours=50", "ngrams=2"] and peer["validation"] is None and peer["trials"] == []
    assert len(ours["trials"]) == 1 and ours["validation"]["nDCG@5"] >= 0


def test_an_edited_recipe_is_fitted_anew_and_not_taken_for_what_it_was(tmp_path: Path) -> None:
    write_recipe(tmp_path, *QUICK)
    options = ("--trials", "1", "--peers", "popularity")
    before = compare(tmp_path, tmp_path / "out", *options)["results"][-1]
    again = compare(tmp_path, tmp_path / "out", *options)["results"][-1]
    assert again["train_seconds"] == before["train_seconds"]
    write_recipe(tmp_path, *QUICK, "encoder.query.bigrams=50")
    after = compare(tmp_path, tmp_path / "out", *options)["results"][-1]
    assert after["parameters"] > before["parameters"]
