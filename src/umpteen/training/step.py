"""One step of training: the same for every encoder, objective and pool of competing labels.

batch → labels in play → cached vectors → scores → objective → gradients at the vectors → replay → optimizer.

Each process encodes its share of the queries and its shard of the labels; all of them get all queries' vectors. The
loss is the same on every process, gradients are added up once, and nothing is multiplied or divided by their number.

B: queries in the batch, L: labels in play, d: dimension.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import AdamW

from umpteen.encoders.encoder import Encoder, Share
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig, Diverged
from umpteen.files.progress import Notice
from umpteen.objectives.losses import Objective
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets
from umpteen.parallel.world import Shard, TooLittleMemory, World, together
from umpteen.training.gradient_cache import CachedVectors, Positions, Thinned, sum_gradients_, thin
from umpteen.training.inputs import DistinctTexts, TextsInPlay, TrainingData, in_pool
from umpteen.training.negatives.pool import Batch, Draw, Pool
from umpteen.training.optimizer import clip_gradients_


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
    pool: dict[str, float]  # the labels in play, and how stale the mined ones are; empty when all labels are


class Gradients(NamedTuple):
    """What a batch left on the weights, besides its gradient."""

    loss: float
    tokens: int
    thinned: Thinned | None
    pool: dict[str, float]


class Side(NamedTuple):
    """Queries or labels of a batch: where they stand in the cache that holds their vectors."""

    cache: CachedVectors
    positions: Positions

    def vectors(self) -> Tensor:
        return self.cache.at(self.positions)


class Encoded(NamedTuple):
    """A batch's vectors, and the way back from them to the weights."""

    queries: Side  # of this process's share
    labels: Side  # of this process's shard of the labels in play; shared towers have one cache for both sides
    vectors: Tensor  # [B, d] of all queries
    shard: Shard  # of the labels in play
    draw: Draw | None  # None: all labels are in play

    @property
    def caches(self) -> list[CachedVectors]:
        queries, labels = self.queries.cache, self.labels.cache
        return [queries] if queries is labels else [queries, labels]


class AtVectors(NamedTuple):
    """The gradients of a batch's loss at the vectors of all queries and of this shard's labels."""

    queries: Tensor  # [B, d], this process's part of the sum over all
    labels: Tensor  # [L, d]


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
        pool: Pool | None = None,
        notice: Notice = lambda message: None,
    ) -> None:
        self.pool = pool  # None: all labels compete at every step
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
        self._told_of_lonely_queries = False

    def __call__(self, rows: NDArray[np.int64], *, step: int, seed: int) -> StepOutcome:
        """The outcome of one update of the weights; everything random in it follows from (seed, step).

        `rows` is the whole batch, the same on every process.
        """
        if self.pool is not None:
            self.pool.prepare(step)
        self._towers.train()
        loss, tokens, thinned, pool = self._gradients_within_memory(rows, step=step, seed=seed)
        if not np.isfinite(loss):
            raise self._diverged(f"the loss is {loss}", step)
        limit = self._settings.clip_norm or float("inf")
        norm = clip_gradients_(self._optimizer, limit, self._world)
        if not torch.isfinite(norm):
            raise self._diverged(f"the gradient's norm is {norm.item()}", step)
        if thinned is None:
            self._optimizer.step()
            return StepOutcome(loss, float(norm), tokens, {}, pool)
        before = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer.step()
        moved = [(parameter.detach() - old).norm() for parameter, old in zip(self._parameters, before, strict=True)]
        replay = {
            "replayed": thinned.fraction,
            "replay_noise": thinned.noise,
            "clipped": float(norm > limit),
            "update_norm": float(torch.stack(moved).norm()),
        }
        return StepOutcome(loss, float(norm), tokens, replay, pool)

    def _diverged(self, what: str, step: int) -> Diverged:
        rate = max(group["lr"] for group in self._optimizer.param_groups)
        return Diverged(
            f"{what} at step {step + 1:,}, where the learning rate was {rate:.2g}; lower optimizer.learning_rate, or "
            "raise objective.temperature; the last checkpoint, if there is one, is kept"
        )

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
        """The batch's loss; its gradient then stands on the weights, the same on every process."""
        rng = np.random.default_rng([seed, step])
        targets, filtered = self._data.targets(
            rows, self._settings.positives_per_query, self._settings.reduction, rng, device=self._parameters[0].device
        )
        if self.pool is None:
            encoded = self._encode_all(rows, step=step, seed=seed)
        else:
            encoded = self._encode_pool(rows, targets, filtered, rng, step=step, seed=seed)
            assert encoded.draw is not None
            if not len(encoded.draw.rows):  # a batch of unlabelled queries, and nothing was mined: nothing to learn
                return Gradients(
                    0.0, encoded.queries.cache.tokens, None, self._pool_report(encoded.draw, targets, None)
                )
            targets, filtered = in_pool(targets, filtered, encoded.draw)
        loss, at_vectors = self._at_vectors(encoded, targets, filtered)
        thinned = None
        if at_vectors is not None and np.isfinite(loss):
            thinned = self._hand_over(encoded, at_vectors, rng)
            del at_vectors  # may be as large as all labels; what is needed of it is in the caches
            self._replay(encoded)
        sum_gradients_(self._parameters, self._world)
        tokens = sum(cache.tokens for cache in encoded.caches)
        return Gradients(loss, tokens, thinned, self._pool_report(encoded.draw, targets, filtered))

    def _at_vectors(self, encoded: Encoded, targets: Targets, filtered: Pairs | None) -> tuple[float, AtVectors | None]:
        """The objective over all scores, differentiated down to the vectors; None where nothing is to be learnt."""
        queries, labels = encoded.vectors.requires_grad_(), encoded.labels.vectors().requires_grad_()
        losses = [
            self._objective(self._scores(queries, labels, share, encoded.shard, filtered), targets)
            for share in self._towers.query.shares
        ]
        loss = torch.stack(losses).sum() if len(losses) > 1 else losses[0]
        if not loss.requires_grad:
            return float(loss), None
        return float(loss.detach()), AtVectors(*torch.autograd.grad(loss, (queries, labels)))

    def _scores(self, queries: Tensor, labels: Tensor, share: Share, shard: Shard, filtered: Pairs | None) -> Scores:
        """Those of one share of the vectors; parts whose scores will be added up learn to rank each by itself."""
        if len(self._towers.query.shares) > 1:
            queries, labels = queries[:, share.columns], labels[:, share.columns]
        temperature, tile = self._settings.temperature * share.of_score, self._settings.tile
        return Scores(queries, labels, shard=shard, temperature=temperature, filtered=filtered, tile=tile)

    def _hand_over(self, encoded: Encoded, found: AtVectors, rng: np.random.Generator) -> Thinned | None:
        """Tells the caches which of their vectors has which gradient: all of them, or a sample of the labels'."""
        share, thinned = Shard(self._world, len(encoded.vectors)), None
        encoded.queries.cache.add_gradients(encoded.queries.positions, self._world.sum_(found.queries)[share.rows])
        labels, (cache, positions) = found.labels, encoded.labels
        if self._settings.replay_fraction is not None:
            _refuse_dropout(cache)
            chosen, labels, thinned = thin(labels, self._settings.replay_fraction, encoded.shard, rng.random())
            positions = (np.arange(len(encoded.shard)) if isinstance(positions, slice) else positions)[chosen]
        cache.add_gradients(positions, labels)
        return thinned

    def _replay(self, encoded: Encoded) -> None:
        """Encodes again, with a graph, what has a gradient at its vector: from here on, the weights have theirs."""
        together(self._world, lambda: [cache.replay() for cache in encoded.caches])

    def _encode_all(self, rows: NDArray[np.int64], *, step: int, seed: int) -> Encoded:
        """The vectors of the batch's queries and of all labels, each distinct text once."""
        share = Shard(self._world, len(rows))
        parts = self._texts.in_play(rows[share.rows])
        towers = [self._towers.query, self._towers.label][: len(parts.encoded)]
        caches = together(
            self._world,
            lambda: [
                self._cache(tower, texts, side, step=step, seed=seed)
                for side, (tower, texts) in enumerate(zip(towers, parts.encoded, strict=True))
            ],
        )
        queries, labels = Side(caches[0], parts.queries), Side(caches[-1], parts.labels)
        return Encoded(queries, labels, share.gather(queries.vectors()), self._labels, None)

    def _encode_pool(
        self,
        rows: NDArray[np.int64],
        targets: Targets,
        filtered: Pairs | None,
        rng: np.random.Generator,
        *,
        step: int,
        seed: int,
    ) -> Encoded:
        """The vectors of the batch's queries, then of the labels that the pool draws with their help."""
        assert self.pool is not None
        share = Shard(self._world, len(rows))
        texts, positions = self._texts.of_queries(rows[share.rows])
        cached = together(self._world, lambda: self._cache(self._towers.query, texts, 0, step=step, seed=seed))
        queries = Side(cached, positions)
        vectors = share.gather(queries.vectors())
        known = self._data.known.take(rows)
        draw = self.pool.draw(Batch(rows, vectors.detach(), targets, known, filtered, step, rng))
        shard = self._labels.among(draw.rows)
        own = draw.rows[shard.rows]
        label_texts, places = self._texts.of_labels(own - self._labels.start)
        fresh = together(self._world, lambda: self._cache(self._towers.label, label_texts, 1, step=step, seed=seed))
        labels = Side(fresh, places)
        self.pool.seen(own, labels.vectors(), step)
        return Encoded(queries, labels, vectors, shard, draw)

    def _cache(self, tower: Encoder, texts: DistinctTexts, side: int, *, step: int, seed: int) -> CachedVectors:
        # Processes must not draw the same dropout for different texts.
        own = [self._world.rank] if self._world.rank else []
        return CachedVectors(
            tower,
            texts.lengths,
            texts.fetch,
            budget=self._budget,
            seed=int(np.random.SeedSequence([seed, step, side, *own]).generate_state(1, np.uint32)[0]),
        )

    def _pool_report(self, draw: Draw | None, targets: Targets, filtered: Pairs | None) -> dict[str, float]:
        if draw is None:
            return {}
        kept = targets.relevant if filtered is None else targets.relevant.joined(filtered)
        alone = int((kept.per_query(targets.queries) >= len(draw.rows)).sum())
        if alone and not self._told_of_lonely_queries:
            self._told_of_lonely_queries = True
            self._notice(
                f"{alone:,} of {targets.queries:,} queries of a batch have no negative among the {len(draw.rows):,} "
                "labels in play and learn nothing from it; a larger training.batch_size or pool.negatives gives some"
            )
        return {"pool": len(draw.rows), "staleness": draw.staleness, "queries_without_negatives": alone}


def _refuse_dropout(labels: CachedVectors) -> None:
    if labels.is_random:
        raise BadConfig(
            "training.replay_fraction: dropout ties a text to its micro-batch, so leaving texts out would spare "
            "nothing; set dropout = 0 and hidden_dropout = 0 for the label tower"
        )
