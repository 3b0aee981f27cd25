"""A calibration as a whole: fitted, saved, read back, and evaluated on other texts."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_scores import made_held_out
from scipy.sparse import csr_array

from umpteen.calibration.calibration import FILE, Calibration, Rule, evaluate_calibration, fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.errors import BadInput, DamagedModel
from umpteen.search.ranking import Ranking


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return fit_calibration(made_held_out(1500), {"said": "made up"})


def as_ranking(held_out: HeldOut) -> tuple[Ranking, csr_array]:
    """Label j of a text is its j-th best; right labels that were not found stand behind them."""
    texts, width = held_out.scores.shape
    truth = np.zeros((texts, width + 5), dtype=np.float32)
    truth[:, :width] = held_out.right
    for text, missing in enumerate(held_out.positives - held_out.right.sum(1)):
        truth[text, width : width + missing] = 1
    rows = np.tile(np.arange(width, dtype=np.int32), (texts, 1))
    return Ranking(rows, held_out.scores, width + 5), csr_array(truth)


def test_held_out_pairs_of_a_ranking_are_those_of_the_truth() -> None:
    held_out = made_held_out(30)
    again = HeldOut.of(*as_ranking(held_out))
    assert np.array_equal(again.right, held_out.right) and np.array_equal(again.positives, held_out.positives)


def test_held_out_pairs_survive_their_file(tmp_path: Path) -> None:
    held_out = made_held_out(30)
    held_out.save(tmp_path / "fold.npz")
    again = HeldOut.load(tmp_path / "fold.npz")
    assert all(
        np.array_equal(getattr(again, name), getattr(held_out, name)) for name in ("scores", "right", "positives")
    )


def test_probabilities_hold_on_texts_that_took_no_part(calibration: Calibration) -> None:
    ranking, truth = as_ranking(made_held_out(3000, seed=5))
    found = evaluate_calibration(calibration, ranking, truth)
    assert found["ece"] < 0.03 < found["ece_raw"]
    assert list(found["by_depth"]) == ["1", "5", "20"]
    bins = found["by_depth"]["5"]["calibrated"]["bins"]
    away = sum(pairs * abs(probability - right) for pairs, probability, right in bins)
    assert away / sum(pairs for pairs, _, _ in bins) == pytest.approx(found["ece"])
    for wanted in found["precision"]:
        assert wanted["wanted"] <= wanted["reached"] <= wanted["wanted"] + 0.06
    assert [one["wanted"] for one in found["precision"]] == [0.5, 0.7, 0.8, 0.9, 0.95] and found["confidence"] == 0.9
    assert found["rules"]["f1"]["micro"] == pytest.approx(calibration.rules["f1"].micro_f1, abs=0.02)
    assert json.loads(json.dumps(found)) == found


def test_all_that_is_asked_for_holds_for_the_labels_given(calibration: Calibration) -> None:
    probabilities = calibration.probabilities(made_held_out(50, seed=3).scores)
    assert calibration.line().given(probabilities).all()
    assert np.array_equal(calibration.line(min_probability=0.4).given(probabilities), probabilities >= 0.4)
    least = calibration.line(precision=0.9).least
    both = calibration.line(min_probability=0.4, precision=0.9).given(probabilities)
    assert np.array_equal(both, probabilities >= np.float32(max(0.4, least)))
    rule = calibration.line(rule="f1")
    assert rule.given(probabilities).sum(1).max() <= calibration.rules["f1"].at_most
    assert (rule.least, rule.at_most) == calibration.rules["f1"][:2]


def test_what_cannot_be_asked_for_is_refused(calibration: Calibration) -> None:
    with pytest.raises(BadInput, match="there is f1 and coverage"):
        calibration.line(rule="best")
    with pytest.raises(BadInput, match=r"min_probability is 1\.5"):
        calibration.line(min_probability=1.5)
    with pytest.raises(BadInput, match=r"0\.9999 cannot be promised with 90 % .* 1,500 held-out texts; 0\.9\d+ can"):
        calibration.line(precision=0.9999)
    for value in (0, -0.1, 1.1):
        with pytest.raises(BadInput, match="between 0 and 1"):
            calibration.line(precision=value)


def test_the_best_promise_that_is_named_can_be_asked_for(calibration: Calibration) -> None:
    with pytest.raises(BadInput) as refusal:
        calibration.line(precision=0.9999)
    named = re.search(r"; ([\d.]+) can", str(refusal.value))
    assert named is not None and calibration.line(precision=float(named[1])).least == calibration.steps[-1].threshold
    with pytest.raises(BadInput, match="no other can, either"):
        replace(calibration, steps=[]).line(precision=0.5)


def test_a_calibration_survives_its_folder(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path)
    again = Calibration.load(tmp_path)
    scores = made_held_out(50, seed=9).scores
    assert np.array_equal(again.probabilities(scores), calibration.probabilities(scores))
    assert (again.steps, again.confidence, again.rules, again.origin, again.figures) == (
        calibration.steps,
        calibration.confidence,
        calibration.rules,
        calibration.origin,
        calibration.figures,
    )


@pytest.mark.parametrize("content", ["", "{}", "[]", *(f'{{"format_version": {n}}}' for n in (1, 2, 3))])
def test_a_file_that_makes_no_sense_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DamagedModel, match=r"calibration\.json: cannot be read"):
        Calibration.load(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(DamagedModel, match=r"calibration\.json"):
        Calibration.load(tmp_path)


def curves(highest: float) -> dict[str, object]:
    knots = {"kind": "isotonic", "scores": [0, 1], "probabilities": [0, highest]}
    return {"first": knots, "others": {**knots, "of_best": 0}}


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": [{"precision": "0.9", "threshold": 0.5, "given": 30, "reached": 0.9, "recall": 0.5}]},
        {"confidence": "much"},
        {"rules": {"f1": dict.fromkeys(Rule._fields, 0.5)}},
        {"curves": curves(float("nan"))},
        {"curves": curves(7)},
    ],
)
def test_numbers_that_are_none_are_refused_when_it_is_read(
    changes: dict[str, object], calibration: Calibration, tmp_path: Path
) -> None:
    calibration.save(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**content, **changes}))
    with pytest.raises(DamagedModel, match=r"calibration\.json: cannot be read"):
        Calibration.load(tmp_path)


def test_texts_from_which_nothing_can_be_learnt_are_refused() -> None:
    held_out = made_held_out(20)
    for right in (np.zeros_like(held_out.right), np.ones_like(held_out.right)):
        with pytest.raises(BadInput, match="too few to calibrate on"):
            fit_calibration(HeldOut(held_out.scores, right, right.sum(1)), {})
    with pytest.raises(BadInput, match="1 held-out texts"):
        fit_calibration(held_out.take(np.array([0])), {})


def test_scores_beyond_1_are_read_as_logits() -> None:
    held_out = made_held_out(100)
    assert fit_calibration(held_out, {}).raw == "clipped"
    larger = HeldOut(held_out.scores * 10, held_out.right, held_out.positives)
    found = fit_calibration(larger, {})
    assert found.raw == "sigmoid" and "exp" in found.figures["raw"]


def test_six_texts_are_enough_to_get_something_finite() -> None:
    held_out = made_held_out(6, labels=4)
    found = fit_calibration(held_out, {})
    assert np.isfinite(found.probabilities(held_out.scores)).all() and np.isfinite(found.figures["ece"])
