"""`umpteen doctor` passes what is sound, and names what is not."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from miniature import Outcome, command, write_miniature, write_recipe
from umpteen.config.recipes import resolve
from umpteen.config.settings import RunConfig
from umpteen.doctor import checks as agreement
from umpteen.doctor import checks as machine
from umpteen.doctor.checks import STATIC_TOKENS, Check, Difference, difference, draw_sample, examine, look
from umpteen.doctor.checks import Outcome as Gradients
from umpteen.encoders import backbone as precision
from umpteen.objectives import decoupled_softmax
from umpteen.parallel.world import World

NAMES = [
    "versions",
    "devices",
    "cache folder",
    "bfloat16",
    "float16",
    "data",
    "start model",
    "naive formula",
    "two processes",
]


@pytest.fixture(autouse=True)
def no_trials_of_precisions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each would start a process; what they find is tested with the precisions."""
    monkeypatch.setattr(precision, "probe", lambda precision: None)
    yield


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 0) -> list[Any]:
        return [function(World(), *arguments)] * size

    monkeypatch.setattr(agreement, "run_in_world", alone)


def checks_of(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(outcome.out)["checks"]}


def statuses(outcome: Outcome) -> dict[str, str]:
    return {name: check["status"] for name, check in checks_of(outcome).items()}


def test_a_sound_recipe_passes_every_check_on_real_processes(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "encoder.query.bigrams=50", "objective.positives_per_query=1")
    outcome = command("doctor", recipe, "--json")
    assert outcome.code == 0, outcome
    assert statuses(outcome) == dict.fromkeys(NAMES, "ok")
    found = checks_of(outcome)
    assert "32 queries and 10 labels; decoupled_softmax and the naive formula agree" in found["naive formula"]["detail"]
    assert "one and two processes agree" in found["two processes"]["detail"]
    assert all(check["seconds"] >= 0 for check in found.values())


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_bank_is_held_against_the_exact_gradient(tmp_path: Path, towers: str) -> None:
    write_miniature(tmp_path / "data", queries=3)  # which do not have all 10 labels
    recipe = write_recipe(tmp_path, "pool.name=bank", towers=towers)
    details = {}
    for renewed in (0, 10):
        outcome = command("doctor", recipe, "--json", "--set", f"pool.renewed={renewed}", "--set", "pool.sampled=1")
        assert statuses(outcome) == dict.fromkeys([*NAMES, "kept vectors"], "ok")
        details[renewed] = checks_of(outcome)["kept vectors"]["detail"]
    assert details[10].count("cosine 1.000, 1.00 times as long") == (1 if towers == "shared" else 2)
    assert "cosine 0." in details[0]


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(
    "settings",
    [
        ("objective.name=softmax",),
        ("objective.name=soft_top_k",),
        ("objective.name=soft_top_k", "objective.mask_unsampled=true", "objective.k=1"),
        ("objective.name=one_vs_all",),
        ("objective.name=one_vs_all", "objective.logit_bias=-3"),
    ],
)
def test_every_objective_of_a_transformer_passes(tmp_path: Path, settings: tuple[str, ...]) -> None:
    recipe = write_recipe(tmp_path, kind="transformer", towers="shared")
    outcome = command("doctor", recipe, *(each for setting in settings for each in ("--set", setting)))
    assert outcome.code == 0, outcome
    assert outcome.out.rstrip().endswith("all is well")
    assert outcome.out.count(" ok ") == len(NAMES)


@pytest.mark.usefixtures("no_processes")
def test_a_wrong_objective_is_caught_by_the_naive_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(config: Any, labels: int) -> Any:
        return lambda scores, targets: decoupled_softmax(scores, targets) * 1.000001

    monkeypatch.setattr(agreement, "build_objective", wrong)
    outcome = command("doctor", write_recipe(tmp_path))
    assert outcome.code == 1
    assert outcome.out.rstrip().endswith("failed: naive formula")
    outcome = command("doctor", tmp_path / "recipe.toml", "--json")
    assert outcome.code == 1 and json.loads(outcome.out)["ok"] is False
    assert {name for name, status in statuses(outcome).items() if status != "ok"} == {"naive formula"}


@pytest.mark.usefixtures("no_processes")
def test_a_gradient_lost_on_its_way_to_the_weights_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = agreement.TrainingStep.gradients

    def lossy(self: Any, *given: Any, **named: Any) -> Any:
        found = real(self, *given, **named)
        self.towers.label.token_weights.grad[7:] = 0
        return found

    monkeypatch.setattr(agreement.TrainingStep, "gradients", lossy)
    outcome = command("doctor", write_recipe(tmp_path), "--json")
    assert outcome.code == 1
    assert "the gradient of label_tower.token_weights is off by" in checks_of(outcome)["naive formula"]["detail"]


def test_processes_that_differ_from_one_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = draw(tmp_path)
    sound = Difference(1e-15, "loss", 2.0, 5.0)
    for others, told in (
        ([sound, sound._replace(size=0.5, place="gradient of query.table")], "the gradient of query.table is off"),
        ([sound._replace(size=0.1), sound], "the loss is 2 on two processes"),
        ([sound, sound._replace(total=5.0000001)], "end with different gradients"),
    ):
        monkeypatch.setattr(agreement, "run_in_world", lambda *_, answer=others, **__: answer)
        check = look("two processes", lambda: agreement.on_two_processes(config_of(tmp_path), sample))
        assert check.status == "failed" and told in check.detail


def config_of(folder: Path, *changes: str) -> RunConfig:
    return resolve(str(folder / "recipe.toml"), changes)


def draw(folder: Path, *changes: str, at_least: int = 5) -> Any:
    from umpteen.data.dataset import open_dataset
    from umpteen.encoders.towers import Towers

    config = resolve(str(write_recipe(folder, *changes)))
    return draw_sample(open_dataset(folder / "data"), Towers.build(config.encoder, 0), seed=0, at_least=at_least)


def test_the_sample_holds_queries_with_their_positives_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = draw(tmp_path / "whole")
    assert str(whole) == "32 queries and 10 labels"
    assert whole.data.queries.lengths.sum() + whole.data.labels.lengths.sum() <= STATIC_TOKENS
    assert whole.data.relevance.pairs >= 32 and whole.data.filtered.pairs > 0
    monkeypatch.setattr("umpteen.doctor.checks.STATIC_TOKENS", 20)
    small = draw(tmp_path / "small")
    assert str(small) == "1 queries and 5 labels"  # the least that was asked for
    assert (small.data.relevance.matrix.sum(1) > 0).all()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("static", ("encoder.label.kind=table",)), ("sum", ("encoder.label.table.skip=0",)), ("concat", ())],
)
def test_a_recipe_with_a_vector_per_label_or_with_parts_is_examined_like_any_other(
    kind: str, changes: tuple[str, ...], tmp_path: Path
) -> None:
    found = statuses(command("doctor", write_recipe(tmp_path, *changes, kind=kind), "--json"))
    assert found == dict.fromkeys(NAMES, "ok")


def test_no_number_is_no_agreement() -> None:
    one = Gradients(1.0, {"weight": torch.tensor([1.0, 2.0])})
    assert difference(one, one).size == 0
    nan = Gradients(1.0, {"weight": torch.tensor([1.0, torch.nan])})
    assert difference(nan, one).size == difference(one, nan).size == float("inf")
    assert difference(Gradients(1.0, {}), one).place == "gradient of weight"


@pytest.mark.usefixtures("no_processes")
def test_a_missing_start_model_is_named_and_what_needs_it_is_skipped(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    outcome = command("doctor", recipe, "--set", f"encoder.query.start={tmp_path / 'nowhere'}", "--json")
    assert outcome.code == 1
    found = checks_of(outcome)
    assert found["start model"]["status"] == "failed" and "nowhere" in found["start model"]["detail"]
    for name in ("naive formula", "two processes"):
        assert found[name]["status"] == "skipped" and "no start model" in found[name]["detail"]


@pytest.mark.usefixtures("no_processes")
def test_missing_data_is_named_and_what_needs_it_is_skipped(tmp_path: Path) -> None:
    outcome = command("doctor", write_recipe(tmp_path), "--data", tmp_path / "nothing", "--json")
    found = statuses(outcome)
    assert outcome.code == 1
    assert {name for name, status in found.items() if status == "failed"} == {"data"}
    assert {name for name, status in found.items() if status == "skipped"} == {"naive formula", "two processes"}


def test_a_recipe_with_a_mistake_is_refused_as_everywhere(tmp_path: Path) -> None:
    outcome = command("doctor", write_recipe(tmp_path), "--set", "objective.tempreature=1")
    assert outcome.code == 2 and "temperature" in outcome.err


def test_a_precision_that_dies_fails_only_the_recipe_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    precision.probe.cache_clear()

    def killed(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -4, "", "")

    monkeypatch.setattr(subprocess, "run", killed)
    recipe = write_recipe(tmp_path, kind="transformer")
    checks = examine(resolve(str(recipe), ("encoder.query.precision=bfloat16",)))
    made: dict[str, Check] = {}
    for check in checks:
        made[check.name] = check
        if check.name == "float16":
            break
    precision.probe.cache_clear()
    assert made["bfloat16"].status == "failed" and "signal 4" in made["bfloat16"].detail
    assert made["float16"].status == "ok"
    assert "not usable here" in made["float16"].detail and "signal 4" in made["float16"].detail


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise machine.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.metadata, "version", missing)
    found = look("versions", machine.versions)
    assert found.status == "failed" and "torch" in found.detail


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("UMPTEEN_CACHE", str(tmp_path / "file" / "cache"))
    found = look("cache folder", machine.cache)
    assert found.status == "failed" and "set UMPTEEN_CACHE" in found.detail


@pytest.mark.usefixtures("no_processes")
def test_too_little_memory_skips_the_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "free_memory", lambda: 1000)
    outcome = command("doctor", write_recipe(tmp_path), "--json")
    assert outcome.code == 0
    for name in ("naive formula", "two processes"):
        assert checks_of(outcome)[name]["status"] == "skipped" and "needs about" in checks_of(outcome)[name]["detail"]


def test_the_unforeseen_is_a_finding_too() -> None:
    def breaks() -> str:
        raise ZeroDivisionError("by nothing")

    found = look("odd", breaks)
    assert (found.status, found.detail) == ("failed", "ZeroDivisionError: by nothing")
