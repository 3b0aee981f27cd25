"""Thresholds keep their promise on new texts, and what cannot be reached is named."""

from collections import Counter
from math import erfc, sqrt

import numpy as np
import pytest
from made_scores import made_held_out, made_texts, probability_of

from umpteen.calibration.calibration import (
    LEAST_GIVEN,
    PrecisionStep,
    precision_steps,
    rule_for_coverage,
    rule_for_f1,
)
from umpteen.calibration.curves import HeldOut
from umpteen.errors import BadInput


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    return made_held_out(800)


@pytest.fixture(scope="module")
def probabilities(held_out: HeldOut) -> np.ndarray:
    found = probability_of(held_out.scores)
    return np.minimum(found, found[:, :1]).round(3).astype(np.float32)  # some are equal


def naive_doubt(held_out: HeldOut, probabilities: np.ndarray, threshold: float, precision: float) -> float:
    """By plain loops: the normal tail of Σ hits − precision · given over texts and one more, all of it wrong."""
    counts = []
    for text in range(len(held_out)):
        given = [place for place, value in enumerate(probabilities[text]) if value >= np.float32(threshold)]
        counts.append((len(given), sum(bool(held_out.right[text, place]) for place in given)))
    size = sum(given**2 for given, _ in counts) / sum(given for given, _ in counts)
    surpluses = [hits - precision * given for given, hits in [*counts, (size, 0)]]
    return erfc(sum(surpluses) / sqrt(2 * sum(one**2 for one in surpluses))) / 2


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.9])
def test_a_threshold_is_promised_where_the_naive_test_passes_and_no_lower_one_passes(
    held_out: HeldOut, probabilities: np.ndarray, wanted: float
) -> None:
    step = promised(precision_steps(held_out, probabilities, 0.9), wanted)
    given = probabilities >= np.float32(step.threshold)
    assert held_out.right[given].mean() == pytest.approx(step.reached) and step.reached > step.precision >= wanted
    assert given.sum() == step.given and held_out.right[given].sum() / held_out.positives.sum() == step.recall
    assert naive_doubt(held_out, probabilities, step.threshold, wanted) <= 0.1
    much_lower = float(np.sort(probabilities[probabilities < np.float32(step.threshold)])[-int(0.25 * given.sum())])
    assert naive_doubt(held_out, probabilities, much_lower, wanted) > 0.02


def promised(steps: list[PrecisionStep], precision: float) -> PrecisionStep:
    return next(step for step in steps if step.precision >= precision)


def test_both_precision_and_threshold_rise_and_few_labels_prove_nothing(
    held_out: HeldOut, probabilities: np.ndarray
) -> None:
    steps = precision_steps(held_out, probabilities, 0.9)
    for name in ("precision", "threshold"):
        assert (np.diff([getattr(step, name) for step in steps]) > 0).all()
    assert min(step.given for step in steps) >= LEAST_GIVEN


def test_more_confidence_promises_less_and_none_at_all_is_refused(held_out: HeldOut, probabilities: np.ndarray) -> None:
    least, usual, most = (precision_steps(held_out, probabilities, value) for value in (0.5, 0.9, 0.999))
    for wanted in (0.5, 0.8):
        strict = [promised(steps, wanted).threshold for steps in (least, usual, most)]
        assert strict == sorted(strict) and strict[0] < strict[2]
    for value in (0, 1, -0.1, 1.1):
        with pytest.raises(BadInput, match="confidence is"):
            precision_steps(held_out, probabilities, value)


def point_estimate(held_out: HeldOut, probabilities: np.ndarray, wanted: float) -> float:
    """What promised nothing: the lowest threshold from which on this share of the held-out labels is right."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    precision = np.cumsum(held_out.right.ravel()[order]) / np.arange(1, probabilities.size + 1)
    return float(probabilities.ravel()[order][np.flatnonzero(precision >= wanted)[-1]])


@pytest.mark.parametrize(("spread", "wanted"), [(0.0, (0.7, 0.9)), (2.0, (0.5, 0.7))], ids=["apart", "together"])
def test_no_more_promises_are_broken_than_was_said_and_many_point_estimates_are(
    spread: float, wanted: tuple[float, ...]
) -> None:
    """300 texts, 150 times, whose labels are right each for itself or together: what a threshold gives to new texts."""
    many, chances = made_texts(20_000, spread, seed=10_000)
    new = probability_of(many.scores).astype(np.float32)
    order = np.argsort(-new, axis=None, kind="stable")
    reached = np.cumsum(chances.ravel()[order]) / np.arange(1, new.size + 1)
    broken: Counter[tuple[float, str]] = Counter()
    for seed in range(150):
        few, _ = made_texts(300, spread, seed)
        probabilities = probability_of(few.scores).astype(np.float32)
        steps = precision_steps(few, probabilities, 0.9)
        for precision in wanted:
            found = {"promise": promised(steps, precision).threshold} if steps[-1].precision >= precision else {}
            broken[precision, "none"] += not found
            found["point estimate"] = point_estimate(few, probabilities, precision)
            for name, threshold in found.items():
                last = np.searchsorted(-new.ravel()[order], -np.float32(threshold), side="right") - 1
                broken[precision, name] += bool(reached[last] < precision)
    for precision in wanted:
        assert broken[precision, "promise"] <= 150 * 0.1 + 2 * sqrt(150 * 0.1 * 0.9)
        assert broken[precision, "point estimate"] > 150 * 0.3 and broken[precision, "none"] < 150 * 0.3


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
