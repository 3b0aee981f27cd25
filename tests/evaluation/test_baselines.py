"""The baselines find what they should, and never an excluded pair."""

import numpy as np
import pytest

from evaluation.cases import matrix
from umpteen.errors import BadInput
from umpteen.evaluation.baselines import TfidfNeighbours, popularity
from umpteen.evaluation.report import inverse_propensities

TRAIN = ["red fox in the snow", "grey wolf in the snow", "a red car", "a blue car on the road", "ships at sea"]
LABELS = [{0, 1}, {0, 2}, {3}, {3, 4}, {5}]


def test_popularity_lists_frequent_labels_first_but_for_excluded_ones() -> None:
    train = matrix(LABELS, 6)
    assert popularity(train, 2, 3).rows.tolist() == [[0, 3, 1]] * 2
    without = popularity(train, 2, 3, excluding=matrix([{0, 1}, set()], 6))
    assert without.rows.tolist() == [[3, 2, 4], [0, 3, 1]]
    everything = popularity(train, 1, 6, excluding=matrix([{5, 0}], 6))
    assert everything.rows.tolist() == [[3, 1, 2, 4, -1, -1]]


def test_neighbours_bring_their_labels() -> None:
    train = matrix(LABELS, 6)
    ranking = TfidfNeighbours(TRAIN, train).rank(["a fox in the snow", "a road", "nothing known"], 3)
    assert ranking.rows[0].tolist() == [0, 1, 2]
    assert ranking.rows[1].tolist() == [3, 4, -1]
    assert ranking.rows[2].tolist() == [-1, -1, -1]
    assert np.all(np.diff(ranking.scores[0]) <= 0)


def test_only_the_nearest_neighbours_vote() -> None:
    known = TfidfNeighbours(TRAIN, matrix(LABELS, 6), neighbours=1)
    assert known.rank(["fox in the snow"], 3).rows.tolist() == [[0, 1, -1]]


def test_neighbours_never_bring_an_excluded_label() -> None:
    ranking = TfidfNeighbours(TRAIN, matrix(LABELS, 6)).rank(["a fox in the snow"], 2, excluding=matrix([{0}], 6))
    assert ranking.rows.tolist() == [[1, 2]]


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known, texts = TfidfNeighbours(TRAIN, matrix(LABELS, 6)), ["red snow", "blue ships", "wolf on the road"]
    whole = known.rank(texts, 4)
    monkeypatch.setattr("umpteen.evaluation.baselines._QUERIES_AT_A_TIME", 2)
    parts = known.rank(texts, 4)
    assert np.array_equal(whole.rows, parts.rows) and np.array_equal(whole.scores, parts.scores)


def test_baselines_refuse_what_they_cannot_do() -> None:
    with pytest.raises(BadInput, match="k is 7; ask for 1 to 6"):
        popularity(matrix(LABELS, 6), 1, 7)
    with pytest.raises(BadInput, match="no word of two characters"):
        TfidfNeighbours(["a", "b"], matrix([{0}, {1}], 6))


def test_rarer_labels_have_greater_inverse_propensities() -> None:
    inverse = inverse_propensities(np.array([0, 1, 10, 1000]), 10_000)
    assert np.all(np.diff(inverse) < 0) and inverse[-1] > 1
    assert np.array_equal(inverse_propensities(np.array([0, 1]), 1), [1, 1])
