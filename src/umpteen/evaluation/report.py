"""One ranking evaluated: metrics in percent, their 95 % intervals, and by label frequency."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.data.labels import Relevance
from umpteen.errors import BadInput
from umpteen.evaluation.metrics import USUAL, check_ranking, inverse_propensities, metric_terms
from umpteen.evaluation.significance import bootstrap_intervals
from umpteen.search.ranking import Ranking, contains

DECILES = 10


def frequency_deciles(label_counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Each label's decile, 0 for the most frequent; sizes differ by at most one, equal counts go by row."""
    order = np.argsort(-label_counts.astype(np.int64), kind="stable")
    deciles = np.empty(len(label_counts), dtype=np.int64)
    for decile, labels in enumerate(np.array_split(order, DECILES)):
        deciles[labels] = decile
    return deciles


def precision_by_decile(
    ranking: Ranking, truth: csr_array, label_counts: NDArray[np.integer], ks: tuple[int, ...]
) -> list[dict[str, int | float]]:
    """What each decile's labels contribute to P@k, in percent: the contributions of all ten add up to it."""
    deciles = frequency_deciles(label_counts)
    hits = contains(truth, ranking.rows)
    contributions = {
        f"P@{k}": np.bincount(deciles[ranking.rows[:, :k][hits[:, :k]]], minlength=DECILES) * (100 / (k * len(ranking)))
        for k in ks
    }
    table: list[dict[str, int | float]] = []
    for decile in range(DECILES):
        counts = label_counts[deciles == decile]
        row: dict[str, int | float] = {"decile": decile + 1, "labels": len(counts)}
        row["most_queries"] = int(counts.max(initial=0))
        row["fewest_queries"] = int(counts.min()) if len(counts) else 0
        row.update({name: float(values[decile]) for name, values in contributions.items()})
        table.append(row)
    return table


DECILES_AT = (1, 5)
USUAL_KS = (1, 3, 5, 10, 100)


@dataclass(frozen=True)
class Report:
    """What is printed, saved with a model, and compared."""

    metrics: dict[str, float]  # percent
    intervals: dict[str, tuple[float, float]]  # percent, 95 %; empty without a bootstrap
    deciles: list[dict[str, int | float]]
    queries: int  # in the means
    queries_left_out: int  # they have no positives
    propensity: dict[str, float]  # the constants A and B
    resamples: int
    as_published: bool
    calibration: dict[str, Any] | None = None  # of a calibrated model: calibration error, precisions, rules

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "calibration" or value is not None}

    def with_calibration(self, calibration: dict[str, Any]) -> "Report":
        """With what a model's probabilities are worth, and the F1 of the labels that its rule for F1 gives."""
        f1 = calibration["rules"]["f1"]
        metrics = {**self.metrics, "micro-F1": 100 * f1["micro"], "macro-F1": 100 * f1["macro"]}
        return replace(self, metrics=metrics, calibration=calibration)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Report":
        """What `to_dict` gave, after a way through JSON."""
        try:
            intervals = {name: (float(low), float(high)) for name, (low, high) in content["intervals"].items()}
            return cls(**{**content, "intervals": intervals})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise BadInput(f"this is not an umpteen report: {error}") from error


def evaluate(
    ranking: Ranking,
    truth: csr_array,
    *,
    filtered: csr_array | None = None,
    label_counts: NDArray[np.integer],
    train_queries: int,
    ks: Sequence[int] = USUAL_KS,
    a: float = USUAL[0],
    b: float = USUAL[1],
    bootstrap: int = 1000,
    seed: int = 0,
    as_published: bool = False,
) -> Report:
    """The report of a ranking against the truth (queries × labels; every stored entry is a positive).

    Filtered pairs leave both the ranking and the truth. Queries that then have no positives are left out of the
    means and counted, or kept as failures with `as_published`, as pyxclib does. `label_counts` and `train_queries`
    are of the whole training set; without a bootstrap (0 resamples) there are no intervals.
    """
    check_ranking(ranking, truth, ks)
    if len(label_counts) != ranking.labels:
        raise BadInput(f"label counts are of {len(label_counts):,} labels, the ranking of {ranking.labels:,}")
    ranking, truth, left_out = scored_part(ranking, truth, filtered, as_published=as_published)
    terms = metric_terms(ranking, truth, inverse_propensities(label_counts, train_queries, a, b), ks)
    intervals = bootstrap_intervals(terms, bootstrap, seed) if bootstrap else {}
    return Report(
        metrics={name: 100 * term.value for name, term in terms.items()},
        intervals={name: (100 * low, 100 * high) for name, (low, high) in intervals.items()},
        deciles=precision_by_decile(ranking, truth, label_counts, tuple(k for k in DECILES_AT if k in ks)),
        queries=len(ranking),
        queries_left_out=left_out,
        propensity={"A": a, "B": b},
        resamples=bootstrap,
        as_published=as_published,
    )


def scored_part(
    ranking: Ranking, truth: csr_array, filtered: csr_array | None, *, as_published: bool
) -> tuple[Ranking, csr_array, int]:
    """What is scored of a ranking and of the truth, and how many queries are left out because nothing is right."""
    if filtered is not None:
        ranking, truth = ranking.without(filtered), Relevance(truth).without(Relevance(filtered)).matrix
    left_out = 0
    if not as_published:
        answerable = np.diff(truth.indptr) > 0
        left_out = int((~answerable).sum())
        ranking = Ranking(ranking.rows[answerable], ranking.scores[answerable], ranking.labels)
        truth = truth[answerable]
    if len(ranking) == 0:
        raise BadInput(f"none of {left_out:,} queries has a positive label; there is nothing to score")
    return ranking, truth, left_out
