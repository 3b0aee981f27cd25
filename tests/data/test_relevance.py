import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from umpteen.data.labels import Relevance
from umpteen.errors import BadInput

LABELS = 7
lists_of_rows = st.lists(st.lists(st.integers(0, LABELS - 1), max_size=6), max_size=5)


def as_lists(relevance: Relevance) -> list[list[int]]:
    return [relevance.of(query).tolist() for query in range(len(relevance))]


@settings(deadline=None)
@given(lists_of_rows)
def test_label_rows_are_sorted_and_never_repeat(rows: list[list[int]]) -> None:
    relevance = Relevance.from_lists(rows, LABELS)
    assert as_lists(relevance) == [sorted(set(row)) for row in rows]
    assert relevance.matrix.has_canonical_format and relevance.matrix.dtype == np.float32
    assert relevance.labels == LABELS and not relevance.graded


@settings(deadline=None)
@given(lists_of_rows)
def test_taking_and_stacking_agree_with_lists(rows: list[list[int]]) -> None:
    relevance = Relevance.from_lists(rows, LABELS)
    order = np.random.default_rng(0).permutation(len(rows))
    assert as_lists(relevance.take(order)) == [sorted(set(rows[query])) for query in order]
    assert as_lists(relevance.stack(relevance)) == as_lists(relevance) * 2


def test_a_pair_given_twice_keeps_its_greater_weight() -> None:
    relevance = Relevance.from_lists([[3, 1, 3], [3]], LABELS, weights=[[0.5, 1, 2], [0.25]])
    assert relevance.of(0).tolist() == [1, 3]
    assert relevance.weights_of(0).tolist() == [1, 2]
    assert relevance.weights_of(1).tolist() == [0.25]
    assert relevance.graded


def test_a_pair_given_twice_is_no_sum_whatever_the_type_of_its_weights() -> None:
    given = csr_array((np.array([1, 1, 3]), np.array([2, 2, 2]), np.array([0, 2, 3])), shape=(2, LABELS))
    assert Relevance(given).matrix.data.tolist() == [1, 3]


def test_a_weight_of_zero_stays_a_relevant_pair() -> None:
    relevance = Relevance.from_lists([[2], [1, 4]], LABELS, weights=[[0], [1, 0]])
    assert as_lists(relevance.take([1, 0])) == [[1, 4], [2]]
    assert as_lists(relevance.stack(relevance.take([0]))) == [[2], [1, 4], [2]]
    assert relevance.label_counts().tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert relevance.graded


def test_label_counts_count_queries_and_reach_the_last_label() -> None:
    counts = Relevance.from_lists([[0, 1], [1], []], 4).label_counts()
    assert counts.tolist() == [1, 2, 0, 0] and counts.dtype == np.int64


def test_an_empty_relevance_has_queries_and_labels_but_no_pairs() -> None:
    empty = Relevance.empty(3, LABELS)
    assert as_lists(empty) == [[], [], []] and empty.labels == LABELS and empty.pairs == 0
    assert empty == Relevance.from_lists([[], [], []], LABELS)
    assert len(empty.take([])) == 0


@pytest.mark.parametrize("wrong", [-1, LABELS])
def test_a_label_row_out_of_range_is_refused(wrong: int) -> None:
    with pytest.raises(BadInput, match=f"label row {wrong} is out of range: there are 7 labels, rows 0 to 6"):
        Relevance.from_lists([[0], [wrong]], LABELS)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_an_impossible_weight_is_refused_and_its_place_is_named(weight: float) -> None:
    with pytest.raises(BadInput, match="query 1, label row 4"):
        Relevance.from_lists([[0, 1], [4]], LABELS, weights=[[1, 1], [weight]])


def test_weights_must_have_the_shape_of_the_rows() -> None:
    with pytest.raises(BadInput, match="differ in shape"):
        Relevance.from_lists([[0, 1]], LABELS, weights=[[1]])


def test_relevance_over_other_labels_cannot_be_stacked() -> None:
    with pytest.raises(BadInput, match="7 and over 8"):
        Relevance.empty(1, 7).stack(Relevance.empty(1, 8))


def test_equality_and_fingerprint_follow_the_content() -> None:
    relevance = Relevance.from_lists([[0], [1]], LABELS)
    assert relevance == Relevance(csr_array(np.eye(2, LABELS, dtype=np.int8)))
    others = [Relevance.from_lists([[0], [2]], LABELS), Relevance.from_lists([[0], [1]], 8), relevance.take([1, 0])]
    others.append(Relevance.from_lists([[0], [1]], LABELS, weights=[[1], [2]]))
    for other in others:
        assert relevance != other and relevance.fingerprint() != other.fingerprint()


def test_a_label_as_a_query_has_the_labels_that_its_queries_have() -> None:
    relevance = Relevance.from_lists([[0, 1], [0, 1], [0], [1, 2]], 4, [[1, 1], [2, 1], [1], [1, 0]])
    # Of the three queries of 0, two have 1, too; of those of 1, two have 0; 2 is given with weight 0; 3 has no query.
    expected = [[1, 2 / 3, 0, 0], [2 / 3, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(relevance.of_labels(0.1).matrix.toarray(), expected, rtol=1e-6)
    np.testing.assert_array_equal(relevance.of_labels(0.9).matrix.toarray(), np.eye(4))
