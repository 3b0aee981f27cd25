"""Targets: which pairs count, and how terms become one number."""

import pytest
import torch
from problems import pairs

from umpteen.errors import BadInput
from umpteen.objectives import Targets

PULLED = [(0, 4), (0, 5), (2, 1), (2, 1)]
TERMS = torch.tensor([1.0, 3.0, 10.0, 20.0])


def targets(**settings: object) -> Targets:
    return Targets(**{"pulled": pairs(PULLED), "relevant": pairs([*PULLED, (1, 0)]), "queries": 4, **settings})  # type: ignore[arg-type]


def test_the_mean_is_over_pulled_pairs_then_over_all_queries_of_the_batch() -> None:
    assert targets().mean(TERMS) == (2 + 15) / 4


def test_the_sum_is_over_pulled_pairs_and_divided_by_the_queries() -> None:
    assert targets(reduction="sum").mean(TERMS) == 34 / 4


def test_the_scale_multiplies_a_querys_sum_and_leaves_the_mean_alone() -> None:
    scale = torch.tensor([2.0, 9.0, 0.5, 9.0])
    assert targets(reduction="sum", scale=scale).mean(TERMS) == (2 * 4 + 0.5 * 30) / 4
    assert targets(scale=scale).mean(TERMS) == targets().mean(TERMS)


def test_weights_multiply_terms_and_divide_the_mean() -> None:
    weights = torch.tensor([1.0, 3.0, 2.0, 2.0])
    assert targets(weights=weights).mean(TERMS) == (10 / 4 + 15) / 4
    assert targets(weights=weights, reduction="sum").mean(TERMS) == (10 + 60) / 4


def test_a_pair_of_weight_0_is_relevant_but_not_pulled() -> None:
    rest = targets(weights=torch.tensor([0.0, 3.0, 2.0, 0.0]))
    assert rest.pulled.query.tolist() == [0, 2] and rest.pulled.label.tolist() == [5, 1]
    assert len(rest.relevant.query) == 5


def test_filtered_pairs_are_neither_pulled_nor_relevant() -> None:
    rest = targets(weights=torch.tensor([1.0, 2.0, 3.0, 4.0])).without(pairs([(2, 1), (1, 0), (0, 9)]))
    assert rest.pulled.label.tolist() == rest.relevant.label.tolist() == [4, 5]
    assert rest.weights is not None and rest.weights.tolist() == [1, 2]
    assert targets().without(None).pulled.label.tolist() == [4, 5, 1, 1]


def test_labels_are_counted_once_for_each_query() -> None:
    assert targets().relevant.per_query(4).tolist() == [2, 1, 1, 0]
    assert pairs([]).per_query(2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "median"}, "median"),
        ({"queries": 2}, "outside the batch"),
        ({"relevant": pairs(PULLED[:2])}, "missing among the relevant"),
        ({"weights": torch.ones(3)}, "3 weights for 4"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "negative"),
        ({"weights": torch.tensor([1.0, torch.nan, 1.0, 1.0])}, "not a number"),
        ({"scale": torch.ones(3)}, "scale has shape"),
    ],
)
def test_targets_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        targets(**settings)
