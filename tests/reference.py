"""Problems in the plainest form there is, under the shipped formulas: the judge of the streaming code."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from umpteen.objectives import Pairs, Targets, reference
from umpteen.objectives.reference import soft_threshold

__all__ = ["Pair", "Problem", "decoupled_softmax", "one_vs_all", "pairs", "soft_threshold", "soft_top_k", "softmax"]

Pair = tuple[int, int]  # (query, label)


def pairs(given: list[Pair]) -> Pairs:
    query, label = torch.tensor(given, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return Pairs(query, label)


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

    def targets(self) -> Targets:
        return Targets(
            pulled=pairs(self.pulled),
            relevant=pairs(self.pulled + self.unpulled),
            queries=len(self.queries),
            weights=None if self.weights is None else torch.tensor(self.weights, dtype=torch.float64),
            reduction=self.reduction,
            scale=None if self.scale is None else torch.tensor(self.scale, dtype=torch.float64),
        )

    def posed(self) -> tuple[Tensor, Targets, Pairs]:
        return self.scores(), self.targets(), pairs(self.filtered)


def softmax(problem: Problem) -> Tensor:
    return reference.softmax(*problem.posed())


def decoupled_softmax(problem: Problem) -> Tensor:
    return reference.decoupled_softmax(*problem.posed())


def soft_top_k(
    problem: Problem, k: int | list[int] | Literal["positives"], alpha: float, *, mask_unsampled: bool = False
) -> Tensor:
    size = torch.tensor(k) if isinstance(k, list) else k
    return reference.soft_top_k(*problem.posed(), k=size, alpha=alpha, mask_unsampled=mask_unsampled)


def one_vs_all(problem: Problem, scale: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    scores, *rest = problem.posed()
    return reference.one_vs_all(scale * scores + bias, *rest)
