"""What a loss should raise, what it must not push down, and how its terms become one number."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from umpteen.errors import BadInput

TopK = int | Tensor | Literal["positives"]  # one k, one for each query [B], or as many as are relevant to the query


class Pairs(NamedTuple):
    """Pairs of a query (its position in the batch) and a label (its position among the labels in play)."""

    query: Tensor  # int64 [p]
    label: Tensor  # int64 [p]

    @classmethod
    def empty(cls) -> Self:
        return cls(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    def take(self, kept: Tensor) -> "Pairs":
        """The pairs at `kept`, a mask or positions."""
        return Pairs(self.query[kept], self.label[kept])

    def joined(self, others: "Pairs | None") -> "Pairs":
        """These pairs, then the others, if there are any."""
        if others is None:
            return self
        query, label = (torch.cat([mine, theirs.to(mine.device)]) for mine, theirs in zip(self, others, strict=True))
        return Pairs(query, label)

    def within(self, others: "Pairs") -> Tensor:
        """Which of these pairs also stand among the others."""
        width = 1 + max((int(pairs.label.max()) for pairs in (self, others) if len(pairs.label)), default=0)
        return torch.isin(self.query * width + self.label, others.query * width + others.label)  # bool [p]

    def per_query(self, queries: int) -> Tensor:
        """How many distinct labels each of so many queries is paired with."""
        width = 1 + (int(self.label.max()) if len(self.label) else 0)
        distinct = torch.unique(self.query * width + self.label)
        return torch.bincount(distinct // width, minlength=queries)  # int64 [B]


@dataclass(frozen=True)
class Targets:
    """The pairs a loss pulls up, and all it knows to be right and must not push down.

    A pair given twice in `pulled` counts twice; in `relevant` it does not matter. A pulled pair of weight 0 is
    relevant but not pulled, and is taken off the list here.
    """

    pulled: Pairs
    relevant: Pairs  # holds the pulled pairs too
    queries: int  # B, those without positives included
    weights: Tensor | None = None  # [pulled] graded relevance, 1 if left out
    reduction: Literal["mean", "sum"] = "mean"
    scale: Tensor | None = None  # [B] positives a query has ÷ positives pulled: keeps a sum over sampled ones unbiased

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise BadInput(f"reduction {self.reduction!r} is not known; use 'mean' or 'sum'")
        for name, pairs in (("pulled", self.pulled), ("relevant", self.relevant)):
            if len(pairs.query) and not 0 <= int(pairs.query.min()) <= int(pairs.query.max()) < self.queries:
                raise BadInput(f"a {name} pair names a query outside the batch of {self.queries:,}")
        if not bool(self.pulled.within(self.relevant).all()):
            raise BadInput("a pulled pair is missing among the relevant ones; list every pulled pair there too")
        if self.scale is not None and self.scale.shape != (self.queries,):
            both = f"{tuple(self.scale.shape)}; one number a query is needed, ({self.queries},)"
            raise BadInput(f"scale has shape {both}")
        if self.weights is not None:
            if self.weights.shape != self.pulled.query.shape:
                raise BadInput(f"{len(self.weights):,} weights for {len(self.pulled.query):,} pulled pairs")
            if not bool((self.weights >= 0).all() & self.weights.isfinite().all()):
                raise BadInput("a weight is negative, infinite or not a number; weights must be 0 or more")
            kept = self.weights > 0
            object.__setattr__(self, "pulled", self.pulled.take(kept))
            object.__setattr__(self, "weights", self.weights[kept])

    @property
    def unpulled(self) -> Pairs:
        """What is relevant and is not pulled."""
        return self.relevant.take(~self.relevant.within(self.pulled))

    def without(self, filtered: Pairs | None) -> "Targets":
        """The same targets after the filtered pairs have left: they are neither pulled nor relevant."""
        if filtered is None or not len(filtered.query):
            return self
        kept, right = ~self.pulled.within(filtered), ~self.relevant.within(filtered)
        weights = None if self.weights is None else self.weights[kept]
        return replace(self, pulled=self.pulled.take(kept), relevant=self.relevant.take(right), weights=weights)

    def mean(self, terms: Tensor) -> Tensor:
        """One number from the pulled pairs' terms [pulled], always divided by the queries of the batch.

        "mean" first averages over each query's pulled pairs, Σ w·term / Σ w (the published code; the default);
        "sum" adds them, Σ w·term · scale (the paper's formula).
        """
        if self.reduction == "sum":
            return self.sum(terms)
        weights = torch.ones_like(terms) if self.weights is None else self.weights.to(terms)
        totals = terms.new_zeros(self.queries).index_add_(0, self.pulled.query, weights)
        return (weights / totals[self.pulled.query] * terms).sum() / max(self.queries, 1)

    def sum(self, terms: Tensor) -> Tensor:
        """Σ w·term · scale over the pulled pairs, divided by the queries of the batch."""
        if self.weights is not None:
            terms = terms * self.weights.to(terms)
        if self.scale is not None:
            terms = terms * self.scale.to(terms)[self.pulled.query]
        return terms.sum() / max(self.queries, 1)
