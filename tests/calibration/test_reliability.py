"""Calibration error, Brier score and log loss, checked by naive code and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as log_loss_of_sklearn

from umpteen.calibration.curves import BINS, reliability_of


def naive_error(bins: list[list[tuple[float, bool]]]) -> float:
    total = sum(map(len, bins))
    error = 0.0
    for one in bins:
        if one:
            error += abs(sum(p for p, _ in one) / len(one) - sum(r for _, r in one) / len(one)) * len(one) / total
    return error


@pytest.mark.parametrize("count", [7, 100, 1003])
def test_the_figures_are_those_of_naive_code(count: int) -> None:
    chance = np.random.default_rng(count)
    values, right = chance.random(count), chance.random(count) < 0.3
    right[:2] = [True, False]
    found = reliability_of(values, right)
    ranked = sorted(zip(values, right, strict=True))
    mass = [[ranked[at] for at in part] for part in np.array_split(np.arange(count), BINS)]
    assert found["ece"] == pytest.approx(naive_error(mass))
    assert found["brier"] == pytest.approx(brier_score_loss(right, values))
    assert found["log_loss"] == pytest.approx(log_loss_of_sklearn(right, values), rel=1e-4)
    assert found["pairs"] == count == sum(pairs for pairs, _, _ in found["bins"])


def test_probabilities_that_come_true_have_almost_no_error_and_doubled_ones_have() -> None:
    chance = np.random.default_rng(0)
    values = chance.random((400, 50)) / 2
    right = chance.random(values.shape) < values
    assert reliability_of(values, right)["ece"] < 0.02
    assert reliability_of(2 * values, right)["ece"] > 0.2


def test_certainty_that_is_wrong_costs_much_but_not_infinitely_much() -> None:
    assert 10 < reliability_of(np.array([0.0, 1.0]), np.array([True, False]))["log_loss"] < 100
