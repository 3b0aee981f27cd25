import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umpteen.data.labels import EpochSampler, Relevance, draw_positives
from umpteen.errors import BadInput

EVERYWHERE = Relevance.from_lists([[0]] * 10, 1)


def epoch_of(sampler: EpochSampler, epoch: int) -> list[list[int]]:
    return [sampler.rows(epoch, index).tolist() for index in range(sampler.batches_per_epoch)]


@given(st.integers(1, 12), st.integers(0, 5))
def test_an_epoch_holds_every_query_once_and_only_its_last_batch_is_smaller(batch_size: int, epoch: int) -> None:
    batches = epoch_of(EpochSampler(EVERYWHERE, batch_size, seed=1), epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(10))
    assert all(len(batch) == min(batch_size, 10) for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size


def test_a_batch_can_be_asked_for_at_any_time_in_any_order() -> None:
    want = epoch_of(EpochSampler(EVERYWHERE, 3, seed=5), 2)
    sampler = EpochSampler(EVERYWHERE, 3, seed=5)
    sampler.rows(7, 1)
    assert [sampler.rows(2, index).tolist() for index in (3, 0, 2, 1)] == [want[index] for index in (3, 0, 2, 1)]


def test_seeds_and_epochs_shuffle_differently() -> None:
    many = Relevance.from_lists([[0]] * 50, 1)
    orders = {str(epoch_of(EpochSampler(many, 50, seed=seed), epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_changing_a_batch_does_not_change_the_next_one_asked_for() -> None:
    sampler = EpochSampler(EVERYWHERE, 10, seed=0)
    want = sampler.rows(0, 0).tolist()
    sampler.rows(0, 0)[:] = -1
    assert sampler.rows(0, 0).tolist() == want


def test_queries_without_a_label_to_pull_are_left_out_unless_asked_for() -> None:
    relevance = Relevance.from_lists([[0], [], [1, 0], [1]], 2, [[1.0], [], [0.0, 0.5], [0.0]])
    sampler = EpochSampler(relevance, 10, seed=0)
    assert sorted(sampler.rows(0, 0).tolist()) == [0, 2]
    assert sorted(EpochSampler(relevance, 10, seed=0, keep_unlabelled=True).rows(0, 0).tolist()) == [0, 1, 2, 3]


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(BadInput, match="none of the 3 training queries"):
        EpochSampler(Relevance.empty(3, 2), 2, seed=0)


def test_all_positives_of_some_weight_are_pulled_in_order() -> None:
    relevance = Relevance.from_lists([[2, 0], [], [1], [0, 1, 2]], 3, [[0.5, 1.0], [], [0.0], [1.0, 0.0, 2.0]])
    query, label, weights = draw_positives(relevance, np.array([3, 1, 2, 0]), None, np.random.default_rng(0))
    assert query.tolist() == [0, 0, 3, 3]
    assert label.tolist() == [0, 2, 0, 2]
    assert weights.tolist() == [1.0, 2.0, 1.0, 0.5]
    assert [array.dtype.name for array in (query, label, weights)] == ["int64", "int64", "float32"]


@given(st.lists(st.sets(st.integers(0, 8)), min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 9))
def test_a_limit_keeps_that_many_distinct_positives_of_each_query(lists: list[set[int]], limit: int, seed: int) -> None:
    relevance = Relevance.from_lists([sorted(labels) for labels in lists], 9)
    rows = np.arange(len(lists))[::-1].copy()
    query, label, _ = draw_positives(relevance, rows, limit, np.random.default_rng(seed))
    again = draw_positives(relevance, rows, limit, np.random.default_rng(seed))
    assert again[1].tolist() == label.tolist()
    for position, row in enumerate(rows):
        drawn = label[query == position].tolist()
        assert set(drawn) <= lists[row]
        assert len(set(drawn)) == len(drawn) == min(limit, len(lists[row]))


def test_positives_are_drawn_uniformly() -> None:
    relevance = Relevance.from_lists([[0], [0, 1, 2, 3]], 4)
    rng = np.random.default_rng(0)
    _, label, _ = draw_positives(relevance, np.full(20_000, 1), 2, rng)
    share = np.bincount(label) / len(label)
    assert np.abs(share - 0.25).max() < 0.01


def test_no_queries_and_no_positives_give_empty_arrays() -> None:
    for rows in (np.array([], dtype=np.int64), np.array([1, 0])):
        query, label, weights = draw_positives(Relevance.empty(2, 3), rows, 1, np.random.default_rng(0))
        assert len(query) == len(label) == len(weights) == 0
