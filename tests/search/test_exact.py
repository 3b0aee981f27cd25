"""Exact search finds what a full sort finds, whatever the tiles."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.search.exact import top_k
from umpteen.search.ranking import NO_LABEL


def whole_numbers(rows: int, dimension: int, seed: int) -> Tensor:
    """Small whole numbers: inner products are exact in float32 and tie often."""
    return torch.randint(-2, 3, (rows, dimension), generator=torch.Generator().manual_seed(seed)).float()


def by_full_sort(queries: Tensor, labels: Tensor, k: int, excluded: set[tuple[int, int]]) -> list[list[int]]:
    found = []
    for query, scores in enumerate((queries @ labels.T).tolist()):
        rows = [row for row in range(len(labels)) if (query, row) not in excluded]
        rows.sort(key=lambda row: (-scores[row], row))
        found.append((rows + [NO_LABEL] * k)[:k])
    return found


def pairs_matrix(pairs: set[tuple[int, int]], shape: tuple[int, int]) -> csr_array:
    listed = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return csr_array((np.zeros(len(listed), dtype=np.float32), (listed[:, 0], listed[:, 1])), shape=shape)


@settings(max_examples=150, deadline=None)
@given(
    queries=st.integers(1, 7),
    labels=st.integers(1, 40),
    dimension=st.integers(1, 4),
    block=st.sampled_from([1, 3, 256]),
    tile=st.sampled_from([1, 7, 13, 4096]),
    data=st.data(),
)
def test_the_best_k_are_those_of_a_full_sort_with_ties_by_row(
    queries: int, labels: int, dimension: int, block: int, tile: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, labels))
    pair = st.tuples(st.integers(0, queries - 1), st.integers(0, labels - 1))
    excluded = data.draw(st.sets(pair, max_size=60))
    left = whole_numbers(queries, dimension, seed=1)
    right = whole_numbers(labels, dimension, seed=data.draw(st.integers(0, 1000)))
    ranking = top_k(left, right, k, excluding=pairs_matrix(excluded, (queries, labels)), block=block, tile=tile)
    assert ranking.rows.tolist() == by_full_sort(left, right, k, excluded)
    scores = left @ right.T
    for query, rows in enumerate(ranking.rows):
        real = rows != NO_LABEL
        assert np.array_equal(ranking.scores[query][real], scores[query][torch.from_numpy(rows[real]).long()].numpy())
        assert np.all(ranking.scores[query][~real] == -np.inf)


@pytest.mark.parametrize("direction", [1, -1], ids=["rising", "falling"])
def test_labels_sorted_by_score_are_no_special_case(direction: int) -> None:
    labels = direction * torch.arange(1000.0)[:, None]
    ranking = top_k(torch.ones(2, 1), labels, 10, tile=64)
    expected = list(range(999, 989, -1)) if direction == 1 else list(range(10))
    assert ranking.rows.tolist() == [expected, expected]


def test_both_zeros_are_equal() -> None:
    labels = torch.tensor([[-1.0], [1.0], [0.0]])
    assert top_k(torch.tensor([[0.0]]), labels, 3).rows.tolist() == [[0, 1, 2]]


def test_half_precision_vectors_are_multiplied_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 64, generator=generator).bfloat16()
    labels = torch.randn(300, 64, generator=generator).bfloat16()
    exact = top_k(queries.float(), labels.float(), 20)
    assert np.array_equal(top_k(queries, labels, 20).rows, exact.rows)


def test_no_queries_give_an_empty_ranking() -> None:
    assert top_k(torch.empty(0, 2), torch.ones(3, 2), 2).rows.shape == (0, 2)


def test_what_cannot_be_searched_is_refused_by_its_numbers() -> None:
    queries, labels = torch.ones(2, 4), torch.ones(3, 4)
    with pytest.raises(BadInput, match="k is 4 but there are only 3 labels"):
        top_k(queries, labels, 4)
    with pytest.raises(BadInput, match="k is 0"):
        top_k(queries, labels, 0)
    with pytest.raises(BadInput, match="4\\) and label vectors 5 numbers"):
        top_k(queries, torch.ones(3, 5), 1)
    with pytest.raises(BadInput, match=r"\(3, 3\).*2 queries and 3 labels"):
        top_k(queries, labels, 1, excluding=csr_array((3, 3)))
    with pytest.raises(BadInput, match="query row 2 holds NaN"):
        top_k(torch.tensor([[1.0] * 4, [0.0] * 4, [0, 0, float("nan"), 0]]), labels, 1)


@pytest.mark.parametrize("tile", [1, 4, 4096])
def test_hidden_labels_are_returned_to_nobody(tile: int) -> None:
    queries, labels = whole_numbers(5, 3, seed=1), whole_numbers(20, 3, seed=2)
    hidden = np.array([0, 3, 4, 11, 19])
    ranking = top_k(queries, labels, 17, hidden=hidden, tile=tile)
    everywhere = {(query, int(row)) for query in range(5) for row in hidden}
    assert ranking.rows.tolist() == by_full_sort(queries, labels, 17, everywhere)
