"""Metrics of a ranking, their 95 % intervals and paired differences, and reports of them, by label frequency, too.

P, nDCG, R, PSP and PSnDCG at k are kept query by query. Every one is a ratio of two means over queries: what was
achieved ÷ what was possible (1 for P, nDCG and R), as pyxclib has it. Any stored entry of the truth is a positive,
whatever its weight. N queries, W the ranking's width, R resamples, M metrics. The same code evaluates validation during
training and test at the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import Relevance
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder, encode_tokens, tokens_for
from umpteen.errors import BadConfig, BadInput
from umpteen.parallel.world import Shard, World
from umpteen.search.exact import top_k
from umpteen.search.ranking import NO_LABEL, Ranking, contains

USUAL_KS = (1, 3, 5, 10, 100)
# A and B as the field uses them; a figure is only comparable with others that used the same two.
USUAL = (0.55, 1.5)
DECILES, DECILES_AT = 10, (1, 5)
_QUERIES_AT_A_TIME = 65_536
_COUNTS_AT_A_TIME = 1 << 22  # 32 MB of float64
Floats = NDArray[np.float64]
Interval = tuple[float, float]


def inverse_propensities(
    label_counts: NDArray[np.integer], queries: int, a: float = USUAL[0], b: float = USUAL[1]
) -> Floats:
    """1/p_l = 1 + C (N_l + B)^−A with C = (log N − 1)(B + 1)^A; N_l of the N training queries have label l."""
    # With fewer than 3 queries C would be negative and rare labels would count less, not more.
    c = max(0.0, math.log(max(1, queries)) - 1) * (b + 1) ** a
    inverse: Floats = 1 + c * (label_counts.astype(np.float64) + b) ** -a
    return inverse


class Terms(NamedTuple):
    """One metric before averaging."""

    achieved: Floats  # [N]
    possible: Floats  # [N]

    @property
    def value(self) -> float:
        """The metric, from 0 to 1; 0 where nothing was possible."""
        return _share(self.achieved.sum(), self.possible.sum())


def metric_terms(ranking: Ranking, truth: csr_array, inverse_propensity: Floats, ks: Sequence[int]) -> dict[str, Terms]:
    """Terms of every metric by name ("P@1", "nDCG@5", …). Queries without positives achieve 0."""
    check_ranking(ranking, truth, ks)
    parts = []
    for start in range(0, max(1, len(ranking)), _QUERIES_AT_A_TIME):
        some = slice(start, start + _QUERIES_AT_A_TIME)
        part = Ranking(ranking.rows[some], ranking.scores[some], ranking.labels)
        parts.append(_terms(part, csr_array(truth[some]), inverse_propensity, ks))
    return {name: Terms(*map(np.concatenate, zip(*(part[name] for part in parts), strict=True))) for name in parts[0]}


def _terms(ranking: Ranking, truth: csr_array, inverse: Floats, ks: Sequence[int]) -> dict[str, Terms]:
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
        both = f"metrics at k = {max(ks):,} need {max(ks):,} labels a query, but the ranking holds {ranking.width:,}"
        raise BadInput(f"{both}; search with k = {max(ks)} or ask for metrics up to {ranking.width}")
    if truth.shape != (len(ranking), ranking.labels):
        ranked, right = f"{len(ranking):,} queries and {ranking.labels:,} labels", "{:,} and {:,}".format(*truth.shape)
        raise BadInput(f"the ranking is of {ranked}, the truth of {right}; are they of the same split?")


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
    check_ranking(ranking, truth, (1,))
    given = given & (ranking.rows != NO_LABEL)
    kinds = ranking.rows[given & contains(truth, ranking.rows)], ranking.rows[given], truth.indices
    hits_of, given_of, right_of = (np.bincount(rows, minlength=ranking.labels) for rows in kinds)
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
    interval: Interval  # 95 %
    p: float  # two-sided: how often resampling turns the sign

    def to_dict(self) -> dict[str, Any]:
        """In percent points, ready for JSON."""
        return {"value": 100 * self.value, "interval": [100 * side for side in self.interval], "p": self.p}


def bootstrap_intervals(terms: Mapping[str, Terms], resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
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
            both = f"ours has {len(ours[name].achieved):,}, theirs {len(theirs[name].achieved):,}"
            raise BadInput(f"a paired comparison needs the same queries: {both}")
    if not names:
        return {}
    values = _resampled([side[name] for side in (ours, theirs) for name in names], resamples, seed)
    differences = values[:, : len(names)] - values[:, len(names) :]  # [R, M]
    low, high = np.quantile(differences, [0.025, 0.975], axis=0).tolist()
    turned = np.minimum((differences <= 0).sum(0), (differences >= 0).sum(0))
    # One is added to both sides, since resampling can never show that a chance is 0.
    chances = np.minimum(1.0, 2 * (turned + 1) / (resamples + 1)).tolist()
    sides = zip(names, zip(low, high, strict=True), chances, strict=True)
    return {name: Difference(ours[name].value - theirs[name].value, interval, p) for name, interval, p in sides}


def _resampled(terms: Sequence[Terms], resamples: int, seed: int) -> Floats:
    """Every metric of every resample: N queries drawn with replacement, held as how often each of them was drawn, so
    that all metrics of many resamples are two matrix products."""  # [R, M]
    achieved, possible = (np.stack(side, 1) for side in zip(*terms, strict=True))  # [N, M]
    if (queries := len(achieved)) == 0:
        raise BadInput("there is no query to draw from; an interval needs some")
    random, values = np.random.default_rng(seed), []
    at_a_time = max(1, _COUNTS_AT_A_TIME // queries)
    for start in range(0, resamples, at_a_time):
        some = min(at_a_time, resamples - start)
        drawn = random.integers(queries, size=(some, queries)) + np.arange(some)[:, None] * queries
        counts = np.bincount(drawn.ravel(), minlength=some * queries).reshape(some, queries).astype(np.float64)
        best = counts @ possible
        values.append(np.divide(counts @ achieved, best, out=np.zeros_like(best), where=best != 0))
    return np.concatenate(values)


def precision_by_decile(
    ranking: Ranking, truth: csr_array, label_counts: NDArray[np.integer], ks: tuple[int, ...]
) -> list[dict[str, int | float]]:
    """What each decile's labels, the most frequent first, contribute to P@k, in percent: all ten add up to it.

    Sizes differ by at most one, equal counts go by row.
    """
    hits = contains(truth, ranking.rows)
    found = {k: np.bincount(ranking.rows[:, :k][hits[:, :k]], minlength=ranking.labels) for k in ks}
    by_frequency = np.argsort(-label_counts.astype(np.int64), kind="stable")
    table: list[dict[str, int | float]] = []
    for decile, labels in enumerate(np.array_split(by_frequency, DECILES), 1):
        counts = label_counts[labels]
        fewest = int(counts.min()) if len(counts) else 0
        sizes = {"labels": len(counts), "most_queries": int(counts.max(initial=0)), "fewest_queries": fewest}
        shares = {f"P@{k}": float(found[k][labels].sum()) * 100 / (k * len(ranking)) for k in ks}
        table.append({"decile": decile, **sizes, **shares})
    return table


@dataclass(frozen=True)
class Report:
    """What is printed, saved with a model, and compared."""

    metrics: dict[str, float]  # percent
    intervals: dict[str, Interval]  # percent, 95 %; empty without a bootstrap
    deciles: list[dict[str, int | float]]
    queries: int  # in the means
    queries_left_out: int  # they have no positives
    propensity: dict[str, float]  # the constants A and B
    resamples: int
    as_published: bool
    calibration: dict[str, Any] | None = None  # of a calibrated model: calibration error, precisions, rules
    terms: dict[str, Terms] = field(default_factory=dict, compare=False, repr=False)  # for paired comparisons

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the terms."""
        return {name: value for name, value in vars(self).items() if name != "terms" and value is not None}

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
    as_published: bool = False,
) -> Report:
    """The report of a ranking against the truth (queries × labels; every stored entry is a positive).

    Filtered pairs leave both the ranking and the truth. Queries that then have no positives are left out of the
    means and counted. With `as_published`, filtered pairs stay in the truth, where nobody can find them, and queries
    without positives count as failures, as in the published code and pyxclib. `label_counts` and `train_queries` are of
    the whole training set; without a bootstrap (0 resamples) there are no intervals.
    """
    check_ranking(ranking, truth, ks)
    if len(label_counts) != ranking.labels:
        raise BadInput(f"label counts are of {len(label_counts):,} labels, the ranking of {ranking.labels:,}")
    if filtered is not None:
        ranking = ranking.without(filtered)
        truth = truth if as_published else Relevance(truth).without(Relevance(filtered)).matrix
    left_out = 0
    if not as_published:
        answerable = np.diff(truth.indptr) > 0
        left_out = int((~answerable).sum())
        ranking = Ranking(ranking.rows[answerable], ranking.scores[answerable], ranking.labels)
        truth = truth[answerable]
    if len(ranking) == 0:
        raise BadInput(f"none of {left_out:,} queries has a positive label; there is nothing to score")
    terms = metric_terms(ranking, truth, inverse_propensities(label_counts, train_queries, a, b), ks)
    intervals = bootstrap_intervals(terms, bootstrap) if bootstrap else {}
    return Report(
        metrics={name: 100 * term.value for name, term in terms.items()},
        intervals={name: (100 * low, 100 * high) for name, (low, high) in intervals.items()},
        deciles=precision_by_decile(ranking, truth, label_counts, tuple(k for k in DECILES_AT if k in ks)),
        queries=len(ranking),
        queries_left_out=left_out,
        propensity={"A": a, "B": b},
        resamples=bootstrap,
        as_published=as_published,
        terms=terms,
    )


class Evaluator:
    """One split, and how it is evaluated: at which k, and by `evaluate`'s a, b and as_published."""

    def __init__(self, dataset: Dataset, split: Split, *, at: tuple[int, ...] = USUAL_KS, **how: Any) -> None:
        # Propensities and deciles count the training set as it was before validation was taken from it.
        train = (dataset.with_validation_in_train() if dataset.validation_was_taken else dataset).train
        self.split = split
        self.at = tuple(k for k in at if k <= len(dataset.labels)) or (1,)
        known = {"label_counts": train.relevance.label_counts(), "train_queries": len(train)}
        self._how: dict[str, Any] = {**how, **known, "filtered": split.filtered.matrix, "ks": self.at}
        self._tokens: tuple[Encoder, TokenTable] | None = None  # as the last encoder took them

    def require(self, metric: str) -> None:
        """Refuses a metric that the reports will not have."""
        there = [f"{name}@{k}" for name in ("P", "nDCG", "R", "PSP", "PSnDCG") for k in self.at]
        if metric not in there:
            advice = f"choose by one of them, for example --set evaluation.metric={there[0]} (of compare: --metric)"
            raise BadConfig(f"evaluation.metric = {metric!r}: there is {', '.join(there)}; {advice}")

    def require_positives(self) -> None:
        """Refuses a split in which there is nothing to find."""
        if self.split.relevance.without(self.split.filtered).pairs == 0:
            raise BadInput(f"none of the {len(self.split):,} validation queries has a label; hold out more of train")

    def rank(
        self, encoder: Encoder, label_vectors: Tensor, *, token_budget: int | None = None, shard: Shard | None = None
    ) -> Ranking:
        """The best labels of each query of the split by a dual encoder, as many as the largest k; filtered pairs are
        left out. With a shard of the labels, processes share the queries to encode and the labels to search."""
        if self._tokens is None or self._tokens[0] is not encoder:
            self._tokens = encoder, tokens_for(encoder, self.split.texts)
        tokens = self._tokens[1]
        queries = Shard(World() if shard is None else shard.world, len(tokens))
        vectors = queries.gather(encode_tokens(encoder, tokens.take(queries.rows), token_budget=token_budget))
        return top_k(vectors, label_vectors, max(self.at), shard=shard, excluding=self.split.filtered.matrix)

    def report(self, ranking: Ranking, *, bootstrap: int = 1000) -> Report:
        """The metrics of a ranking of the split's queries, with 95 % intervals unless bootstrap is 0."""
        return evaluate(ranking, self.split.relevance.matrix, bootstrap=bootstrap, **self._how)
