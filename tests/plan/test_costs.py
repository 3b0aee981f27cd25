"""Costs lie on straight lines through what was measured."""

import numpy as np

from umpteen.plan.plan import largest_micro_batch, on_line


def at(points: list[tuple[float, float]], size: float) -> float:
    return float(on_line([(where, np.array([cost])) for where, cost in points], size)[0])


def test_a_line_goes_through_both_points_and_on() -> None:
    assert [at([(10, 5.0), (20, 7.0)], size) for size in (10, 15, 20, 40)] == [5, 6, 7, 11]


def test_a_single_point_is_in_proportion_to_the_size() -> None:
    assert at([(10, 5.0)], 30) == 15


def test_a_line_never_falls_with_the_size_nor_below_nothing() -> None:
    assert at([(10, 9.0), (20, 8.0)], 40) == 16
    assert at([(10, 1.0), (20, 8.0)], 5) == 0


def test_the_largest_micro_batch_is_counted_with_its_padding() -> None:
    queries, labels = np.array([4, 3, 3]), np.array([2, 2, 2, 2, 2])
    assert largest_micro_batch(queries, labels, token_budget=8) == 8
    assert largest_micro_batch(queries, labels, token_budget=1) == 4  # one text may exceed it
    assert largest_micro_batch(queries, labels, token_budget=1000) == 4 * 3
    assert largest_micro_batch(np.array([0, 0]), np.array([0]), token_budget=5) == 2  # as if one token
