"""Corrected texts that vote: against plain loops, within a text's range of scores, and nothing for texts far away."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.rerank.memory import LEAST, Corrections, corrected, shifts
from umpteen.search.index import product
from umpteen.search.ranking import NO_LABEL, Ranking

EXAMPLES, LABELS, QUERIES = 11, 9, 6


@pytest.fixture
def corrections() -> Corrections:
    chance = np.random.default_rng(0)
    said = csr_array(chance.choice([0, 0, 0, 1, -1], (EXAMPLES, LABELS)).astype(np.float32))
    made = Corrections.of(torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(1)), said)
    return Corrections(made.vectors, made.said, temperature=0.3, weight=1.5)


@pytest.fixture
def queries() -> torch.Tensor:
    return 3 * torch.randn(QUERIES, 4, generator=torch.Generator().manual_seed(2))


def by_loops(corrections: Corrections, queries: torch.Tensor) -> NDArray[np.float64]:
    """Every example, one after the other."""
    said, votes = corrections.said.toarray(), np.zeros((len(queries), LABELS))
    for query, vector in enumerate(queries.double()):
        for example, other in enumerate(torch.from_numpy(corrections.vectors).double()):
            cosine = float(vector @ other / vector.norm() / other.norm())
            near = np.exp((cosine - 1) / corrections.temperature)
            if near >= LEAST:
                votes[query] += corrections.weight * near * said[example]
    return np.clip(votes, -1, 1)


def test_votes_are_the_sum_of_what_near_examples_say(corrections: Corrections, queries: torch.Tensor) -> None:
    expected = by_loops(corrections, queries)
    assert ((expected != 0) & (abs(expected) < 1)).any() and (abs(expected) == 1).any()
    np.testing.assert_allclose(corrections.votes(queries).toarray(), expected, atol=1e-5)


def test_blocks_of_queries_have_the_same_votes(
    corrections: Corrections, queries: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, sizes = corrections.votes(queries).toarray(), list[int]()
    monkeypatch.setattr("umpteen.rerank.memory.PAIRS_AT_A_TIME", 4 * EXAMPLES)
    monkeypatch.setattr("umpteen.rerank.memory.product", lambda block, _: sizes.append(len(block)) or product(block, _))
    np.testing.assert_allclose(corrections.votes(queries).toarray(), whole, atol=1e-6)
    assert max(sizes) == 4 and sum(sizes) == QUERIES and corrections.votes(queries[:0]).shape == (0, LABELS)


def test_pairs_that_are_excluded_have_no_votes(corrections: Corrections, queries: torch.Tensor) -> None:
    everything = csr_array((np.zeros(QUERIES * LABELS), np.tile(np.arange(LABELS), QUERIES),
                            np.arange(QUERIES + 1) * LABELS), shape=(QUERIES, LABELS))  # fmt: skip
    assert corrections.votes(queries).nnz and corrections.votes(queries, everything).nnz == 0


def test_shifts_carry_scores_to_the_ends_of_their_range() -> None:
    ranking = Ranking(
        np.array([[3, 1, 0, 2], [0, 1, 2, NO_LABEL]], np.int32),
        np.array([[0.8, 0.5, 0.2, -0.1], [7, 3, 2, -np.inf]], np.float32),
        4,
    )
    votes = csr_array(np.array([[1, -0.5, 0, -1], [0, 0.5, -1, 1]], np.float32))
    found = ranking.scores[:, :3] + shifts(ranking, votes)[:, :3]
    # From −0.1 (the least) to 1, and from 0 to 7 (the best).
    np.testing.assert_allclose(found, [[-0.1, 0.5 - 0.5 * 0.6, 1], [7, 5, 0]], atol=1e-6)


def test_a_missing_label_joins_and_is_first_and_a_wrong_one_is_last() -> None:
    ranking = Ranking(
        np.array([[3, 1, 0], [2, 1, 0]], np.int32), np.array([[1, 0.5, 0.2], [0.9, 0.8, 0.7]], np.float32), 6
    )
    votes = csr_array(np.array([[0, 0, 0, -1, 1, 0.5], [0, 0, 0, 0, 0, 0]], np.float32))
    asked = []

    def score(rows: NDArray[np.int32]) -> NDArray[np.float32]:
        asked.append(rows.tolist())
        return np.where(rows == NO_LABEL, -np.inf, 0.1).astype(np.float32)

    found = corrected(ranking, votes, score)
    assert asked == [[[4, 5], [NO_LABEL, NO_LABEL]]]
    assert found.rows.tolist() == [[4, 5, 1, 0, 3], [2, 1, 0, NO_LABEL, NO_LABEL]]
    np.testing.assert_array_equal(found.scores[1, :3], ranking.scores[1])  # nobody voted: to the bit
    assert votes.toarray()[0].tolist() == [0, 0, 0, -1, 1, 0.5]


def test_of_equal_scores_the_label_with_more_votes_comes_first() -> None:
    ranking = Ranking(np.array([[0, 1, 2]], np.int32), np.array([[1, 0.6, 0]], np.float32), 3)
    found = corrected(ranking, csr_array(np.array([[-1, 1, 0]], np.float32)), lambda rows: np.full(rows.shape, -np.inf))
    assert found.rows[0, :3].tolist() == [1, 2, 0] and found.scores[0, :3].tolist() == [1, 0, 0]
