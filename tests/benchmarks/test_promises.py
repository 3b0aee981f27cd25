"""The simulation of promised precisions: worlds whose truth is known, and both ways beside each other."""

import pytest
from benchmarks.promises import WORLDS, drawn, run


@pytest.mark.parametrize("world", WORLDS)
def test_labels_are_right_as_often_as_the_world_says(world: str) -> None:
    held_out, chances = drawn(world, 4000, 0)
    assert held_out.right.mean() == pytest.approx(chances.mean(), abs=0.01)
    strange = (chances.max(1) <= 0.01).mean()
    assert strange == pytest.approx(0.1 if "strange" in world else 0, abs=0.02)


def test_promises_and_point_estimates_stand_beside_each_other() -> None:
    found = run(texts=60, times=2, confidence=0.9, worlds=["logistic"])
    promise, point = found["logistic, 0.5, promise"], found["logistic, 0.5, point"]
    assert promise["given_percent"] == point["given_percent"] == 100
    assert 0 < promise["of_best_recall"] <= point["of_best_recall"] < 1.5
