"""Probabilities of a text's labels: in the order of the scores, never above the first, near the truth."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_scores import made_held_out

from umpteen.calibration.curves import (
    KINDS,
    Choice,
    HeldOut,
    Kind,
    TextCurves,
    choose,
    cross_fitted,
    log_loss,
    reliability_of,
)


def ece(probabilities: np.ndarray, right: np.ndarray) -> float:
    return float(reliability_of(probabilities, right)["ece"])


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    return made_held_out(1500)


@cache
def small_curves(first: Kind, others: Kind) -> TextCurves:
    return TextCurves.fit(made_held_out(60), Choice(first, others, 0.4))


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=12),
    st.sampled_from(list(KINDS)),
    st.sampled_from(list(KINDS)),
)
def test_probabilities_never_rise_along_a_text_s_labels(scores: list[float], first: Kind, others: Kind) -> None:
    found = small_curves(first, others)(np.array(sorted(scores, reverse=True), dtype=np.float32))
    assert (np.diff(found) <= 0).all() and found.min() >= 0 and found.max() <= 1


def test_how_many_labels_are_asked_for_changes_no_probability(held_out: HeldOut) -> None:
    curves = TextCurves.fit(held_out, Choice("isotonic", "platt", 0.3))
    whole = curves(held_out.scores)
    assert np.array_equal(curves(held_out.scores[:, :3]), whole[:, :3])
    assert np.array_equal(curves(held_out.scores[7, :2]), whole[7, :2])
    assert np.array_equal(curves(held_out.scores[:1]), whole[:1])


def test_where_no_label_is_the_probability_is_0(held_out: HeldOut) -> None:
    curves = TextCurves.fit(held_out, Choice("platt", "platt", 0.3))
    found = curves(np.array([[0.5, -np.inf], [-np.inf, -np.inf]], dtype=np.float32))
    assert found[0, 0] > 0 and found[0, 1] == 0 and (found[1] == 0).all()
    assert curves(np.empty((0, 5), dtype=np.float32)).shape == (0, 5)


def test_the_choice_has_the_least_loss_of_all_that_was_tried(held_out: HeldOut) -> None:
    choice, tried = choose(held_out, held_out.folds(5))
    assert tried["first"][choice.first] == min(tried["first"].values())
    assert tried["others"][f"{choice.others}, of_best {choice.of_best:g}"] == min(tried["others"].values())
    assert len(tried["others"]) == 4


def test_the_best_score_is_taken_into_account_where_it_says_something(held_out: HeldOut) -> None:
    assert 0.2 < choose(held_out, held_out.folds(5))[0].of_best < 0.6  # the scores were made with 0.4
    plain = made_held_out(1500, of_best=0.0)
    assert choose(plain, plain.folds(5))[0].of_best < 0.1


def test_cross_fitted_probabilities_are_honest_and_better_than_raw_scores(held_out: HeldOut) -> None:
    folds = held_out.folds(5)
    choice, _ = choose(held_out, folds)
    found = cross_fitted(held_out, folds, choice)
    for depth in (1, 5, held_out.scores.shape[1]):
        right = held_out.right[:, :depth]
        raw = np.clip(held_out.scores[:, :depth], 0, 1)
        assert ece(found[:, :depth], right) < 0.03 < ece(raw, right)
    seen = TextCurves.fit(held_out, Choice("isotonic", "isotonic", 0.4))(held_out.scores)
    unseen = cross_fitted(held_out, folds, Choice("isotonic", "isotonic", 0.4))
    assert log_loss(seen, held_out.right) < log_loss(unseen, held_out.right)


def test_cross_fitting_never_lets_a_text_see_itself() -> None:
    held_out = made_held_out(40)
    folds = held_out.folds(4)
    choice = Choice("isotonic", "isotonic", 0.3)
    before = cross_fitted(held_out, folds, choice)
    right = held_out.right.copy()
    right[11] = ~right[11]
    after = cross_fitted(
        HeldOut(held_out.scores, right, held_out.positives), folds, Choice("isotonic", "isotonic", 0.3)
    )
    same_fold = folds == folds[11]
    assert np.array_equal(before[same_fold], after[same_fold])
    assert not np.array_equal(before[~same_fold], after[~same_fold])


def test_curves_survive_json_to_the_bit(held_out: HeldOut) -> None:
    curves = TextCurves.fit(held_out, Choice("isotonic", "platt", 0.31))
    again = TextCurves.from_dict(json.loads(json.dumps(curves.to_dict())))
    assert np.array_equal(again(held_out.scores), curves(held_out.scores))


def test_a_model_of_one_label_is_calibrated_too() -> None:
    alone = made_held_out(50, labels=1)
    choice, _ = choose(alone, alone.folds(5))
    assert np.isfinite(TextCurves.fit(alone, choice)(alone.scores)).all()
