"""What is tried on validation: the recipe's own settings first, then one choice after another from the best so far."""

import json
from pathlib import Path
from threading import Thread

import pytest

from miniature import command, refused, write_recipe
from umpteen.config.recipes import resolve
from umpteen.errors import BadConfig
from umpteen.training import tune
from umpteen.training.tune import Candidate, Trials, choices_of, climb


def test_the_usual_choices_lie_around_the_recipe_s_own() -> None:
    assert choices_of(resolve("wordnet-nouns")) == [
        "data.label_queries=0.0,0.1",
        "training.epochs=7.0,14",
        "objective.temperature=0.03,0.018,0.048",
        "optimizer.learning_rate=0.003,0.00099,0.009",
    ]
    own = resolve("wordnet-nouns", ("encoder.query.learning_rate=0.02",))
    assert choices_of(own)[-1].startswith("encoder.query.learning_rate=0.02,")


def test_of_towers_with_several_parts_other_mixes_and_a_vector_a_label_are_tried() -> None:
    found = choices_of(resolve("mixed"))
    assert found[1:3] == ["encoder.query.kind=sum,concat,frozen", "encoder.label.table=none,{}"]
    beside = choices_of(resolve("mixed", ("encoder.query.kind=concat",)))
    assert beside[1] == "encoder.query.kind=concat,sum,frozen"  # the recipe's own first
    for choice in found:
        key, _, values = choice.partition("=")
        for value in values.split(","):
            resolve("mixed", (f"{key}={value}",))  # every value by itself is a recipe


def test_climbing_changes_one_choice_after_another_from_the_best_so_far() -> None:
    tried: list[tuple[str, ...]] = []

    def attempt(point: tuple[str, ...]) -> float:
        tried.append(point)
        return {"a=1": 0, "a=2": 5, "a=3": 3}[point[0]] + {"b=1": 0, "b=2": -1}[point[1]]

    climb(["a=1,2,3", "b=1,2"], 100, attempt)
    assert tried[:4] == [("a=1", "b=1"), ("a=2", "b=1"), ("a=3", "b=1"), ("a=2", "b=2")]
    assert len(tried) == len(set(tried)) == 4  # a second round had nothing new
    tried.clear()
    climb(["a=1,2,3", "b=1,2"], 2, attempt)
    assert tried == [("a=1", "b=1"), ("a=2", "b=1")]


def test_settings_that_do_not_go_together_cost_no_trial() -> None:
    tried: list[tuple[str, ...]] = []

    def attempt(point: tuple[str, ...]) -> float:
        if point == ("a=2",):
            raise BadConfig("a = 2: not here")
        tried.append(point)
        return 0.0

    climb(["a=1,2,3"], 2, attempt)
    assert tried == [("a=1",), ("a=3",)]
    with pytest.raises(BadConfig, match="not here"):
        climb(["a=2,1"], 2, attempt)


def test_tuning_without_choices_tries_around_the_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "training.steps=1")
    outcome = command("tune", recipe, "--trials", "2", "--output", tmp_path / "trials.jsonl")
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == 2 and "optimizer.learning_rate=0.03" in lines[0] and "objective.temperature=0.05" in lines[0]
    best = max(map(json.loads, lines), key=lambda trial: trial["metrics"]["nDCG@5"])
    won = resolve(str(tmp_path / "trials.best.toml"))
    assert f"objective.temperature={won.objective.temperature}" in best["settings"] and won.training.steps == 1


def test_no_recipe_but_its_own_is_replaced_and_the_best_is_of_this_call(tmp_path: Path) -> None:
    recipe, file = write_recipe(tmp_path, "training.steps=1"), tmp_path / "recipe.jsonl"
    before, asked = recipe.read_text(), ("--try", "seed=1", "--output", file)
    better = {
        "settings": ["seed=9"],
        "metrics": {"nDCG@5": 100.0},
        "best_step": 1,
        "seconds": 0,
        "identity": "another's",
    }
    file.write_text(json.dumps(better) + "\n")
    for _ in range(2):
        outcome = command("tune", recipe, *asked, "--json")
        assert outcome.code == 0, outcome.err
        assert [trial["settings"] for trial in json.loads(outcome.out)["results"]] == [["seed=1"]]
    won = tmp_path / "recipe.best.toml"
    assert recipe.read_text() == before and resolve(str(won)).seed == 1
    refused(command("tune", won, *asked), "recipe.best.toml", "give another --recipe-out")
    refused(command("tune", recipe, *asked, "--recipe-out", recipe), "recipe.toml", "give another --recipe-out")
    won.write_text(before)
    refused(command("tune", recipe, *asked), "recipe.best.toml", "give another --recipe-out")


def test_weights_that_validation_chose_go_with_a_trial_of_concatenated_parts(tmp_path: Path) -> None:
    part = "random_weights=true,dimension=8,start='all-MiniLM-L6-v2'"
    recipe = write_recipe(tmp_path, "training.steps=1", "encoder.label=none")
    settings = (
        "encoder.query.kind=concat",
        *(f"encoder.query.static.{setting}" for setting in part.split(",")),
        "encoder.query.frozen.layers=1",
        "encoder.query.frozen.dimension=8",
    )
    given = [word for setting in settings for word in ("--set", setting)]
    file = tmp_path / "trials.jsonl"
    outcome = command("tune", recipe, *given, "--try", "training.steps=1", "--output", file)
    assert outcome.code == 0, outcome.err
    then = json.loads(file.read_text())["then"]
    assert [setting.partition("=")[0] for setting in then] == [
        "encoder.query.static.weight",
        "encoder.query.frozen.weight",
    ]


def test_two_searches_in_one_file_lose_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write, added = tmp_path / "sweep.jsonl", tune.write_atomically, list[Thread]()
    first = Trials(file, "P@1", lambda _: None)
    one = Candidate(("seed=1",), "one", lambda: {"metrics": {"P@1": 1.0}})

    def meanwhile(path: Path, data: str) -> None:
        added.append(Thread(target=first.attempt, args=(one,)))
        added[0].start()
        added[0].join(1)  # it may have to wait for the search that begins here
        write(path, data)

    monkeypatch.setattr(tune, "write_atomically", meanwhile)
    Trials(file, "P@1", lambda _: None)
    added[0].join()
    assert json.loads(file.read_text())["identity"] == "one"
