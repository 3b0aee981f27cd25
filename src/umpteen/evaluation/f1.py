"""F1 of label sets: how well the labels given to each text, however many, are the right ones.

Pooled over all pairs (micro), and the mean over labels (macro) of those that are right or given at least once:
a label that is neither has no F1. Texts without right labels count: what they are given is wrong.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import BadInput
from umpteen.retrieval.ranking import NO_LABEL, Ranking, contains


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
