"""One step of training: the same for every encoder and objective.

batch → labels in play → cached vectors → scores → objective → gradients at the vectors → replay → optimizer.

Each process encodes its share of the queries and its shard of the labels; all of them get all queries' vectors. The
loss is the same on every process, gradients are added up once, and nothing is multiplied or divided by their number.

B: queries in the batch, L: labels in play, d: dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import AdamW

from umpteen.data.batches import draw_positives
from umpteen.data.relevance import Relevance
from umpteen.data.token_table import TokenTable
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig, Diverged
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.gradient_cache import CachedVectors
from umpteen.training.gradient_sum import sum_gradients_
from umpteen.training.memory import TooLittleMemory, together
from umpteen.training.sampled_replay import Thinned, thin
from umpteen.training.texts_in_play import InPlay, TextsInPlay

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
    replay_fraction: float | None = None  # of the labels, sampled; None replays all of them


@dataclass(frozen=True)
class StepOutcome:
    loss: float
    gradient_norm: float
    tokens: int  # encoded by this process
    replay: dict[str, float]  # of a sampled replay: what it spared and what it cost; else empty


class Gradients(NamedTuple):
    """What a batch left on the weights, besides its gradient."""

    loss: float
    tokens: int
    thinned: Thinned | None


class TrainingStep:
    """Holds what stays the same from step to step; calling it trains on the given queries."""

    def __init__(
        self,
        towers: Towers,
        data: TrainingData,
        objective: Objective,
        optimizer: AdamW,
        settings: StepSettings,
        *,
        world: World | None = None,
        notice: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._towers = towers
        self._data = data
        self._objective = objective
        self._optimizer = optimizer
        self._settings = settings
        self._world = world or World()
        self._notice = notice
        self._budget = settings.token_budget
        self._longest = int(max(table.lengths.max(initial=1) for table in (data.queries, data.labels)))
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._labels = Shard(self._world, len(data.labels))
        own = data.labels.take(np.arange(self._labels.start, self._labels.stop))
        self._texts = TextsInPlay(data.queries, own, shared=towers.shared)

    def __call__(self, rows: NDArray[np.int64], *, step: int, seed: int) -> StepOutcome:
        """The outcome of one update of the weights; everything random in it follows from (seed, step).

        `rows` is the whole batch, the same on every process.
        """
        self._towers.train()
        loss, tokens, thinned = self._gradients_within_memory(rows, step=step, seed=seed)
        if not np.isfinite(loss):
            raise Diverged(
                f"the loss is {loss} at step {step + 1}; the last checkpoint, if there is one, is kept. "
                "Lower optimizer.learning_rate, or raise objective.temperature"
            )
        limit = self._settings.clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        if not torch.isfinite(norm):
            raise Diverged(f"the gradient's norm is {norm.item()} at step {step + 1}; the last checkpoint is kept")
        if thinned is None:
            self._optimizer.step()
            return StepOutcome(loss, float(norm), tokens, {})
        before = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer.step()
        moved = [(parameter.detach() - old).norm() for parameter, old in zip(self._parameters, before, strict=True)]
        replay = {
            "replayed": thinned.fraction,
            "replay_noise": thinned.noise,
            "clipped": float(norm > limit),
            "update_norm": float(torch.stack(moved).norm()),
        }
        return StepOutcome(loss, float(norm), tokens, replay)

    def _gradients_within_memory(self, rows: NDArray[np.int64], *, step: int, seed: int) -> Gradients:
        """The batch's gradients; each time the memory does not suffice, from the beginning with half the budget."""
        while True:
            self._optimizer.zero_grad(set_to_none=True)
            try:
                return self.gradients(rows, step=step, seed=seed)
            except TooLittleMemory:
                if self._budget <= self._longest:
                    raise  # a micro-batch is a single text already
                self._budget //= 2
                self._notice(
                    f"out of memory at step {step + 1:,}: it starts again, with micro-batches of {self._budget:,} "
                    f"tokens; --set training.token_budget={self._budget} spares the next run this"
                )

    def gradients(self, rows: NDArray[np.int64], *, step: int, seed: int) -> Gradients:
        """Leaves the batch's gradient on the weights, the same on every process."""
        settings, world = self._settings, self._world
        rng = np.random.default_rng([seed, step])
        batch = Shard(world, len(rows))
        parts = self._texts.in_play(rows[batch.rows])
        cached = together(world, lambda: self._encode(parts, step=step, seed=seed))
        queries = batch.gather(cached[0].at(parts.queries)).requires_grad_()  # [B, d]
        labels = cached[-1].at(parts.labels).requires_grad_()  # [L, d], this shard's
        targets, filtered = self._targets(rows, rng, labels.device)
        scores = Scores(
            queries,
            labels,
            shard=self._labels,
            temperature=settings.temperature,
            filtered=filtered,
            tile=settings.tile,
        )
        loss = self._objective(scores, targets)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        value, to_queries, to_labels, thinned = float(loss.detach()), queries.grad, labels.grad, None
        del scores, loss, queries, labels
        if to_queries is not None and to_labels is not None and np.isfinite(value):
            cached[0].add_gradients(parts.queries, world.sum_(to_queries)[batch.rows])
            if settings.replay_fraction is None:
                cached[-1].add_gradients(parts.labels, to_labels)
            else:
                chosen, to_labels, thinned = thin(to_labels, settings.replay_fraction, self._labels, rng.random())
                _refuse_dropout(cached[-1])
                everywhere = np.arange(len(self._labels)) if isinstance(parts.labels, slice) else parts.labels
                cached[-1].add_gradients(everywhere[chosen], to_labels)
            del to_queries, to_labels
            together(world, lambda: [cache.replay() for cache in cached])
        sum_gradients_(self._parameters, world)
        tokens = sum(int(part.lengths.sum()) for part in parts.encoded)
        return Gradients(value, tokens, thinned)

    def _encode(self, parts: InPlay, *, step: int, seed: int) -> list[CachedVectors]:
        towers = [self._towers.query, self._towers.label][: len(parts.encoded)]
        # Processes must not draw the same dropout for different texts.
        own = [self._world.rank] if self._world.rank else []
        return [
            CachedVectors(
                tower,
                part.lengths,
                part.fetch,
                budget=self._budget,
                seed=int(np.random.SeedSequence([seed, step, side, *own]).generate_state(1, np.uint32)[0]),
            )
            for side, (tower, part) in enumerate(zip(towers, parts.encoded, strict=True))
        ]

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


def _refuse_dropout(labels: CachedVectors) -> None:
    if labels.is_random:
        raise BadConfig(
            "training.replay_fraction: dropout ties a text to its micro-batch, so leaving texts out would spare "
            "nothing; set dropout = 0 and hidden_dropout = 0 for the label tower"
        )


def _pairs(relevance: Relevance, device: torch.device) -> Pairs:
    matrix = relevance.matrix
    query = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return Pairs(torch.from_numpy(query).to(device), torch.from_numpy(matrix.indices.astype(np.int64)).to(device))
