"""P, nDCG, R, PSP and PSnDCG at k, query by query, so that means, intervals and differences all start from the same.

N queries, W the ranking's width. Any stored entry of the truth is a positive, whatever its weight. Every metric is a
ratio of two means over queries: what was achieved ÷ what was possible (1 for P, nDCG and R), as pyxclib has it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import BadInput
from umpteen.search.ranking import NO_LABEL, Ranking, contains

# A and B as the field uses them; a figure is only comparable with others that used the same two.
USUAL = (0.55, 1.5)


def inverse_propensities(
    label_counts: NDArray[np.integer], queries: int, a: float = USUAL[0], b: float = USUAL[1]
) -> NDArray[np.float64]:
    """1/p_l = 1 + C (N_l + B)^−A with C = (log N − 1)(B + 1)^A; N_l of the N training queries have label l."""
    # With fewer than 3 queries C would be negative and rare labels would count less, not more.
    c = max(0.0, math.log(max(1, queries)) - 1) * (b + 1) ** a
    inverse: NDArray[np.float64] = 1 + c * (label_counts.astype(np.float64) + b) ** -a
    return inverse


# F1 of label sets: how well the labels given to each text, however many, are the right ones.
#
# Pooled over all pairs (micro), and the mean over labels (macro) of those that are right or given at least once:
# a label that is neither has no F1. Texts without right labels count: what they are given is wrong.
class F1(NamedTuple):
    """Shares from 0 to 1, and the labels given to a text on average."""

    micro: float
    macro: float
    precision: float  # pooled; 0 if nothing was given
    recall: float  # pooled
    labels_per_text: float


def f1_of(ranking: Ranking, given: NDArray[np.bool_], truth: csr_array) -> F1:
    """F1 of those labels of a ranking that are given; every stored entry of the truth is a right label."""
    if truth.shape != (len(ranking), ranking.labels) or given.shape != ranking.rows.shape:
        raise BadInput(
            f"the ranking is of {len(ranking):,} texts and {ranking.labels:,} labels, the truth of "
            f"{truth.shape[0]:,} and {truth.shape[1]:,}; are they of the same split?"
        )
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


_QUERIES_AT_A_TIME = 65_536


class Terms(NamedTuple):
    """One metric before averaging."""

    achieved: NDArray[np.float64]  # [N]
    possible: NDArray[np.float64]  # [N]

    @property
    def value(self) -> float:
        """The metric, from 0 to 1; 0 where nothing was possible."""
        possible = float(self.possible.sum())
        return float(self.achieved.sum()) / possible if possible else 0.0


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
    return {
        name: Terms(
            np.concatenate([part[name].achieved for part in parts]),
            np.concatenate([part[name].possible for part in parts]),
        )
        for name in parts[0]
    }


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
        terms[f"P@{k}"] = Terms(hits[:, :k].sum(1) / k, one)
        terms[f"nDCG@{k}"] = Terms(hits[:, :k] @ discount[:k] / gain, one)
        terms[f"R@{k}"] = Terms(hits[:, :k].sum(1) / np.maximum(1, positives), one)
        terms[f"PSP@{k}"] = Terms(weighted_hits[:, :k].sum(1) / k, weighted_ideal[:, :k].sum(1) / k)
        terms[f"PSnDCG@{k}"] = Terms(
            weighted_hits[:, :k] @ discount[:k] / gain, weighted_ideal[:, :k] @ discount[:k] / gain
        )
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
    if truth.shape != (len(ranking), ranking.labels):
        raise BadInput(
            f"the ranking is of {len(ranking):,} queries and {ranking.labels:,} labels, "
            f"the truth of {truth.shape[0]:,} and {truth.shape[1]:,}; are they of the same split?"
        )
