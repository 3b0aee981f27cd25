"""The bootstrap agrees with theory and with a loop, repeats by seed, and pairs queries."""

import numpy as np
import pytest

from umpteen.errors import BadInput
from umpteen.evaluation import report
from umpteen.evaluation.report import Difference, Terms, bootstrap_intervals, paired_differences


def precision(successes: int, queries: int) -> Terms:
    return Terms((np.arange(queries) < successes).astype(np.float64), np.ones(queries))


def paired_difference(ours: Terms, theirs: Terms, resamples: int = 1000, seed: int = 0) -> Difference:
    return paired_differences({"": ours}, {"": theirs}, resamples, seed)[""]


def test_the_interval_of_a_share_is_that_of_the_normal_approximation() -> None:
    low, high = bootstrap_intervals({"P@1": precision(300, 1000)}, resamples=4000)["P@1"]
    half = 1.96 * (0.3 * 0.7 / 1000) ** 0.5
    assert low == pytest.approx(0.3 - half, abs=0.003)
    assert high == pytest.approx(0.3 + half, abs=0.003)


def test_a_ratio_is_resampled_as_a_ratio_of_means() -> None:
    random = np.random.default_rng(1)
    possible = random.uniform(1, 9, 50)
    terms = Terms(possible * random.uniform(0, 1, 50), possible)
    drawn = [random.integers(50, size=50) for _ in range(4000)]
    looped = [terms.achieved[rows].sum() / terms.possible[rows].sum() for rows in drawn]
    assert bootstrap_intervals({"PSP": terms}, 4000)["PSP"] == pytest.approx(
        np.quantile(looped, [0.025, 0.975]), abs=0.01
    )


def test_the_same_seed_gives_the_same_interval_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = {"P@1": precision(30, 100), "R@5": precision(60, 100)}
    first = bootstrap_intervals(terms, seed=7)
    assert bootstrap_intervals(terms, seed=8) != first
    monkeypatch.setattr(report, "_COUNTS_AT_A_TIME", 1700)
    assert bootstrap_intervals(terms, seed=7) == first


def test_metrics_that_never_vary_have_an_interval_of_no_width() -> None:
    assert bootstrap_intervals({"P@1": precision(10, 10)}, 100) == {"P@1": (1.0, 1.0)}
    assert bootstrap_intervals({"PSP@1": Terms(np.zeros(4), np.zeros(4))}, 100) == {"PSP@1": (0.0, 0.0)}


def test_pairing_sees_a_small_constant_advantage_that_intervals_hide() -> None:
    hard = np.random.default_rng(0).uniform(0, 0.9, 200)
    theirs, ours = Terms(hard, np.ones(200)), Terms(hard + 0.02, np.ones(200))
    difference = paired_difference(ours, theirs)
    assert difference.value == pytest.approx(0.02)
    assert difference.interval == pytest.approx((0.02, 0.02))
    assert difference.p < 0.01
    intervals = bootstrap_intervals({"ours": ours, "theirs": theirs})
    assert intervals["ours"][0] < intervals["theirs"][1]


def test_a_method_does_not_differ_from_itself() -> None:
    assert paired_difference(precision(5, 9), precision(5, 9)) == (0.0, (0.0, 0.0), 1.0)


def test_other_queries_cannot_be_paired() -> None:
    with pytest.raises(BadInput, match="ours has 9, theirs 8"):
        paired_difference(precision(5, 9), precision(5, 8))


def test_paired_differences_are_those_of_a_naive_bootstrap() -> None:
    random = np.random.default_rng(3)
    possible = random.uniform(1, 9, 40)
    ours = {"P@1": precision(25, 40), "PSP@1": Terms(possible * random.uniform(0, 1, 40), possible)}
    theirs = {"P@1": precision(20, 40), "PSP@1": Terms(possible * random.uniform(0, 1, 40), possible)}
    found = paired_differences(ours, theirs, resamples=300, seed=5)
    drawn = np.random.default_rng(5).integers(40, size=(300, 40))
    for name, difference in found.items():
        looped = []
        for rows in drawn:
            mine, yours = ours[name], theirs[name]
            looped.append(
                mine.achieved[rows].sum() / mine.possible[rows].sum()
                - yours.achieved[rows].sum() / yours.possible[rows].sum()
            )
        assert difference.value == pytest.approx(ours[name].value - theirs[name].value)
        assert difference.interval == pytest.approx(np.quantile(looped, [0.025, 0.975]))
        turned = min(sum(one <= 0 for one in looped), sum(one >= 0 for one in looped))
        assert difference.p == pytest.approx(min(1, 2 * (turned + 1) / 301))
    assert found["P@1"] == paired_difference(ours["P@1"], theirs["P@1"], 300, 5)


def test_only_metrics_that_both_have_are_paired() -> None:
    found = paired_differences({"P@1": precision(3, 9), "P@5": precision(3, 9)}, {"P@5": precision(2, 9)}, 50)
    assert list(found) == ["P@5"] and found["P@5"].to_dict()["value"] == pytest.approx(100 / 9)
    assert paired_differences({"P@1": precision(3, 9)}, {}, 50) == {}
