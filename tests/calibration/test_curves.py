"""Curves from scores to probabilities never fall, survive JSON, and come near the truth."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from umpteen.calibration.curves import KINDS, Isotonic, Kind, Platt, read_curve
from umpteen.errors import BadInput


def pairs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, whether they are right, and the probability with which they are."""
    chance = np.random.default_rng(seed)
    scores = chance.normal(0.4, 0.2, count).astype(np.float32)
    truth = 1 / (1 + np.exp(-(9 * scores - 4)))
    return scores, chance.random(count) < truth, truth


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_finds_the_probabilities_that_made_the_pairs(kind: Kind) -> None:
    scores, right, truth = pairs(20_000)
    assert np.abs(KINDS[kind].fit(scores, right)(scores) - truth).mean() < 0.02


def test_the_logistic_curve_is_the_one_that_made_the_pairs() -> None:
    scores, right, _ = pairs(50_000)
    curve = Platt.fit(scores, right)
    assert curve.slope == pytest.approx(9, rel=0.05) and curve.intercept == pytest.approx(-4, rel=0.05)


def test_a_logistic_curve_is_one_however_far_out() -> None:
    scores = np.array([-1e300, -800, -30, -1.5, 0, 1e-9, 2, 40, 1e300])
    np.testing.assert_allclose(Platt(2.0, 1.0)(scores), expit(2 * scores + 1), atol=1e-15)


@given(
    st.lists(st.tuples(st.floats(-2, 2, width=32), st.booleans()), min_size=2, max_size=40),
    st.sampled_from(list(KINDS)),
)
def test_no_curve_ever_falls_or_leaves_zero_to_one(points: list[tuple[float, bool]], kind: Kind) -> None:
    scores = np.array([score for score, _ in points], dtype=np.float32)
    curve = KINDS[kind].fit(scores, np.array([right for _, right in points]))
    found = curve(np.linspace(-3, 3, 500))
    assert np.isfinite(found).all() and (np.diff(found) >= 0).all() and found.min() >= 0 and found.max() <= 1


@given(st.lists(st.tuples(st.floats(-2, 2, width=32), st.booleans()), min_size=3, max_size=40))
def test_isotonic_never_claims_certainty_where_both_occur(points: list[tuple[float, bool]]) -> None:
    scores = np.array([score for score, _ in points], dtype=np.float32)
    right = np.array([right for _, right in points])
    found = Isotonic.fit(scores, right)(scores)
    if len(set(found.tolist())) > 1:
        assert found.min() > 0 and found.max() < 1


def test_the_ends_are_smoothed_without_touching_their_neighbours() -> None:
    scores = np.array([0.0, 0.1, *([0.5] * 100), 0.9, 1.0])
    right = np.array([False, False, *([True] * 40 + [False] * 60), True, True])
    curve = Isotonic.fit(scores, right)
    assert curve(np.array([0.5]))[0] == pytest.approx(0.4)
    assert curve(np.array([0.0, 1.0])) == pytest.approx([1 / 4, 3 / 4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_survives_json_to_the_bit(kind: Kind) -> None:
    scores, right, _ = pairs(500)
    curve = KINDS[kind].fit(scores, right)
    again = read_curve(json.loads(json.dumps(curve.to_dict())))
    assert np.array_equal(again(scores), curve(scores))


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_one_kind_give_a_flat_curve(kind: Kind, right: bool) -> None:
    scores, _, _ = pairs(50)
    found = KINDS[kind].fit(scores, np.full(50, right))(scores)
    assert (found == found[0]).all() and (found[0] > 0.9) == right


def test_scores_that_are_worse_the_larger_they_are_give_a_flat_logistic_curve() -> None:
    scores, right, _ = pairs(2000)
    found = Platt.fit(-scores, right)
    assert found.slope == 0 and found(scores)[0] == pytest.approx(right.mean(), abs=0.01)


def test_what_is_no_curve_is_refused() -> None:
    with pytest.raises(BadInput, match="no curve"):
        Platt(-1.0, 0.0)
    with pytest.raises(BadInput, match="no curve"):
        Platt(float("nan"), 0.0)
    with pytest.raises(BadInput, match="must not fall"):
        Isotonic(np.array([0.0, 1.0]), np.array([0.5, 0.4]))
    with pytest.raises(BadInput, match="no curve"):
        Isotonic(np.array([]), np.array([]))
    with pytest.raises(BadInput, match="isotonic and platt"):
        read_curve({"kind": "beta"})
