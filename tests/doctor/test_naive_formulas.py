"""The doctor's naive way from texts to gradients is the judge's, on data with every oddity."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from miniature import write_recipe
from tiny import tiny_transformer
from training.step_cases import (
    FILTERED,
    LABELS,
    OBJECTIVES,
    QUERIES,
    RELEVANT,
    TOWERS,
    WEIGHTS,
    assert_same,
    gradients,
    make_towers,
    naive,
    table,
)
from umpteen.config.recipes import resolve
from umpteen.data.labels import Relevance
from umpteen.doctor.checks import Outcome, Sample, by_formula, by_step
from umpteen.encoders.towers import Towers
from umpteen.objectives.reference import softplus
from umpteen.parallel.world import World
from umpteen.training.step import TrainingData

SETTINGS: dict[str, tuple[str, ...]] = {
    "softmax": ("objective.name=softmax",),
    "decoupled_softmax": ("objective.name=decoupled_softmax",),
    "soft_top_3": ("objective.name=soft_top_k", "objective.k=3"),
    "soft_top_positives": ("objective.name=soft_top_k", "objective.k=positives"),
    "soft_top_3_masked": ("objective.name=soft_top_k", "objective.k=3", "objective.mask_unsampled=true"),
    "one_vs_all": ("objective.name=one_vs_all",),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("miniature"), "objective.temperature=0.5", "seed=0")


def sample(towers: Towers, relevance: Relevance) -> Sample:
    filtered = Relevance.from_lists(FILTERED, len(LABELS))
    data = TrainingData(table(towers.query, QUERIES), table(towers.label, LABELS), relevance, filtered)
    return Sample(data, len(LABELS))


def doctors(recipe: Path, towers: Towers, relevance: Relevance, *changes: str) -> Outcome:
    return by_formula(resolve(str(recipe), changes), towers, sample(towers, relevance))


def judges(towers: Towers, objective: str, relevance: Relevance, *more: Any) -> tuple[float, dict[str, torch.Tensor]]:
    return naive(towers, OBJECTIVES[objective][1], relevance, np.arange(len(QUERIES)), *more), gradients(towers)


@pytest.mark.parametrize("objective", SETTINGS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_doctor_s_losses_are_the_judge_s(objective: str, reduction: str, start: str, recipe: Path) -> None:
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    towers = make_towers(TOWERS[1], start)
    loss, expected = judges(towers, objective, relevance, reduction)
    more = () if objective == "one_vs_all" else (f"objective.reduction={reduction}",)
    found = doctors(recipe, towers, relevance, *more, *SETTINGS[objective])
    assert found.loss == pytest.approx(loss, rel=1e-10)
    assert_same(found.gradients, expected)


def test_a_shared_transformer_is_encoded_without_padding(start: str, recipe: Path) -> None:
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    towers = make_towers("transformer shared", start)
    loss, expected = judges(towers, "decoupled_softmax", relevance)
    found = doctors(recipe, towers, relevance)
    assert found.loss == pytest.approx(loss, rel=1e-10)
    assert_same({name: found.gradients.get(name, torch.zeros_like(each)) for name, each in expected.items()}, expected)


def test_a_recipe_of_rounded_vectors_is_held_to_the_formula_before_they_are_rounded(start: str, recipe: Path) -> None:
    towers, relevance = make_towers(TOWERS[1], start), Relevance.from_lists(RELEVANT, len(LABELS))
    config, some = resolve(str(recipe), ("training.half_labels=true",)), sample(towers, relevance)
    ours, theirs = by_step(config, towers, some, World()), by_formula(config, towers, some)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-10)


def test_softplus_is_exact_where_torch_s_own_is_not() -> None:
    value = torch.tensor(25.0, dtype=torch.float64)
    assert softplus(value).item() == pytest.approx(25 + np.log1p(np.exp(-25)), rel=1e-15)
