"""One step of training: the same for every encoder and objective.

batch → labels in play → cached vectors → scores → objective → gradients at the vectors → replay → optimizer.

B: queries in the batch, L: labels in play, d: dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import AdamW

from umpteen.data.batches import draw_positives
from umpteen.data.relevance import Relevance
from umpteen.data.token_table import TokenTable
from umpteen.encoders.towers import Towers
from umpteen.errors import Diverged
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets
from umpteen.training.gradient_cache import CachedVectors
from umpteen.training.texts_in_play import TextsInPlay

Objective = Callable[[Scores, Targets], Tensor]


@dataclass(frozen=True)
class TrainingData:
    """What steps draw from: tokens of queries and labels, who is right for whom, and which pairs to ignore."""

    queries: TokenTable
    labels: TokenTable
    relevance: Relevance
    filtered: Relevance

    def __post_init__(self) -> None:
        # A filtered pair leaves everything: no query is drawn for its sake, and it takes no other positive's place.
        object.__setattr__(self, "relevance", self.relevance.without(self.filtered))


@dataclass(frozen=True)
class StepSettings:
    temperature: float
    reduction: Literal["mean", "sum"]
    positives_per_query: int | None
    token_budget: int
    tile: int | None
    clip_norm: float


@dataclass(frozen=True)
class StepOutcome:
    loss: float
    gradient_norm: float
    tokens: int


class TrainingStep:
    """Holds what stays the same from step to step; calling it trains on the given queries."""

    def __init__(
        self, towers: Towers, data: TrainingData, objective: Objective, optimizer: AdamW, settings: StepSettings
    ) -> None:
        self._towers = towers
        self._data = data
        self._objective = objective
        self._optimizer = optimizer
        self._settings = settings
        self._texts = TextsInPlay(data.queries, data.labels, shared=towers.shared)

    def __call__(self, rows: NDArray[np.int64], *, step: int, seed: int) -> StepOutcome:
        """The outcome of one update of the weights; everything random in it follows from (seed, step)."""
        self._towers.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss, tokens = self.gradients(rows, step=step, seed=seed)
        if not np.isfinite(loss):
            raise Diverged(
                f"the loss is {loss} at step {step + 1}; the last checkpoint, if there is one, is kept. "
                "Lower optimizer.learning_rate, or raise objective.temperature"
            )
        limit = self._settings.clip_norm or float("inf")
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if not torch.isfinite(norm):
            raise Diverged(f"the gradient's norm is {norm.item()} at step {step + 1}; the last checkpoint is kept")
        self._optimizer.step()
        return StepOutcome(loss=loss, gradient_norm=float(norm), tokens=tokens)

    def gradients(self, rows: NDArray[np.int64], *, step: int, seed: int) -> tuple[float, int]:
        """Leaves the batch's gradient on the weights; returns its loss and the number of tokens encoded."""
        settings = self._settings
        rng = np.random.default_rng([seed, step])
        parts = self._texts.in_play(rows)
        cached = [
            CachedVectors(
                encoder,
                part.lengths,
                part.fetch,
                budget=settings.token_budget,
                seed=int(np.random.SeedSequence([seed, step, side]).generate_state(1, np.uint32)[0]),
            )
            for side, (encoder, part) in enumerate(
                zip([self._towers.query, self._towers.label], parts.encoded, strict=False)
            )
        ]
        queries = self._leaf(cached[0], parts.queries)  # [B, d]
        labels = self._leaf(cached[-1], parts.labels)  # [L, d]
        targets, filtered = self._targets(rows, rng, labels.device)
        scores = Scores(queries, labels, temperature=settings.temperature, filtered=filtered, tile=settings.tile)
        loss = self._objective(scores, targets)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        for cache, positions, leaf in ((cached[0], parts.queries, queries), (cached[-1], parts.labels, labels)):
            if leaf.grad is not None and np.isfinite(value):
                cache.add_gradients(_on(positions, leaf.device), leaf.grad)
        del scores, loss, queries, labels, leaf
        for cache in cached:
            cache.replay()
        return value, sum(int(part.lengths.sum()) for part in parts.encoded)

    def _leaf(self, cache: CachedVectors, positions: NDArray[np.int64] | None) -> Tensor:
        vectors = cache.vectors if positions is None else cache.vectors[_on(positions, cache.vectors.device)]
        return vectors.requires_grad_()

    def _targets(
        self, rows: NDArray[np.int64], rng: np.random.Generator, device: torch.device
    ) -> tuple[Targets, Pairs | None]:
        settings = self._settings
        relevance = self._data.relevance
        query, label, weights = draw_positives(relevance, rows, settings.positives_per_query, rng)
        batch = relevance.take(rows)
        relevant = _pairs(batch, device)
        filtered = self._data.filtered.take(rows)
        scale = None
        if settings.positives_per_query is not None:
            # Sampling n of a query's positives is unbiased for their sum once scaled by |P| / n; a mean ignores it.
            every, _, _ = draw_positives(relevance, rows, None, rng)
            counts = [np.bincount(queries, minlength=len(rows)) for queries in (every, query)]
            scale = torch.from_numpy(counts[0] / np.maximum(counts[1], 1)).to(device)
        targets = Targets(
            pulled=Pairs(torch.from_numpy(query).to(device), torch.from_numpy(label).to(device)),
            relevant=relevant,
            queries=len(rows),
            weights=torch.from_numpy(weights).to(device) if batch.graded else None,
            reduction=settings.reduction,
            scale=scale,
        )
        return targets, _pairs(filtered, device) if filtered.matrix.nnz else None


def _on(positions: NDArray[np.int64] | None, device: torch.device) -> Tensor | None:
    return None if positions is None else torch.from_numpy(positions).to(device)


def _pairs(relevance: Relevance, device: torch.device) -> Pairs:
    matrix = relevance.matrix
    query = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return Pairs(torch.from_numpy(query).to(device), torch.from_numpy(matrix.indices.astype(np.int64)).to(device))
