"""A ranking keeps its order through sparse matrices and files, and loses only what it is told to."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csr_array

from umpteen.errors import BadFile, BadInput
from umpteen.search.ranking import Ranking, contains


def ranking() -> Ranking:
    rows = np.array([[2, 0, 3], [1, -1, -1]], dtype=np.int32)
    scores = np.array([[0.5, 0.0, -1.5], [0.25, -np.inf, -np.inf]], dtype=np.float32)
    return Ranking(rows, scores, 4)


def test_a_ranking_comes_back_from_its_file(tmp_path: Path) -> None:
    ranking().save(tmp_path / "predictions.npz")
    matrix = scipy.sparse.load_npz(tmp_path / "predictions.npz")
    assert matrix.shape == (2, 4) and matrix.nnz == 4  # a score of 0 is stored like any other
    again = Ranking.load(tmp_path / "predictions.npz", 3)
    assert np.array_equal(again.rows, ranking().rows) and np.array_equal(again.scores, ranking().scores)


def test_equal_scores_go_by_row_even_in_long_rows() -> None:
    scores = np.zeros((2, 100), dtype=np.float32)
    scores[0, [90, 50]] = 1.0
    found = Ranking.from_csr(csr_array((scores.ravel(), np.tile(np.arange(100), 2), [0, 100, 200]), shape=(2, 100)), 4)
    assert found.rows.tolist() == [[50, 90, 0, 1], [0, 1, 2, 3]]


def test_the_best_of_long_rows_are_those_of_a_full_sort() -> None:
    dense = np.random.default_rng(0).normal(size=(20, 300)).astype(np.float32)
    found = Ranking.from_csr(csr_array(dense), 7)
    assert np.array_equal(found.rows, np.argsort(-dense, axis=1, kind="stable")[:, :7])


def test_labels_behind_a_removed_pair_move_up() -> None:
    pairs = csr_array((np.zeros(2), ([0, 1], [2, 1])), shape=(2, 4))
    less = ranking().without(pairs)
    assert less.rows.tolist() == [[0, 3, -1], [-1, -1, -1]]
    assert less.scores[0].tolist() == [0.0, -1.5, -np.inf]


def test_an_absent_label_is_never_contained() -> None:
    last_label_of_the_query_before = csr_array(([1.0], ([0], [3])), shape=(2, 4))
    assert contains(last_label_of_the_query_before, ranking().rows).tolist() == [[False, False, True], [False] * 3]


def test_head_refuses_more_than_there_is() -> None:
    assert ranking().head(1).rows.tolist() == [[2], [1]]
    with pytest.raises(BadInput, match="4 were asked of a ranking that is 3 wide"):
        ranking().head(4)


def test_a_file_that_holds_no_matrix_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"none\.npz: there is no such file"):
        Ranking.load(tmp_path / "none.npz", 1)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(BadFile, match=r"text\.npz: not a scipy sparse matrix"):
        Ranking.load(tmp_path / "text.npz", 1)
