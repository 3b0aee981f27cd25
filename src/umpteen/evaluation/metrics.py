"""P, nDCG, R, PSP and PSnDCG at k, query by query, so that means, intervals and differences all start from the same.

N queries, W the ranking's width, R resamples, M metrics. Any stored entry of the truth is a positive, whatever its
weight. Every metric is a ratio of two means over queries: what was achieved ÷ what was possible (1 for P, nDCG and R),
as pyxclib has it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import BadInput
from umpteen.search.ranking import NO_LABEL, Ranking, contains

# A and B as the field uses them; a figure is only comparable with others that used the same two.
USUAL = (0.55, 1.5)
_QUERIES_AT_A_TIME = 65_536
_COUNTS_AT_A_TIME = 1 << 22  # 32 MB of float64


def inverse_propensities(
    label_counts: NDArray[np.integer], queries: int, a: float = USUAL[0], b: float = USUAL[1]
) -> NDArray[np.float64]:
    """1/p_l = 1 + C (N_l + B)^−A with C = (log N − 1)(B + 1)^A; N_l of the N training queries have label l."""
    # With fewer than 3 queries C would be negative and rare labels would count less, not more.
    c = max(0.0, math.log(max(1, queries)) - 1) * (b + 1) ** a
    inverse: NDArray[np.float64] = 1 + c * (label_counts.astype(np.float64) + b) ** -a
    return inverse


class Terms(NamedTuple):
    """One metric before averaging."""

    achieved: NDArray[np.float64]  # [N]
    possible: NDArray[np.float64]  # [N]

    @property
    def value(self) -> float:
        """The metric, from 0 to 1; 0 where nothing was possible."""
        return _share(self.achieved.sum(), self.possible.sum())


def metric_terms(
    ranking: Ranking, truth: csr_array, inverse_propensity: NDArray[np.float64], ks: Sequence[int]
) -> dict[str, Terms]:
    """Terms of every metric by name ("P@1", "nDCG@5", …). Queries without positives achieve 0."""
    check_ranking(ranking, truth, ks)
    parts = []
    for start in range(0, max(1, len(ranking)), _QUERIES_AT_A_TIME):
        some = slice(start, start + _QUERIES_AT_A_TIME)
        part = Ranking(ranking.rows[some], ranking.scores[some], ranking.labels)
        parts.append(_terms(part, csr_array(truth[some]), inverse_propensity, ks))
    return {name: Terms(*map(np.concatenate, zip(*(part[name] for part in parts), strict=True))) for name in parts[0]}


def _terms(ranking: Ranking, truth: csr_array, inverse: NDArray[np.float64], ks: Sequence[int]) -> dict[str, Terms]:
    positives = np.diff(truth.indptr)  # [N]
    hits = contains(truth, ranking.rows).astype(np.float64)  # [N, W]
    weighted_hits = hits * inverse[ranking.rows]
    # The best ranking by propensity lists the positives, the rarest first.
    ideal = Ranking.from_csr(csr_array((inverse[truth.indices], truth.indices, truth.indptr), truth.shape), max(ks))
    weighted_ideal = np.where(ideal.rows == NO_LABEL, 0.0, inverse[ideal.rows])
    discount = 1 / np.log2(np.arange(ranking.width) + 2)  # [W]
    ideal_gain = np.concatenate([[1.0], np.cumsum(discount)])  # of 0, 1, … positives; 1 avoids 0 ÷ 0

    terms = {}
    one = np.ones(len(ranking))
    for k in ks:
        gain = ideal_gain[np.minimum(k, positives)]
        found, weighed, best = hits[:, :k], weighted_hits[:, :k], weighted_ideal[:, :k]
        terms[f"P@{k}"] = Terms(found.sum(1) / k, one)
        terms[f"nDCG@{k}"] = Terms(found @ discount[:k] / gain, one)
        terms[f"R@{k}"] = Terms(found.sum(1) / np.maximum(1, positives), one)
        terms[f"PSP@{k}"] = Terms(weighed.sum(1) / k, best.sum(1) / k)
        terms[f"PSnDCG@{k}"] = Terms(weighed @ discount[:k] / gain, best @ discount[:k] / gain)
    return terms


def check_ranking(ranking: Ranking, truth: csr_array, ks: Sequence[int]) -> None:
    """Refuses what cannot be scored."""
    if not ks or min(ks) < 1:
        raise BadInput(f"metrics were asked at k = {list(ks)}; give at least one k, each 1 or more")
    if max(ks) > ranking.width:
        raise BadInput(
            f"metrics at k = {max(ks):,} need {max(ks):,} labels a query, but the ranking holds {ranking.width:,}; "
            f"search with k = {max(ks)} or ask for metrics up to {ranking.width}"
        )
    _check_split(ranking, truth, "queries")


def _check_split(ranking: Ranking, truth: csr_array, what: str) -> None:
    if truth.shape != (len(ranking), ranking.labels):
        raise BadInput(
            f"the ranking is of {len(ranking):,} {what} and {ranking.labels:,} labels, the truth of "
            f"{truth.shape[0]:,} and {truth.shape[1]:,}; are they of the same split?"
        )


class F1(NamedTuple):
    """Shares from 0 to 1, and the labels given to a text on average.

    Pooled over all pairs (micro), and the mean over labels (macro) of those that are right or given at least once:
    a label that is neither has no F1. Texts without right labels count: what they are given is wrong.
    """

    micro: float
    macro: float
    precision: float  # pooled; 0 if nothing was given
    recall: float  # pooled
    labels_per_text: float


def f1_of(ranking: Ranking, given: NDArray[np.bool_], truth: csr_array) -> F1:
    """F1 of those labels of a ranking that are given; every stored entry of the truth is a right label."""
    _check_split(ranking, truth, "texts")
    given = given & (ranking.rows != NO_LABEL)
    hits = ranking.rows[given & contains(truth, ranking.rows)]
    hits_of, given_of, right_of = (
        np.bincount(rows, minlength=ranking.labels) for rows in (hits, ranking.rows[given], truth.indices)
    )
    both = given_of + right_of  # [labels]
    there = both > 0
    return F1(
        micro=_share(2 * hits_of.sum(), both.sum()),
        macro=float((2 * hits_of[there] / both[there]).mean()) if there.any() else 0.0,
        precision=_share(hits_of.sum(), given_of.sum()),
        recall=_share(hits_of.sum(), right_of.sum()),
        labels_per_text=_share(given_of.sum(), len(ranking)),
    )


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0


class Difference(NamedTuple):
    """How much better ours is than theirs on the same queries, in the metric's own unit (0 to 1)."""

    value: float
    interval: tuple[float, float]  # 95 %
    p: float  # two-sided: how often resampling turns the sign

    def to_dict(self) -> dict[str, Any]:
        """In percent points, ready for JSON."""
        return {"value": 100 * self.value, "interval": [100 * side for side in self.interval], "p": self.p}


def bootstrap_intervals(
    terms: Mapping[str, Terms], resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """A 95 % interval of every metric: the middle of what resampled queries give."""
    low, high = np.quantile(_resampled(list(terms.values()), resamples, seed), [0.025, 0.975], axis=0).tolist()
    return dict(zip(terms, zip(low, high, strict=True), strict=True))


def paired_differences(
    ours: Mapping[str, Terms], theirs: Mapping[str, Terms], resamples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Ours minus theirs on every metric that both have, both resampled with the same queries.

    What makes a query hard then cancels out. PSP and PSnDCG are ratios of means, and are computed anew each time.
    """
    names = [name for name in ours if name in theirs]
    for name in names:
        if len(ours[name].achieved) != len(theirs[name].achieved):
            raise BadInput(
                f"a paired comparison needs the same queries: ours has {len(ours[name].achieved):,}, "
                f"theirs {len(theirs[name].achieved):,}"
            )
    if not names:
        return {}
    values = _resampled([side[name] for side in (ours, theirs) for name in names], resamples, seed)
    differences = values[:, : len(names)] - values[:, len(names) :]  # [R, M]
    low, high = np.quantile(differences, [0.025, 0.975], axis=0).tolist()
    turned = np.minimum((differences <= 0).sum(0), (differences >= 0).sum(0))
    # One is added to both sides, since resampling can never show that a chance is 0.
    chances = np.minimum(1.0, 2 * (turned + 1) / (resamples + 1)).tolist()
    return {
        name: Difference(ours[name].value - theirs[name].value, (low[at], high[at]), chances[at])
        for at, name in enumerate(names)
    }


def paired_difference(ours: Terms, theirs: Terms, resamples: int = 1000, seed: int = 0) -> Difference:
    """Ours minus theirs on one metric."""
    return paired_differences({"": ours}, {"": theirs}, resamples, seed)[""]


def _resampled(terms: Sequence[Terms], resamples: int, seed: int) -> NDArray[np.float64]:
    """Every metric of every resample."""  # [R, M]
    achieved, possible = (np.stack(side, 1) for side in zip(*terms, strict=True))  # [N, M]
    values = []
    for counts in _draws(len(achieved), resamples, seed):
        best = counts @ possible
        values.append(np.divide(counts @ achieved, best, out=np.zeros_like(best), where=best != 0))
    return np.concatenate(values)


def _draws(queries: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Blocks of resamples, N queries drawn with replacement each, held as how often each query was drawn.

    All metrics of many resamples are then two matrix products.
    """  # [some, N]
    if queries == 0:
        raise BadInput("there is no query to draw from; an interval needs some")
    random = np.random.default_rng(seed)
    at_a_time = max(1, _COUNTS_AT_A_TIME // queries)
    for start in range(0, resamples, at_a_time):
        some = min(at_a_time, resamples - start)
        drawn = random.integers(queries, size=(some, queries)) + np.arange(some)[:, None] * queries
        counts = np.bincount(drawn.ravel(), minlength=some * queries)
        yield counts.reshape(some, queries).astype(np.float64)
