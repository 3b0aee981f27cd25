"""What is tried when nothing is said: the recipe's own settings first, and values around them."""

from pathlib import Path

from miniature import command, write_recipe
from umpteen.config.recipes import resolve
from umpteen.training.tune import grid, usual_choices


def test_the_usual_choices_lie_around_the_recipe_s_own(tmp_path: Path) -> None:
    config = resolve("wordnet-nouns")
    assert usual_choices(config)[-1] == "data.label_queries=0.0,0.1"
    assert usual_choices(config)[:-1] == [
        "optimizer.learning_rate=0.003,0.00099,0.009",
        "objective.temperature=0.03,0.018,0.048",
    ]
    own = resolve("wordnet-nouns", ("encoder.query.learning_rate=0.02",))
    assert usual_choices(own)[0].startswith("encoder.query.learning_rate=0.02,")


def test_the_recipe_s_own_settings_are_always_among_those_drawn() -> None:
    choices = ["a=1,2,3", "b=1,2"]
    for seed in range(5):
        drawn = grid(choices, 3, seed, own_first=True)
        assert drawn[0] == ("a=1", "b=1") and len(set(drawn)) == 3
    assert grid(choices, 1, 0, own_first=True) == [("a=1", "b=1")]
    assert len(grid(choices, None, 0, own_first=True)) == 6


def test_tuning_without_choices_tries_around_the_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "training.steps=1")
    outcome = command("tune", recipe, "--trials", "2", "--output", tmp_path / "trials.jsonl")
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == 2 and "optimizer.learning_rate=0.03" in lines[0] and "objective.temperature=0.05" in lines[0]
