"""The arithmetic from measurements to a plan, on costs that can be added up by hand."""

import numpy as np
import pytest
from planning_cases import BASE, GRADIENTS, STATE, VECTOR, calibration

from umpteen.plan.prediction import Sizes, memory, predict, step_memory, step_seconds
from umpteen.plan.workload import EvaluationWork, StepWork, TowerWork

QUERIES = TowerWork(np.array([4, 4, 2, 2]), of_queries=1.0)  # 16 tokens padded in one micro-batch, 12 in two
LABELS = TowerWork(np.full(10, 2))
WORK = StepWork([QUERIES, LABELS], queries=4, labels=10, label_texts=10)
ONE, MANY = Sizes(4, 1000, None), Sizes(4, 8, None)  # micro-batches of each tower


def clocks(sizes: Sizes, **more: float) -> dict[str, float]:
    parts = step_seconds(WORK, calibration(), sizes, **more)
    assert all(part[1] == 2 * part[0] for part in parts.values())  # processor time goes the same way
    return {name: float(part[0]) for name, part in parts.items()}


def test_several_micro_batches_are_encoded_twice() -> None:
    assert clocks(MANY) == {
        "encode_queries": 0.5 + 12,
        "encode_labels": 20,
        "loss": 100,
        "replay": (12 + 20) * (2 + 4),
        "optimizer": 3,
    }


def test_a_single_micro_batch_keeps_its_graph_and_is_not_encoded_again() -> None:
    found = clocks(ONE)
    assert (found["encode_queries"], found["encode_labels"]) == (0.5 + 16 * 2, 20 * 2)
    assert found["replay"] == (16 + 20) * 4


def test_a_sampled_replay_spares_labels_not_queries() -> None:
    assert clocks(MANY, replay_fraction=0.25)["replay"] == (12 + 0.25 * 20) * 6


def test_a_shared_tower_divides_its_time_between_queries_and_labels() -> None:
    shared = StepWork([TowerWork(np.full(8, 2), of_queries=0.25)], queries=2, labels=6, label_texts=6)
    parts = step_seconds(shared, calibration(1), MANY)
    assert (parts["encode_queries"][0], parts["encode_labels"][0]) == (0.5 + 4, 12)


def test_memory_is_that_of_each_phase_in_turn() -> None:
    found = step_memory(WORK, calibration(), MANY)
    always = BASE + STATE
    vectors = (4 + 10) * VECTOR
    assert found["building"] == 500_000
    assert found["encoding"] == always + vectors + 8 * 3
    tile = found["loss"] - always - vectors - 10 * VECTOR
    assert 0 < tile < 2 * 700
    assert found["replay"] == always + vectors + (10 + 4) * VECTOR + 2 * GRADIENTS + 8 * 80
    assert found["optimizer"] == always + 2 * GRADIENTS


def test_graphs_that_are_kept_stand_in_memory_through_the_loss() -> None:
    one, many = (step_memory(WORK, calibration(), sizes) for sizes in (ONE, MANY))
    assert one["loss"] - many["loss"] == (16 + 20) * 50
    waiting = 20 * 50  # the labels' graph, while the queries' goes backward
    gradients = (10 + 4) * VECTOR
    queries_first = BASE + STATE + 14 * VECTOR + gradients + GRADIENTS + waiting + 16 * 80
    labels_then = BASE + STATE + 14 * VECTOR + gradients + 2 * GRADIENTS + 20 * 80
    assert one["replay"] == max(queries_first, labels_then)


def test_labels_that_share_texts_stand_beside_them() -> None:
    twins = StepWork([QUERIES, TowerWork(np.full(8, 2))], queries=4, labels=10, label_texts=8)
    alone, copied = (step_memory(work, calibration(), MANY)["loss"] for work in (WORK, twins))
    assert copied - alone == (10 - 2) * VECTOR  # a copy of each label's vector, two texts fewer


def test_an_evaluation_holds_all_vectors_and_a_save_copies_of_the_weights() -> None:
    evaluation = EvaluationWork(QUERIES, LABELS, all_queries=4, best=3)
    found = memory([[WORK]], [evaluation], calibration(), MANY)
    always = BASE + STATE + 2 * GRADIENTS
    assert found["evaluation"] == always + 14 * VECTOR + 200 + 4 * 3 * 16
    assert found["saving"] == always + 30_000
    assert predict([[WORK]], [evaluation], calibration(), MANY).evaluation[0] == pytest.approx(12 + 20 + 0.4 + 7)


def test_a_step_waits_for_the_slowest_process_and_memory_is_the_largest_ones() -> None:
    small = StepWork([QUERIES, TowerWork(np.full(3, 2))], queries=4, labels=3, label_texts=3)
    long = StepWork([QUERIES, TowerWork(np.full(3, 50))], queries=4, labels=3, label_texts=3)
    both, slow = (predict([works], [], calibration(), ONE) for works in ([small, long], [long]))
    assert both.step.tolist() == slow.step.tolist() and both.peak == slow.peak
    assert predict([[small]], [], calibration(), ONE).peak < both.peak


def test_shares_of_several_batches_are_their_mean() -> None:
    other = StepWork([TowerWork(np.array([2]), of_queries=1.0), LABELS], queries=1, labels=10, label_texts=10)
    found = predict([[WORK], [other]], [], calibration(), MANY)
    assert found.seconds["encode_queries"][0] == pytest.approx((12.5 + (0.5 + 2 * 2)) / 2)
    assert found.evaluation.tolist() == [0, 0]
