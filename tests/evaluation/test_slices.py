"""Deciles hold equally many labels and account for every hit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.cases import matrix, random_case, ranked
from umpteen.evaluation.report import evaluate, precision_by_decile


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
    labels = len(counts)
    deciles = precision_by_decile(ranked([[0]], labels), matrix([{0}], labels), np.array(counts), (1,))
    sizes = [decile["labels"] for decile in deciles]
    assert len(sizes) == 10 and sum(sizes) == labels and max(sizes) - min(sizes) <= 1
    there = [(decile["most_queries"], decile["fewest_queries"]) for decile in deciles if decile["labels"]]
    assert there[0][0] == max(counts) and there[-1][1] == min(counts)
    assert all(fewest >= most for (_, fewest), (most, _) in pairwise(there))
