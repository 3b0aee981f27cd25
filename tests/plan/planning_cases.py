"""Costs that are easy to count by hand: a second and some bytes a token."""

import numpy as np

from umpteen.plan.measure import Calibration, EvaluationCosts, Line, MicroBatchCost, TowerCosts, packed

BASE, STATE, GRADIENTS, VECTOR = 1_000_000, 20_000, 10_000, 16


def seconds(clock: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """On the clock; processors are busy twice as long."""
    return np.array([clock, 2 * clock])


def tower() -> TowerCosts:
    """A token takes 1 s without a graph, 2 s with one, 4 s backward; 3, 50 and 80 bytes."""
    cost = MicroBatchCost(seconds(1), seconds(2), seconds(4), 3, 50, 80)
    return TowerCosts([(1, Line([(1, packed(cost))]))], GRADIENTS)


def calibration(towers: int = 2) -> Calibration:
    """A label takes 10 s in the loss; the rest of the loss needs 700 bytes."""
    return Calibration(
        building=500_000,
        base=BASE,
        towers=[tower() for _ in range(towers)],
        state_bytes=STATE,
        saving_bytes=30_000,
        vector_bytes=VECTOR,
        finding=seconds(0.5),
        optimizer=seconds(3),
        loss=Line([(100, np.array([1000.0, 2000.0, 700.0]))]),
        batch_size=8,
        tile=4,
        evaluation=EvaluationCosts(seconds(0.01), 100, seconds(7), 200),
    )
