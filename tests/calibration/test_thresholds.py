"""Thresholds keep their promise on held-out texts, and what cannot be reached is named."""

import re

import numpy as np
import pytest
from made_scores import made_held_out, probability_of

from umpteen.calibration.calibration import LEAST_GIVEN, precision_steps, rule_for_coverage, rule_for_f1, threshold_for
from umpteen.calibration.curves import HeldOut
from umpteen.errors import BadInput


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    return made_held_out(800)


@pytest.fixture(scope="module")
def probabilities(held_out: HeldOut) -> np.ndarray:
    found = probability_of(held_out.scores)
    return np.minimum(found, found[:, :1]).round(3).astype(np.float32)  # some are equal


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.8, 0.9, 0.95])
def test_the_threshold_of_a_precision_reaches_it_and_a_lower_one_does_not(
    held_out: HeldOut, probabilities: np.ndarray, wanted: float
) -> None:
    steps = precision_steps(held_out, probabilities)
    step = threshold_for(steps, wanted)
    given = probabilities >= np.float32(step.threshold)
    assert held_out.right[given].mean() == pytest.approx(step.precision) and step.precision >= wanted
    assert given.sum() == step.given and held_out.right[given].sum() / held_out.positives.sum() == step.recall
    lower = [value for value in np.unique(probabilities) if value < np.float32(step.threshold)]
    assert all(held_out.right[probabilities >= value].mean() < wanted + 0.002 for value in lower)


def test_both_precision_and_threshold_rise_and_few_labels_prove_nothing(
    held_out: HeldOut, probabilities: np.ndarray
) -> None:
    steps = precision_steps(held_out, probabilities)
    for name in ("precision", "threshold"):
        assert (np.diff([getattr(step, name) for step in steps]) > 0).all()
    assert min(step.given for step in steps) >= LEAST_GIVEN


def test_a_precision_out_of_reach_is_an_error_that_names_the_best_one(
    held_out: HeldOut, probabilities: np.ndarray
) -> None:
    wrong_at_the_top = held_out.right.copy()
    wrong_at_the_top[np.argsort(-probabilities[:, 0])[:20], 0] = False
    steps = precision_steps(HeldOut(held_out.scores, wrong_at_the_top, held_out.positives), probabilities)
    with pytest.raises(BadInput, match=r"a precision of 0\.999 was not reached") as refusal:
        threshold_for(steps, 0.999)
    named = re.search(r"best reachable is ([\d.]+)", str(refusal.value))
    assert named is not None
    assert threshold_for(steps, float(named[1])).precision >= float(named[1])
    for value in (0, -0.1, 1.1):
        with pytest.raises(BadInput, match="between 0 and 1"):
            threshold_for(steps, value)


def test_no_threshold_and_no_limit_has_a_greater_micro_f1_than_the_rule(
    held_out: HeldOut, probabilities: np.ndarray
) -> None:
    rule = rule_for_f1(held_out, probabilities)

    def f1(threshold: float, most: int) -> float:
        given = (probabilities >= np.float32(threshold)) & (np.arange(probabilities.shape[1]) < most)
        return float(2 * held_out.right[given].sum() / (given.sum() + held_out.positives.sum()))

    assert f1(rule.threshold, rule.at_most) == pytest.approx(rule.micro_f1)
    for most in (1, 2, 3, 5, 10, 20):
        assert max(f1(value, most) for value in np.unique(probabilities)[::7]) <= rule.micro_f1 + 1e-12
    assert rule.micro_f1 == pytest.approx(2 / (1 / rule.precision + 1 / rule.recall))


def test_a_limit_on_labels_is_chosen_where_it_helps() -> None:
    chance = np.random.default_rng(0)
    right = np.zeros((200, 6), dtype=bool)
    right[:, 0] = True
    same = np.full((200, 6), 0.5, dtype=np.float32)
    rule = rule_for_f1(HeldOut(chance.random((200, 6)).astype(np.float32), right, np.ones(200, dtype=np.int64)), same)
    assert rule.at_most == 1 and rule.micro_f1 == 1


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_coverage_takes_the_smallest_sets_that_hold_the_share(
    held_out: HeldOut, probabilities: np.ndarray, share: float
) -> None:
    rule = rule_for_coverage(held_out, probabilities, share)
    given = probabilities >= np.float32(rule.threshold)
    positives = held_out.positives.sum()
    assert held_out.right[given].sum() / positives == rule.recall >= share
    higher = probabilities > np.float32(rule.threshold)
    assert held_out.right[higher].sum() / positives < share
    assert rule.labels_per_text == given.sum() / len(held_out)


def test_a_coverage_that_the_found_labels_do_not_have_is_an_error_unless_it_was_not_asked_for(
    held_out: HeldOut, probabilities: np.ndarray
) -> None:
    reachable = held_out.right.sum() / held_out.positives.sum()
    assert reachable < 0.9
    with pytest.raises(BadInput, match=f"first 20 labels .* hold {np.floor(1000 * reachable) / 1000:g}"):
        rule_for_coverage(held_out, probabilities, 0.99)
    assert rule_for_coverage(held_out, probabilities, None).recall == reachable
    with pytest.raises(BadInput, match="between 0 and 1"):
        rule_for_coverage(held_out, probabilities, 1.5)
