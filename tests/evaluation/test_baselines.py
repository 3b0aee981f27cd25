"""The baselines find what they should, and never a filtered pair."""

import numpy as np
import pytest

from evaluation.cases import matrix
from umpteen.data.labels import Relevance, Split
from umpteen.errors import BadInput
from umpteen.evaluation.baselines import LinearOneVsRest, TfidfNeighbours, popularity
from umpteen.evaluation.report import inverse_propensities

TEXTS = ["red fox in the snow", "grey wolf in the snow", "a red car", "a blue car on the road", "ships at sea"]
LABELS: list[set[int]] = [{0, 1}, {0, 2}, {3}, {3, 4}, {5}]


def split(texts: list[str], labels: list[set[int]] | None = None, filtered: list[set[int]] | None = None) -> Split:
    none: list[set[int]] = [set()] * len(texts)
    return Split.of(texts, *(Relevance(matrix(pairs or none, 6)) for pairs in (labels, filtered)))


TRAIN = split(TEXTS, LABELS)


def test_popularity_lists_frequent_labels_first_but_for_filtered_ones() -> None:
    assert popularity(TRAIN, split(["", ""]), 3).rows.tolist() == [[0, 3, 1]] * 2
    without = popularity(TRAIN, split(["", ""], filtered=[{0, 1}, set()]), 3)
    assert without.rows.tolist() == [[3, 2, 4], [0, 3, 1]]
    everything = popularity(TRAIN, split([""], filtered=[{5, 0}]), 6)
    assert everything.rows.tolist() == [[3, 1, 2, 4, -1, -1]]


def test_pairs_that_are_filtered_in_train_teach_nothing() -> None:
    train = split(TEXTS, LABELS, [{0}, {0}, set(), set(), set()])
    assert popularity(train, split([""]), 3).rows.tolist() == [[3, 1, 2]]
    assert TfidfNeighbours(train).rank(split(["a fox in the snow"]), 2).rows.tolist() == [[1, 2]]
    assert LinearOneVsRest(train).rank(split(["a fox in the snow"]), 1).rows.tolist() == [[1]]


def test_neighbours_bring_their_labels() -> None:
    ranking = TfidfNeighbours(TRAIN).rank(split(["a fox in the snow", "a road", "nothing known"]), 3)
    assert ranking.rows[0].tolist() == [0, 1, 2]
    assert ranking.rows[1].tolist() == [3, 4, -1]
    assert ranking.rows[2].tolist() == [-1, -1, -1]
    assert np.all(np.diff(ranking.scores[0]) <= 0)


def test_only_the_nearest_neighbours_vote() -> None:
    known = TfidfNeighbours(TRAIN, neighbours=1)
    assert known.rank(split(["fox in the snow"]), 3).rows.tolist() == [[0, 1, -1]]


def test_neighbours_never_bring_a_filtered_label() -> None:
    ranking = TfidfNeighbours(TRAIN).rank(split(["a fox in the snow"], filtered=[{0}]), 2)
    assert ranking.rows.tolist() == [[1, 2]]


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["red snow", "blue ships", "wolf on the road"]
    known, asked = TfidfNeighbours(TRAIN), split(texts, filtered=[set(), {3}, {0}])
    whole = known.rank(asked, 4)
    monkeypatch.setattr("umpteen.evaluation.baselines._QUERIES_AT_A_TIME", 2)
    parts = known.rank(asked, 4)
    assert np.array_equal(whole.rows, parts.rows) and np.array_equal(whole.scores, parts.scores)


def test_baselines_refuse_what_they_cannot_do() -> None:
    with pytest.raises(BadInput, match="the best 7 were asked of a ranking that is 6 wide"):
        popularity(TRAIN, split([""]), 7)
    with pytest.raises(BadInput, match="no word of two characters"):
        TfidfNeighbours(split(["a", "b"], [{0}, {1}]))


def test_rarer_labels_have_greater_inverse_propensities() -> None:
    inverse = inverse_propensities(np.array([0, 1, 10, 1000]), 10_000)
    assert np.all(np.diff(inverse) < 0) and inverse[-1] > 1
    assert np.array_equal(inverse_propensities(np.array([0, 1]), 1), [1, 1])
