"""The doctor's own formulas give what the judge of all objectives gives, on data with every oddity."""

from typing import Any

import numpy as np
import pytest
import torch

from tiny import tiny_transformer
from training.step_cases import (
    FILTERED,
    LABELS,
    OBJECTIVES,
    QUERIES,
    RELEVANT,
    SEED,
    STEP,
    TOWERS,
    WEIGHTS,
    assert_same,
    gradients,
    make_towers,
    naive,
    table,
)
from umpteen.config.settings import ObjectiveConfig
from umpteen.data.labels import Relevance
from umpteen.doctor.naive import naive_loss, softplus
from umpteen.encoders.towers import Towers
from umpteen.training.inputs import TrainingData

SETTINGS: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "decoupled_softmax": {"name": "decoupled_softmax"},
    "soft_top_3": {"name": "soft_top_k", "k": 3},
    "soft_top_positives": {"name": "soft_top_k", "k": "positives"},
    "one_vs_all": {"name": "one_vs_all"},
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"))


def doctors_loss(towers: Towers, relevance: Relevance, **settings: Any) -> float:
    filtered = Relevance.from_lists(FILTERED, len(LABELS))
    data = TrainingData(table(towers.query, QUERIES), table(towers.label, LABELS), relevance, filtered)
    loss = naive_loss(towers, data, ObjectiveConfig(temperature=0.5, **settings), np.random.default_rng([SEED, STEP]))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


@pytest.mark.parametrize("objective", SETTINGS)
@pytest.mark.parametrize(("reduction", "positives"), [("mean", None), ("sum", 1)])
def test_the_doctor_s_formulas_are_the_judge_s(
    objective: str, reduction: str, positives: int | None, start: str
) -> None:
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    towers = make_towers(TOWERS[1], start)
    rows = np.arange(len(QUERIES))
    expected = naive(towers, OBJECTIVES[objective][1], relevance, rows, reduction, positives), gradients(towers)
    found = doctors_loss(towers, relevance, reduction=reduction, positives_per_query=positives, **SETTINGS[objective])
    assert found == pytest.approx(expected[0], rel=1e-10)
    assert_same(gradients(towers), expected[1])


def test_a_shared_transformer_is_encoded_without_padding(start: str) -> None:
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    towers = make_towers("transformer shared", start)
    judge = OBJECTIVES["decoupled_softmax"][1]
    expected = naive(towers, judge, relevance, np.arange(len(QUERIES))), gradients(towers)
    assert doctors_loss(towers, relevance) == pytest.approx(expected[0], rel=1e-10)
    assert_same(gradients(towers), expected[1])


def test_softplus_is_exact_where_torch_s_own_is_not() -> None:
    value = torch.tensor(25.0, dtype=torch.float64)
    assert softplus(value).item() == pytest.approx(25 + np.log1p(np.exp(-25)), rel=1e-15)
