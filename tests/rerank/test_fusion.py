"""Two scores become one ranking."""

import numpy as np

from umpteen.rerank.ranker import fill_unknown, fuse, head_start, squash
from umpteen.search.ranking import NO_LABEL, Ranking

CHANCE = np.random.default_rng(0)
ROWS = np.stack([CHANCE.permutation(30)[:12] for _ in range(7)]).astype(np.int32)
SCORES = -np.sort(-CHANCE.normal(size=(7, 12)).astype(np.float32), axis=1)
DENSE = Ranking(ROWS, SCORES, 30)
SECOND = CHANCE.random((7, 8)).astype(np.float32)  # of the first 8 only


def test_weight_0_is_the_dense_ranking() -> None:
    fused = fuse(DENSE, SECOND, 0.0)
    np.testing.assert_array_equal(fused.rows, ROWS)
    np.testing.assert_array_equal(fused.scores, SCORES)


def test_weight_1_is_the_rankers_order_and_the_rest_follows_in_dense_order() -> None:
    fused = fuse(DENSE, SECOND, 1.0)
    order = np.argsort(-SECOND, axis=1)
    np.testing.assert_array_equal(fused.rows[:, :8], np.take_along_axis(ROWS[:, :8], order, 1))
    np.testing.assert_array_equal(fused.rows[:, 8:], ROWS[:, 8:])


def test_between_them_scores_are_mixed_and_fall_and_the_rest_stays_behind() -> None:
    fused = fuse(DENSE, SECOND, 0.3)
    np.testing.assert_array_equal(fused.rows[:, 8:], ROWS[:, 8:])
    assert (np.diff(fused.scores, axis=1) <= 0).all()
    mixed = np.sort(0.7 * SCORES[:, :8] + 0.3 * SECOND, axis=1)[:, ::-1]
    np.testing.assert_allclose(fused.scores[:, :8], mixed, atol=1e-6)


def test_missing_labels_stay_last() -> None:
    rows, scores = ROWS.copy(), SCORES.copy()
    rows[2, 5:], scores[2, 5:] = NO_LABEL, -np.inf
    for weight in (0.0, 0.5, 1.0):
        fused = fuse(Ranking(rows, scores, 30), SECOND, weight)
        assert set(fused.rows[2, :5]) == set(rows[2, :5])
        assert (fused.rows[2, 5:] == NO_LABEL).all() and (fused.scores[2, 5:] == -np.inf).all()
        assert not np.isnan(fused.scores).any()


def test_an_unknown_label_scores_as_its_neighbours_do() -> None:
    scores = CHANCE.random((3, 20)).astype(np.float32)
    known = np.ones(scores.shape, dtype=np.bool_)
    known[0, [0, 7, 8, 19]] = False
    known[2] = False
    filled = fill_unknown(scores, known)
    np.testing.assert_array_equal(filled[known], scores[known])
    for place in (0, 7, 8, 19):
        around = slice(max(0, place - 5), place + 6)
        np.testing.assert_allclose(filled[0, place], scores[0, around][known[0, around]].mean(), rtol=1e-6)
    assert (filled[2] == 0).all()


def test_rare_labels_get_a_head_start() -> None:
    np.testing.assert_allclose(head_start(np.array([0, 1, 4, 100]), 0.6), [0.6, 0.6, 0.3, 0.06], rtol=1e-6)
    assert (head_start(np.array([1, 9]), 0.0) == 0).all()


def test_the_margin_of_training_is_certain() -> None:
    margins = np.array([-50, -1, 0, 1, 7], dtype=np.float32)
    np.testing.assert_allclose(squash(margins), [0, np.exp(-4), np.exp(-1), 1, 1], rtol=1e-6)
