"""F1 of label sets, judged by scikit-learn and by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import f1_score, precision_score, recall_score

from umpteen.errors import BadInput
from umpteen.evaluation.report import Report, evaluate, f1_of
from umpteen.search.ranking import NO_LABEL, Ranking


def example(seed: int, texts: int = 23, labels: int = 17, width: int = 6) -> tuple[Ranking, np.ndarray, csr_array]:
    chance = np.random.default_rng(seed)
    rows = np.argsort(chance.random((texts, labels)), axis=1)[:, :width].astype(np.int32)
    scores = -np.sort(-chance.random((texts, width)), axis=1).astype(np.float32)
    rows[3, 4:] = NO_LABEL
    truth = (chance.random((texts, labels)) < 0.2).astype(np.float32)
    truth[:, 5] = 0  # never right
    truth[7] = 0  # a text without right labels
    return Ranking(rows, scores, labels), chance.random((texts, width)) < 0.5, csr_array(truth)


@pytest.mark.parametrize("seed", range(5))
def test_f1_precision_and_recall_are_those_of_scikit_learn(seed: int) -> None:
    ranking, given, truth = example(seed)
    wanted = truth.toarray() > 0
    answers = np.zeros_like(wanted)
    for text, places in enumerate(given):
        answers[text, [row for row in ranking.rows[text][places] if row != NO_LABEL]] = True
    found = f1_of(ranking, given, truth)
    counted = (wanted | answers).any(0)
    assert found.micro == pytest.approx(f1_score(wanted, answers, average="micro"))
    assert found.macro == pytest.approx(f1_score(wanted[:, counted], answers[:, counted], average="macro"))
    assert found.precision == pytest.approx(precision_score(wanted, answers, average="micro"))
    assert found.recall == pytest.approx(recall_score(wanted, answers, average="micro"))
    assert found.labels_per_text == pytest.approx(answers.sum() / len(wanted))


def test_right_labels_that_no_ranking_holds_count_as_missed() -> None:
    ranking = Ranking(np.array([[0]], dtype=np.int32), np.ones((1, 1), dtype=np.float32), 3)
    found = f1_of(ranking, np.array([[True]]), csr_array(np.array([[1.0, 1.0, 0.0]])))
    assert (found.micro, found.macro, found.precision, found.recall) == (pytest.approx(2 / 3), 0.5, 1.0, 0.5)


def test_nothing_given_is_worth_nothing() -> None:
    ranking, given, truth = example(0)
    assert f1_of(ranking, np.zeros_like(given), truth) == (0, 0, 0, 0, 0)
    empty = csr_array(truth.shape)
    assert f1_of(ranking, np.zeros_like(given), empty) == (0, 0, 0, 0, 0)


def test_a_truth_of_another_split_is_refused() -> None:
    ranking, given, truth = example(0)
    with pytest.raises(BadInput, match="23 queries and 17 labels"):
        f1_of(ranking, given, truth[:5])


def test_a_report_with_calibration_survives_json_and_one_without_does_not_mention_it() -> None:
    ranking, _, truth = example(1)
    counts = np.ones(17, dtype=np.int64)
    report = evaluate(ranking, truth, label_counts=counts, train_queries=9, ks=(1, 5), bootstrap=0)
    assert "calibration" not in report.to_dict() and Report.from_dict(report.to_dict()) == report
    judged = report.with_calibration({"ece": 0.1, "rules": {"f1": {"micro": 0.5, "macro": 0.25}}})
    assert (judged.metrics["micro-F1"], judged.metrics["macro-F1"]) == (50, 25)
    assert judged.metrics["P@1"] == report.metrics["P@1"]
    assert Report.from_dict(judged.to_dict()) == judged
