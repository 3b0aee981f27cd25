"""The arithmetic from measurements to a plan, on costs that can be added up by hand."""

import pytest
from planning_cases import ALWAYS, GRADIENTS, VECTOR, costs, work

from umpteen.plan.plan import Sizes, predict

SIZES = Sizes(8, 8, 4)


def test_a_run_that_was_measured_whole_takes_what_was_measured() -> None:
    found = predict(costs(), work(), SIZES)
    assert all(seconds.tolist() == [3, 6] for seconds in found.seconds.values())
    assert found.step.tolist() == [15, 30]


def test_processes_share_texts_and_scores_but_each_updates_all_weights() -> None:
    found = predict(costs(), work(processes=2), SIZES).seconds
    assert {part: float(seconds[0]) for part, seconds in found.items()} == {
        "encode_queries": 2,
        "encode_labels": 2,
        "loss": pytest.approx(3 - (3 - 2) / (1 - 0.25) * 0.5),  # scores grow with the square of the part
        "replay": 2,
        "optimizer": 3,
    }


def test_memory_is_that_of_each_phase_in_turn() -> None:
    found = predict(costs(), work(), SIZES).memory
    vectors = (8 + 10) * VECTOR
    assert found["encoding"] == ALWAYS + vectors + 700
    assert found["loss"] == ALWAYS + 2 * vectors + 700
    assert found["replay"] == ALWAYS + 2 * vectors + 700
    assert found["optimizer"] == ALWAYS + 700


def test_a_smaller_token_budget_or_tile_needs_less() -> None:
    half = predict(costs(), work(), Sizes(8, 4, 4)).memory
    assert half["replay"] == ALWAYS + 2 * (8 + 10) * VECTOR + 500
    numbers = VECTOR // 4
    narrow = predict(costs(), work(), Sizes(8, 8, 2)).memory["loss"]
    assert narrow == ALWAYS + 2 * (8 + 10) * VECTOR + int(700 * (2 + numbers) / (4 + numbers))


def test_labels_are_shared_by_processes_and_the_batch_is_not() -> None:
    one, two = (predict(costs(), work(processes=processes), SIZES).memory["replay"] for processes in (1, 2))
    assert one - two == 2 * 5 * VECTOR


def test_an_evaluation_holds_all_vectors_and_a_save_copies_of_the_weights() -> None:
    found = predict(costs(), work(), SIZES)
    assert found.memory["evaluation"] == ALWAYS + GRADIENTS + 14 * VECTOR + 900
    assert found.memory["saving"] == ALWAYS + GRADIENTS + 30_000
    assert found.evaluation == 7.5  # all labels, half as many queries as a step, search, report
    assert predict(costs(), work(processes=2), SIZES).evaluation == 5


def test_a_bank_is_kept_while_all_labels_are_encoded_for_an_evaluation() -> None:
    half = costs().parts[-1]._replace(encoded=0.5)
    plain, bank = costs(), costs()._replace(parts=[costs().parts[0], half], kept_bytes=VECTOR)
    found, usual = predict(bank, work(), SIZES), predict(plain, work(), SIZES)
    assert found.memory["evaluation"] - usual.memory["evaluation"] == 10 * VECTOR
    assert found.memory["saving"] - usual.memory["saving"] == 10 * VECTOR
    assert found.evaluation - usual.evaluation == 3  # the labels that a step leaves out
    assert found.memory["loss"] == usual.memory["loss"] and found.step.tolist() == usual.step.tolist()


def test_without_validation_there_is_nothing_to_evaluate() -> None:
    found = predict(costs(), work(evaluated=0), SIZES)
    assert found.evaluation == 0
    assert set(found.memory) == {"encoding", "loss", "replay", "optimizer"}
