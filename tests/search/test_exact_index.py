"""Exact search over labels that change finds what a full sort of the current labels finds, for one query or many."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search.index_cases import Truth, add, change, clustered, remove, scores_are_inner_products, with_twins
from umpteen.errors import BadInput
from umpteen.search.index import ExactIndex, LabelIndex, LiveVectors, best_of_both
from umpteen.search.ranking import NO_LABEL


def whole_numbers(rows: int, dimension: int, seed: int) -> torch.Tensor:
    """Small whole numbers: inner products are exact in float32 and tie often."""
    return torch.randint(-2, 3, (rows, dimension), generator=torch.Generator().manual_seed(seed)).float()


@settings(max_examples=80, deadline=None)
@given(
    queries=st.sampled_from([1, 2, 33]),
    labels=st.sampled_from([1, 7, 300, 1500]),
    k=st.integers(1, 9),
    seed=st.integers(0, 99),
    halves=st.booleans(),
    data=st.data(),
)
def test_any_course_of_changes_leaves_what_a_full_sort_finds(
    queries: int, labels: int, k: int, seed: int, halves: bool, data: st.DataObject
) -> None:
    base = whole_numbers(labels, 3, seed)
    index, truth = ExactIndex(LiveVectors(base.half() if halves else base)), Truth(base)
    for step in range(data.draw(st.integers(0, 4))):
        there = sorted(truth.vectors)
        if data.draw(st.booleans()) and len(there) > 1:
            gone = data.draw(st.lists(st.sampled_from(there), max_size=min(5, len(there) - 1), unique=True))
            for side in (index, truth):
                remove(side, np.array(gone, dtype=np.int64))
        else:
            rows = data.draw(st.lists(st.integers(0, truth.rows + 3), min_size=1, max_size=6, unique=True))
            vectors = whole_numbers(len(rows), 3, seed + step + 1).numpy()
            for side in (index, truth):
                add(side, np.array(rows), vectors)
    asked = whole_numbers(queries, 3, seed + 50)
    found = index.search(asked, k)
    assert found.rows.tolist() == truth.search(asked, k)
    assert found.labels == truth.rows
    scores_are_inner_products(found, asked, truth)
    if queries < 33:  # a few are numpy's where nobody has loaded torch
        with pytest.MonkeyPatch.context() as patch:
            patch.delitem(sys.modules, "torch")
            by_numpy = index.search(asked.numpy(), k)
        np.testing.assert_array_equal(by_numpy.rows, found.rows)
        np.testing.assert_array_equal(by_numpy.scores, found.scores)


def test_stretched_and_twin_vectors_are_no_special_case() -> None:
    base = with_twins(clustered(800, 1, lengths=0.7))
    index, truth = ExactIndex(LiveVectors(base)), Truth(base)
    change(index, truth, lengths=0.7)
    queries = clustered(50, 2, lengths=0.3)
    expected = truth.search(queries, 10)
    alone = [index.search(query[None], 10).rows[0].tolist() for query in queries]
    together = index.search(queries, 10)
    scores_are_inner_products(together, queries, truth)
    # Rounding may swap twins; which vectors are found it cannot change.
    for other in (together.rows.tolist(), alone):
        for rows, right in zip(other, expected, strict=True):
            found = sorted(truth.vectors[row].tolist() for row in rows)
            assert found == sorted(truth.vectors[row].tolist() for row in right)


def test_an_index_of_nothing_finds_nothing_and_grows() -> None:
    index: LabelIndex = ExactIndex(LiveVectors(torch.empty(0, 3)))
    assert index.search(torch.ones(2, 3), 2).rows.tolist() == [[NO_LABEL] * 2] * 2
    add(index, np.array([1]), np.ones((1, 3), dtype=np.float32))
    assert index.search(torch.ones(1, 3), 2).rows.tolist() == [[1, NO_LABEL]]
    assert index.search(torch.ones(1, 3), 2).labels == 2


def test_a_removed_row_comes_back_with_the_vector_it_is_given() -> None:
    base = torch.eye(3)
    index = ExactIndex(LiveVectors(base, np.array([True, False, True])))
    assert index.search(torch.ones(1, 3), 3).rows.tolist() == [[0, 2, NO_LABEL]]
    add(index, np.array([1]), base[1:2].numpy())
    add(index, np.array([2]), 2 * base[2:3].numpy())
    assert index.search(torch.ones(1, 3), 3).rows.tolist() == [[2, 0, 1]]


def test_a_search_under_way_is_not_disturbed_by_a_change() -> None:
    index = ExactIndex(LiveVectors(torch.eye(3)))
    before = index.labels
    remove(index, np.array([0, 1]))
    add(index, np.array([3]), np.ones((1, 3), dtype=np.float32))
    assert before.active.tolist() == [True] * 3 and index.labels.active.tolist() == [False, False, True, True]


def test_what_cannot_be_searched_is_refused() -> None:
    index = ExactIndex(LiveVectors(torch.eye(3)))
    with pytest.raises(BadInput, match="query row 1 holds NaN"):
        index.search(torch.tensor([[1.0, 0, 0], [float("nan"), 0, 0]]), 1)
    with pytest.raises(BadInput, match=r"\(1, 4\).*3 numbers"):
        index.search(torch.ones(1, 4), 1)
    with pytest.raises(BadInput, match="k is 0"):
        index.search(torch.ones(1, 3), 0)
    assert index.search(torch.ones(1, 3), 3).rows.tolist() == [[0, 1, 2]]


def test_candidates_are_put_in_order_and_those_that_are_none_last() -> None:
    rows = np.array([[4, 2, NO_LABEL, 1]])
    scores = np.array([[1, 1, 9, 0]], dtype=np.float32)
    none = np.empty(0, dtype=np.int64), (rows[:, :0], scores[:, :0])
    best = best_of_both((rows, scores), *none, 5, 9)
    assert best.rows.tolist() == [[2, 4, 1, NO_LABEL, NO_LABEL]]
    assert best.scores.tolist() == [[1, 1, 0, -np.inf, -np.inf]]
    assert best_of_both((rows, scores), *none, 2, 9).rows.tolist() == [[2, 4]]
