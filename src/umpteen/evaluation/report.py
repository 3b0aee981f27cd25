"""A model or a ranking evaluated on a split: metrics in percent, their 95 % intervals, and by label frequency.

The same code evaluates validation during training and test at the end.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import Relevance
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder, encode_tokens, tokens_for
from umpteen.errors import BadConfig, BadInput
from umpteen.evaluation.metrics import (
    USUAL,
    Terms,
    bootstrap_intervals,
    check_ranking,
    inverse_propensities,
    metric_terms,
)
from umpteen.parallel.world import Shard, World
from umpteen.rerank.ranker import Ranker
from umpteen.search.ranking import SPARE, HeadStart, Ranking, contains, top_k

USUAL_KS = (1, 3, 5, 10, 100)
DECILES, DECILES_AT = 10, (1, 5)


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
    found = {k: np.bincount(deciles[ranking.rows[:, :k][hits[:, :k]]], minlength=DECILES) for k in ks}
    table: list[dict[str, int | float]] = []
    for decile in range(DECILES):
        counts = label_counts[deciles == decile]
        fewest = int(counts.min()) if len(counts) else 0
        sizes = {"labels": len(counts), "most_queries": int(counts.max(initial=0)), "fewest_queries": fewest}
        shares = {f"P@{k}": float(found[k][decile]) * 100 / (k * len(ranking)) for k in ks}
        table.append({"decile": decile + 1, **sizes, **shares})
    return table


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


class Evaluator:
    """One split, and what its metrics are computed with: the k, the propensities, the training set's counts."""

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        *,
        at: tuple[int, ...] = USUAL_KS,
        a: float = USUAL[0],
        b: float = USUAL[1],
        as_published: bool = False,
    ) -> None:
        # Propensities and deciles count the training set as it was before validation was taken from it.
        train = (dataset.with_validation_in_train() if dataset.validation_was_taken else dataset).train
        self.split = split
        self.at = tuple(k for k in at if k <= len(dataset.labels)) or (1,)
        self._counts = train.relevance.label_counts()
        self._train_queries = len(train)
        self._a, self._b, self._as_published = a, b, as_published
        self._tokens: tuple[Encoder, TokenTable] | None = None  # as the last encoder took them

    def require(self, metric: str) -> None:
        """Refuses a metric that the reports will not have."""
        there = [f"{name}@{k}" for name in ("P", "nDCG", "R", "PSP", "PSnDCG") for k in self.at]
        if metric not in there:
            raise BadConfig(f"evaluation.metric = {metric!r}: there is {', '.join(there)}")

    def require_positives(self) -> None:
        """Refuses a split in which there is nothing to find."""
        if self.split.relevance.without(self.split.filtered).pairs == 0:
            raise BadInput(f"none of the {len(self.split):,} validation queries has a label; hold out more of train")

    def rank(
        self,
        encoder: Encoder,
        label_vectors: Tensor,
        *,
        token_budget: int | None = None,
        shard: Shard | None = None,
        ranker: Ranker | None = None,
        head_start: HeadStart | None = None,
        hidden: NDArray[np.int64] | None = None,
        at_least: int = 1,
    ) -> Ranking:
        """The best labels of each query of the split, filtered pairs and hidden label rows left out.

        As many as the largest k, or `at_least` if that is more. With a shard of the labels, processes share the
        queries to encode and the labels to search. A ranker, if there is one, puts the first labels in order.
        """
        if self._tokens is None or self._tokens[0] is not encoder:
            self._tokens = encoder, tokens_for(encoder, self.split.texts)
        tokens = self._tokens[1]
        queries = Shard(World() if shard is None else shard.world, len(tokens))
        own = tokens if len(queries) == len(tokens) else tokens.take(np.arange(queries.start, queries.stop))
        vectors = queries.gather(encode_tokens(encoder, own, token_budget=token_budget))
        wanted = max(*self.at, at_least)
        width = max(wanted, ranker.settings.candidates if ranker else 1)
        filtered = self.split.filtered.matrix
        count = len(self._counts) - (0 if hidden is None else len(hidden))
        wider = width if head_start is None else max(width, min(count, max(width, SPARE) + SPARE))
        dense = top_k(vectors, label_vectors, wider, shard=shard, excluding=filtered, hidden=hidden)
        dense = dense if head_start is None else head_start.lift(dense, width)
        if ranker is None:
            return dense
        return ranker.rerank(self.split.texts, vectors, dense).head(wanted)

    def report(self, ranking: Ranking, *, bootstrap: int = 1000) -> Report:
        """The metrics of a ranking of the split's queries, with 95 % intervals unless bootstrap is 0."""
        return evaluate(
            ranking,
            self.split.relevance.matrix,
            filtered=self.split.filtered.matrix,
            label_counts=self._counts,
            train_queries=self._train_queries,
            ks=self.at,
            a=self._a,
            b=self._b,
            bootstrap=bootstrap,
            as_published=self._as_published,
        )

    def terms(self, ranking: Ranking) -> dict[str, Terms]:
        """The metrics of a ranking query by query, for paired comparisons with another ranking of the split."""
        relevant, filtered = self.split.relevance.matrix, self.split.filtered.matrix
        scored, truth, _ = scored_part(ranking, relevant, filtered, as_published=self._as_published)
        inverse = inverse_propensities(self._counts, self._train_queries, self._a, self._b)
        return metric_terms(scored, truth, inverse, self.at)
