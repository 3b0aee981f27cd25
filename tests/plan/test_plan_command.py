"""`umpteen plan` on a miniature: what it prints, warns of and refuses. How long things take is never asked."""

import json
from pathlib import Path

import pytest

from miniature import command, listing, refused, write_recipe
from umpteen.plan import plan
from umpteen.plan.plan import Sizes

KEYS = {
    "memory_gb",
    "memory_limit_gb",
    "fits",
    "suggestion",
    "seconds_per_step",
    "seconds_per_epoch",
    "seconds_total",
    "seconds_per_evaluation",
    "shares",
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("miniature"))


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("encoder.towers=shared", "encoder.query.kind=transformer", "objective.name=soft_top_k"),
        ("data.fit_on=train+validation", "objective.name=one_vs_all", "training.minutes=0.01", "training.tile=4"),
        ("pool.name=bank", "training.batch_size=2", "pool.renewed=1"),
    ],
)
def test_machines_get_one_object(recipe: Path, changes: tuple[str, ...]) -> None:
    options = [part for change in changes for part in ("--set", change)]
    outcome = command("plan", recipe, "--json", *options)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert set(found) >= KEYS and found["fits"] and found["suggestion"] == {}
    assert found["seconds_per_epoch"] == pytest.approx(found["seconds_per_step"] * found["steps_per_epoch"])
    evaluations = (found["evaluations"] + 1) * found["seconds_per_evaluation"]
    assert found["seconds_total"] == pytest.approx(found["steps"] * found["seconds_per_step"] + evaluations)
    assert set(found["shares"]) == {"encode_queries", "encode_labels", "loss", "replay", "optimizer"}
    assert sum(found["shares"].values()) == pytest.approx(1) and min(found["shares"].values()) > 0
    assert found["memory_gb"] == max(found["memory_by_phase_gb"].values()) > 0.1
    assert (found["evaluations"] == 0) == ("data.fit_on=train+validation" in changes)
    assert (found["labels_encoded_per_step"] < 10) == ("pool.name=bank" in changes)


def test_people_get_a_table_and_nothing_is_written(recipe: Path) -> None:
    before = listing(recipe.parent)
    outcome = command("plan", recipe, "--processes", "3")
    assert outcome.code == 0, outcome.err
    for words in ("peak memory", "encode labels", "replay", "an epoch", "4 steps", "3 processes", "communication"):
        assert words in outcome.out
    assert listing(recipe.parent) == before


def test_too_little_memory_is_warned_of(recipe: Path) -> None:
    outcome = command("plan", recipe, "--memory", "0.01", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0 and not found["fits"] and found["suggestion"] is None
    assert "warning" in outcome.err and "more processes on more machines" in outcome.err


def test_a_suggestion_is_ready_to_be_set(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def smaller(sizes: Sizes, *limits: object, **more: object) -> Sizes:
        return sizes._replace(batch_size=2, token_budget=16)

    monkeypatch.setattr(plan, "largest_that_fit", smaller)
    outcome = command("plan", recipe, "--memory", "0.01", "--json")
    assert json.loads(outcome.out)["suggestion"] == {"training.batch_size": 2, "training.token_budget": 16}
    advice = "the largest settings that fit: --set training.batch_size=2 --set training.token_budget=16"
    assert advice in " ".join(outcome.err.split())


def test_what_cannot_be_planned_is_refused(recipe: Path) -> None:
    refused(command("plan", recipe, "--processes", "11"), "10 labels", "11 processes")
    refused(command("plan", recipe, "--data", recipe.parent / "nowhere"), "nowhere")
    refused(command("plan", recipe, "--set", "pool.name=batch"), "pool.name=all gives an upper bound")
    assert command("plan", recipe, "--memory", "0").code == 2
