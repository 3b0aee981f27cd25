"""The judge: every objective as its formula reads, dense and slow, one query after another.

Autograd differentiates these; the streaming code has to agree with them in value and in gradient.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Pair = tuple[int, int]  # (query, label)


@dataclass
class Problem:
    """Vectors and targets in the plainest form there is."""

    queries: Tensor  # [B, d]
    labels: Tensor  # [L, d]
    pulled: list[Pair]
    unpulled: list[Pair] = field(default_factory=list)  # relevant, but not to be raised
    filtered: list[Pair] = field(default_factory=list)
    weights: list[float] | None = None  # of the pulled pairs
    scale: list[float] | None = None  # of the queries
    reduction: Literal["mean", "sum"] = "mean"
    temperature: float = 1.0

    def scores(self) -> Tensor:
        return self.queries @ self.labels.T / self.temperature  # [B, L]

    def terms(self, query: int) -> list[tuple[int, float]]:
        """(label, weight) of every pair of this query that is really pulled."""
        weights = self.weights or [1.0] * len(self.pulled)
        return [
            (label, weight)
            for (owner, label), weight in zip(self.pulled, weights, strict=True)
            if owner == query and weight > 0 and (query, label) not in self.filtered
        ]

    def relevant(self, query: int) -> set[int]:
        return {j for i, j in self.pulled + self.unpulled if i == query and (i, j) not in self.filtered}

    def in_play(self, query: int) -> list[int]:
        return [j for j in range(len(self.labels)) if (query, j) not in self.filtered]


def softplus(value: Tensor) -> Tensor:
    return -logsigmoid(-value)


def softmax(problem: Problem) -> Tensor:
    """−log(e^s / Σ_j e^s_j), j over all labels in play."""
    scores = problem.scores()

    def term(query: int, label: int) -> Tensor:
        return torch.logsumexp(scores[query, problem.in_play(query)], 0) - scores[query, label]

    return _mean(problem, term)


def decoupled_softmax(problem: Problem) -> Tensor:
    """−log(e^s / (e^s + Σ_j e^s_j)), j over the labels in play that are not relevant."""
    scores = problem.scores()

    def term(query: int, label: int) -> Tensor:
        rivals = [j for j in problem.in_play(query) if j not in problem.relevant(query)]
        return torch.logsumexp(scores[query, [label, *rivals]], 0) - scores[query, label]

    return _mean(problem, term)


def soft_top_k(problem: Problem, k: int | list[int] | Literal["positives"], alpha: float) -> Tensor:
    """−log σ(alpha · (s − t)), t being the threshold of the query."""
    scores = problem.scores()

    @cache
    def threshold(query: int) -> Tensor:
        size = k if isinstance(k, int) else len(problem.relevant(query)) if k == "positives" else k[query]
        in_play = scores[query, problem.in_play(query)]
        return soft_threshold(in_play, size, alpha) if 0 < size < len(in_play) else torch.tensor(-torch.inf)

    def term(query: int, label: int) -> Tensor:
        return softplus(alpha * (threshold(query) - scores[query, label]))

    return _mean(problem, term)


def one_vs_all(problem: Problem) -> Tensor:
    """Yes-or-no cross-entropy of every pulled pair and of every pair in play that is not relevant."""
    scores = problem.scores()
    total = scores.sum() * 0
    for query in range(len(scores)):
        for label in problem.in_play(query):
            if label not in problem.relevant(query):
                total = total + softplus(scores[query, label])
        for label, weight in problem.terms(query):
            total = total + weight * _scale(problem, query) * softplus(-scores[query, label])
    return total / max(len(scores), 1)


def soft_threshold(scores: Tensor, k: int, alpha: float) -> Tensor:
    """The t with Σ_j σ(alpha · (s_j − t)) = k, by bisection; dt/ds_j = σ'_j / Σ_l σ'_l."""
    fixed = scores.detach().sort(descending=True).values
    low, high = fixed[-1] - 100 / alpha, fixed[0] + 100 / alpha
    for _ in range(80):
        middle = (low + high) / 2
        # Σσ > k, asked so that a wide gap after the k-th score cannot swallow the answer
        lacking = logsigmoid(alpha * (middle - fixed[:k])).logsumexp(0)
        having = logsigmoid(alpha * (fixed[k:] - middle)).logsumexp(0)
        low, high = (middle, high) if having > lacking else (low, middle)
    distance = alpha * (scores.detach() - low)
    shares = (logsigmoid(distance) + logsigmoid(-distance)).softmax(0)  # σ' = σ(x) σ(−x)
    return low + (shares * (scores - scores.detach())).sum()


def _mean(problem: Problem, term) -> Tensor:  # type: ignore[no-untyped-def]
    total = problem.queries.sum() * 0 + problem.labels.sum() * 0
    for query in range(len(problem.queries)):
        terms = [(weight, term(query, label)) for label, weight in problem.terms(query)]
        if not terms:
            continue
        share = 1 / sum(weight for weight, _ in terms) if problem.reduction == "mean" else _scale(problem, query)
        total = total + share * sum(weight * value for weight, value in terms)
    return total / max(len(problem.queries), 1)


def _scale(problem: Problem, query: int) -> float:
    return 1.0 if problem.scale is None else problem.scale[query]
