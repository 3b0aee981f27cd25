"""Deciles hold equally many labels and account for every hit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.cases import matrix, random_case
from umpteen.evaluation.report import evaluate, frequency_deciles


@settings(max_examples=50, deadline=None)
@given(labels=st.integers(5, 60), seed=st.integers(0, 1000))
def test_contributions_add_up_to_precision(labels: int, seed: int) -> None:
    case = random_case(9, labels, 5, seed)
    report = evaluate(
        case.ranking,
        matrix(case.truth, labels),
        label_counts=case.label_counts,
        train_queries=50,
        ks=(1, 5),
        bootstrap=0,
    )
    for metric in ("P@1", "P@5"):
        assert sum(decile[metric] for decile in report.deciles) == pytest.approx(report.metrics[metric])
    assert sum(decile["labels"] for decile in report.deciles) == labels


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=47))
def test_deciles_are_of_equal_size_and_the_first_is_the_most_frequent(counts: list[int]) -> None:
    deciles = frequency_deciles(np.array(counts))
    sizes = np.bincount(deciles, minlength=10)
    assert sizes.max() - sizes.min() <= 1
    by_decile = [counts[row] for row in np.argsort(deciles, kind="stable")]
    assert all(
        max(by_decile[start:], default=0) <= min(by_decile[:start], default=5) for start in np.cumsum(sizes).tolist()
    )
