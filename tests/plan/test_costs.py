"""Costs lie on straight lines through what was measured."""

import numpy as np
import pytest

from umpteen.plan.measure import Line, MicroBatchCost, TowerCosts, packed, unpacked


def constant(value: float) -> MicroBatchCost:
    return MicroBatchCost(*(np.array([value, value]) for _ in range(3)), value, value, value)


def test_a_line_goes_through_both_points_and_on() -> None:
    line = Line([(10, np.array([5.0])), (20, np.array([7.0]))])
    assert [float(line.at(size)[0]) for size in (10, 15, 20, 40)] == [5, 6, 7, 11]


def test_a_single_point_is_in_proportion_to_the_size() -> None:
    assert float(Line([(10, np.array([5.0]))]).at(30)[0]) == 15


def test_a_line_never_falls_with_the_size_nor_below_nothing() -> None:
    noisy = Line([(10, np.array([9.0])), (20, np.array([8.0]))])
    assert float(noisy.at(40)[0]) == 16
    steep = Line([(10, np.array([1.0])), (20, np.array([8.0]))])
    assert float(steep.at(5)[0]) == 0


def test_between_two_lengths_a_micro_batch_costs_between_theirs() -> None:
    lines = [(4, Line([(100, packed(constant(10)))])), (8, Line([(100, packed(constant(20)))]))]
    tower = TowerCosts(lines, 0)
    costs = [tower.of(texts, longest) for texts, longest in ((50, 2), (25, 4), (20, 5), (12.5, 8), (10, 10))]
    assert [cost.replay_bytes for cost in costs] == pytest.approx([10, 10, 12.5, 20, 20])


def test_texts_without_tokens_cost_as_much_as_one_token() -> None:
    tower = TowerCosts([(1, Line([(1, packed(constant(3)))]))], 0)
    assert tower.of(5, 0).clock == tower.of(5, 1).clock > 0


def test_packing_a_cost_loses_nothing() -> None:
    cost = MicroBatchCost(np.array([1.0, 2]), np.array([3.0, 4]), np.array([5.0, 6]), 7, 8, 9)
    assert packed(unpacked(packed(cost))).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
