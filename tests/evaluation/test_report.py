"""Metrics agree with hand-computed cases and with independent naive code."""

import json
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.cases import matrix, random_case, ranked
from evaluation.naive import inverse_propensity, naive_metrics
from umpteen.errors import BadInput
from umpteen.evaluation.report import Report, evaluate, metric_terms

KS = [1, 3, 5]


@settings(max_examples=100, deadline=None)
@given(
    queries=st.integers(1, 12),
    labels=st.integers(5, 15),
    seed=st.integers(0, 10_000),
    constants=st.sampled_from([(0.55, 1.5), (0.6, 2.6), (0.5, 0.4)]),
    as_published=st.booleans(),
)
def test_every_metric_equals_the_naive_one(
    queries: int, labels: int, seed: int, constants: tuple[float, float], as_published: bool
) -> None:
    case = random_case(queries, labels, 5, seed)
    a, b = constants
    report = evaluate(
        case.ranking,
        matrix(case.truth, labels),
        filtered=matrix(case.filtered, labels),
        label_counts=case.label_counts,
        train_queries=1234,
        ks=KS,
        a=a,
        b=b,
        bootstrap=0,
        as_published=as_published,
    )
    weights = [inverse_propensity(int(count), 1234, a, b) for count in case.label_counts]
    expected = naive_metrics(case.rankings, case.truth, case.filtered, weights, KS, as_published)
    assert report.metrics == pytest.approx({name: 100 * value for name, value in expected.items()}, abs=1e-10)
    assert report.queries + report.queries_left_out == queries
    assert report.intervals == {} and report.propensity == {"A": a, "B": b}


def two_queries() -> dict[str, object]:
    """Query 0 has the labels 0, 1, 2 and is shown 0, 3, 1; query 1 has the label 4 and is shown 3, 4, 0."""
    return {
        "ranking": ranked([[0, 3, 1], [3, 4, 0]], 5),
        "truth": matrix([{0, 1, 2}, {4}], 5),
        "label_counts": np.array([4, 3, 1, 0, 0]),
        "train_queries": 10,
        "bootstrap": 0,
    }


def test_two_queries_computed_by_hand() -> None:
    metrics = evaluate(**two_queries(), ks=(1, 3), a=1.0, b=1.0).metrics  # type: ignore[arg-type]
    second, third = 1 / log2(3), 1 / log2(4)
    assert metrics["P@1"] == pytest.approx(50)
    assert metrics["P@3"] == pytest.approx(100 * (2 / 3 + 1 / 3) / 2)
    assert metrics["R@3"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert metrics["nDCG@3"] == pytest.approx(100 * ((1 + third) / (1 + second + third) + second) / 2)
    # N = 10, A = B = 1: C = (ln 10 − 1) · 2 = 2.605170, and 1/p = 1 + C/(N_l + 1) for the counts 4, 3, 1, 0
    four, three, one, none = 1.521034, 1.6512925, 2.302585, 3.605170
    assert metrics["PSP@1"] == pytest.approx(100 * four / (one + none), rel=1e-6)
    assert metrics["PSP@3"] == pytest.approx(100 * (four + three + none) / (four + three + one + none), rel=1e-6)
    achieved = (four + three * third) / (1 + second + third) + none * second
    possible = (one + three * second + four * third) / (1 + second + third) + none
    assert metrics["PSnDCG@3"] == pytest.approx(100 * achieved / possible, rel=1e-6)


def test_filtered_pairs_leave_the_ranking_and_the_truth() -> None:
    filtered = matrix([{3, 2}, {3}], 5)
    metrics = evaluate(**two_queries(), filtered=filtered, ks=(1, 2)).metrics  # type: ignore[arg-type]
    assert metrics["P@1"] == metrics["R@2"] == metrics["nDCG@2"] == metrics["PSP@2"] == pytest.approx(100)
    assert metrics["P@2"] == pytest.approx(75)


def test_as_published_a_filtered_pair_stays_in_the_truth_where_nobody_can_find_it() -> None:
    filtered = matrix([{3, 2}, {3}], 5)  # of the truth of query 0 the label 2
    metrics = evaluate(**two_queries(), filtered=filtered, ks=(1, 2, 3), as_published=True).metrics  # type: ignore[arg-type]
    assert metrics["P@1"] == metrics["nDCG@2"] == pytest.approx(100) and metrics["P@2"] == pytest.approx(75)
    assert metrics["R@2"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert metrics["nDCG@3"] == pytest.approx(100 * ((1 + 1 / log2(3)) / (1 + 1 / log2(3) + 1 / 2) + 1) / 2)


def test_queries_without_positives_are_left_out_and_counted_unless_as_published() -> None:
    case = {
        "ranking": ranked([[0], [0], [1]], 3),
        "truth": matrix([{0}, set(), {1}], 3),
        "filtered": matrix([set(), set(), {1}], 3),
        "label_counts": np.ones(3, dtype=np.int64),
        "train_queries": 10,
        "ks": (1,),
    }
    honest = evaluate(**case)  # type: ignore[arg-type]
    assert (honest.metrics["P@1"], honest.queries, honest.queries_left_out) == (100, 1, 2)
    published = evaluate(**case, as_published=True)  # type: ignore[arg-type]
    assert published.metrics["P@1"] == pytest.approx(100 / 3)
    assert (published.queries, published.queries_left_out) == (3, 0)


def test_blocks_of_queries_do_not_change_the_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(11, 9, 5, seed=3)
    weights = np.linspace(1, 2, 9)
    whole = metric_terms(case.ranking, matrix(case.truth, 9), weights, KS)
    monkeypatch.setattr("umpteen.evaluation.report._QUERIES_AT_A_TIME", 4)
    parts = metric_terms(case.ranking, matrix(case.truth, 9), weights, KS)
    for name, terms in whole.items():
        assert np.array_equal(terms.achieved, parts[name].achieved)
        assert np.array_equal(terms.possible, parts[name].possible)


def test_a_report_comes_back_from_json() -> None:
    case = random_case(30, 12, 5, seed=1)
    report = evaluate(
        case.ranking, matrix(case.truth, 12), label_counts=case.label_counts, train_queries=99, ks=KS, bootstrap=50
    )
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    with pytest.raises(BadInput, match="not an umpteen report"):
        Report.from_dict({"metrics": {}})


def test_what_cannot_be_scored_is_refused_by_its_numbers() -> None:
    with pytest.raises(BadInput, match="k = 10 need 10 labels a query, but the ranking holds 3"):
        evaluate(**two_queries(), ks=(1, 10))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"k = \[0\]"):
        evaluate(**two_queries(), ks=(0,))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="2 queries and 5 labels, the truth of 2 and 6"):
        evaluate(**{**two_queries(), "truth": matrix([{0}, {5}], 6)}, ks=(1,))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="none of 2 queries has a positive"):
        evaluate(**{**two_queries(), "truth": matrix([set(), set()], 5)}, ks=(1,))  # type: ignore[arg-type]
