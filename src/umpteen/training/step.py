"""One step of training: the same for every encoder, objective and pool of competing labels.

batch → labels in play → cached vectors → scores → objective → gradients at the vectors → replay → optimizer.

Each process encodes its share of the queries and its shard of the labels; all of them get all queries' vectors. The
loss is the same on every process, gradients are added up once, and nothing is multiplied or divided by their number.

B: queries in the batch, L: labels in play, d: dimension.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import AdamW

from umpteen.config.settings import ObjectiveConfig, ReducedObjective, RunConfig
from umpteen.data.labels import Relevance, draw_positives
from umpteen.data.tokens import TokenTable
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig, Diverged
from umpteen.files.progress import Notice, silent
from umpteen.objectives.losses import Objective
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets
from umpteen.parallel.world import Shard, TooLittleMemory, World, together
from umpteen.training.gradient_cache import CachedVectors, sum_gradients_, thin
from umpteen.training.negatives.pool import Batch, Draw, Pool
from umpteen.training.optimizer import clip_gradients_


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

    @cached_property
    def known(self) -> Relevance:
        """Relevant or filtered: what is never mined as a query's negative."""
        return self.relevance.either(self.filtered)

    def targets(
        self, rows: NDArray[np.int64], objective: ObjectiveConfig, rng: np.random.Generator, device: torch.device
    ) -> tuple[Targets, Pairs | None]:
        """What a batch pulls (at most so many positives a query), what is relevant to it, and its filtered pairs."""
        positives = objective.positives_per_query
        query, label, weights = draw_positives(self.relevance, rows, positives, rng)
        batch = self.relevance.take(rows)
        filtered = self.filtered.take(rows)
        scale = None
        if positives is not None:
            # Sampling n of a query's positives is unbiased for their sum once scaled by |P| / n; a mean ignores it.
            every, _, _ = draw_positives(self.relevance, rows, None, rng)
            counts = [np.bincount(queries, minlength=len(rows)) for queries in (every, query)]
            scale = torch.from_numpy(counts[0] / np.maximum(counts[1], 1)).to(device)
        pulled = Pairs(torch.from_numpy(query).to(device), torch.from_numpy(label).to(device))
        grades = torch.from_numpy(weights).to(device) if batch.graded else None
        relevant = pairs_of(batch, device)
        reduction: Literal["mean", "sum"] = objective.reduction if isinstance(objective, ReducedObjective) else "sum"
        targets = Targets(pulled, relevant, len(rows), grades, reduction, scale)
        return targets, pairs_of(filtered, device) if filtered.matrix.nnz else None


def in_pool(targets: Targets, filtered: Pairs | None, draw: Draw) -> tuple[Targets, Pairs | None]:
    """The same over the labels in play, by their positions there; pairs kept out become filtered ones."""
    rows = torch.from_numpy(draw.rows).to(targets.relevant.label.device)
    given = targets.pulled, targets.relevant, draw.kept_out.joined(filtered)
    pulled, relevant, left_out = (_at_positions(pairs, rows) for pairs in given)
    return replace(targets, pulled=pulled, relevant=relevant), left_out if len(left_out.query) else None


def _at_positions(pairs: Pairs, rows: Tensor) -> Pairs:
    """The pairs whose label stands among ascending rows, the label by its position there."""
    query, label = (side.to(rows.device) for side in pairs)
    positions = torch.searchsorted(rows, label).clamp_max(len(rows) - 1)
    there = rows[positions] == label
    return Pairs(query[there], positions[there])


def pairs_of(relevance: Relevance, device: torch.device) -> Pairs:
    """All that is stored, whatever its weight."""
    stored = relevance.matrix.tocoo()
    return Pairs(*(torch.from_numpy(side.astype(np.int64)).to(device) for side in (stored.row, stored.col)))


FEW_TWINS = 0.1  # a smaller share of labels with an earlier label's text is encoded again: cheaper than copies of all


class LabelTexts:
    """The distinct texts of a process's labels, and where each stands in them; None: in order, which spares copies."""

    def __init__(self, labels: TokenTable) -> None:
        self.distinct, positions = labels.distinct()
        self.positions: NDArray[np.int64] | None = positions
        if len(self.distinct) >= (1 - FEW_TWINS) * len(labels):
            self.distinct, self.positions = labels, None

    def of(self, rows: NDArray[np.int64]) -> tuple[TokenTable, NDArray[np.int64]]:
        """The distinct texts of some of the labels, and where each of these stands in them."""
        needed, places = np.unique(rows if self.positions is None else self.positions[rows], return_inverse=True)
        return self.distinct.take(needed), places.astype(np.int64)


Moment = tuple[int, int]  # seed and step, from which everything random follows


class StepOutcome(NamedTuple):
    loss: float
    tokens: int  # encoded by this process
    replay: dict[str, float]  # of a sampled replay: what it spared and what it cost; else empty
    pool: dict[str, float]  # the labels in play, and how stale the mined ones are; empty when all labels are
    gradient_norm: float = float("nan")  # before clipping


class Side(NamedTuple):
    """Queries or labels of a batch: where they stand in the cache that holds their vectors; None: in its order."""

    cache: CachedVectors
    positions: NDArray[np.int64] | None

    def vectors(self) -> Tensor:
        return self.cache.at(self.positions)


class Encoded(NamedTuple):
    """A batch's vectors, and the way back from them to the weights."""

    queries: Side  # of this process's share
    labels: Side  # of this process's shard of the labels in play; of a bank, of those drawn
    vectors: Tensor  # [B, d] of all queries
    shard: Shard  # of the labels in play
    draw: Draw | None  # None: all labels are in play, and encoded
    bank: Tensor | None = None  # [L, d] all labels of this process's shard, those drawn among them


@dataclass(eq=False)
class TrainingStep:
    """Holds what stays the same from step to step; calling it trains on the given queries."""

    towers: Towers
    data: TrainingData
    objective: Objective
    optimizer: AdamW
    config: RunConfig
    _: KW_ONLY
    world: World = field(default_factory=World)
    pool: Pool | None = None  # None: all labels compete at every step
    notice: Notice = silent
    mark: Callable[[str], None] = silent  # hears what begins, and which part ends

    def __post_init__(self) -> None:
        self._budget = self.config.training.token_budget
        self._longest = int(max(table.lengths.max(initial=1) for table in (self.data.queries, self.data.labels)))
        self._parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self._of_objective = [*self.objective.parameters()] if isinstance(self.objective, nn.Module) else []
        self.labels = Shard(self.world, len(self.data.labels))
        self._texts = LabelTexts(self.data.labels.take(self.labels.rows))
        self._told_of_lonely_queries = False

    def __call__(self, rows: NDArray[np.int64], *, step: int, seed: int) -> StepOutcome:
        """One update of the weights by a batch, the same on every process; all chance follows from (seed, step)."""
        self.mark("began")
        if self.pool is not None:
            self.pool.prepare(step)
        self.towers.train()
        outcome = self._gradients_within_memory(rows, step=step, seed=seed)
        if not np.isfinite(outcome.loss):
            raise self._diverged(f"the loss is {outcome.loss}", step)
        norm = clip_gradients_(self.optimizer, self.config.optimizer.clip_norm or float("inf"), self.world)
        if not torch.isfinite(norm):
            raise self._diverged(f"the gradient's norm is {norm.item()}", step)
        self.optimizer.step()
        self.mark("optimizer")
        return outcome._replace(gradient_norm=float(norm))

    def _diverged(self, what: str, step: int) -> Diverged:
        rate = max(group["lr"] for group in self.optimizer.param_groups)
        where = f"at step {step + 1:,}, where the learning rate was {rate:.2g}"
        advice = "lower optimizer.learning_rate, or raise objective.temperature"
        return Diverged(f"{what} {where}; {advice}; the last checkpoint, if there is one, is kept")

    def _gradients_within_memory(self, rows: NDArray[np.int64], *, step: int, seed: int) -> StepOutcome:
        """The batch's gradients; each time the memory does not suffice, from the beginning with half the budget."""
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                return self.gradients(rows, step=step, seed=seed)
            except TooLittleMemory:
                if self._budget <= self._longest:
                    raise  # a micro-batch is a single text already
                self._budget //= 2
                again = f"it starts again, with micro-batches of {self._budget:,} tokens"
                advice = f"--set training.token_budget={self._budget} spares the next run this"
                self.notice(f"out of memory at step {step + 1:,}: {again}; {advice}")

    def gradients(self, rows: NDArray[np.int64], *, step: int, seed: int) -> StepOutcome:
        """The batch's loss; its gradient then stands on the weights, the same on every process."""
        rng = np.random.default_rng([seed, step])
        targets, filtered = self.data.targets(rows, self.config.objective, rng, self._parameters[0].device)
        encoded = self._encode(rows, targets, filtered, rng, (seed, step))
        tokens = encoded.queries.cache.tokens + encoded.labels.cache.tokens
        if encoded.draw is not None and encoded.bank is None:
            if not len(encoded.draw.rows):  # a batch of unlabelled queries, and nothing was mined: nothing to learn
                return StepOutcome(0.0, tokens, {}, self._pool_report(encoded, targets, None))
            targets, filtered = in_pool(targets, filtered, encoded.draw)
        loss, at_vectors = self._at_vectors(encoded, targets, filtered)
        sampled: dict[str, float] = {}
        if at_vectors is not None and np.isfinite(loss):
            at_queries, at_labels = at_vectors
            del at_vectors  # its parts may be as large as all labels
            at_queries = self.world.sum_(at_queries)[Shard(self.world, len(rows)).rows]
            labels, sampled = self._learning(encoded, at_labels, rng.random(), (seed, step))
            del at_labels
            learning = [(encoded.queries, at_queries), *labels]
            tokens = sum(side.cache.tokens for side, _ in learning)
            self.mark("loss")

            def replay() -> None:  # encodes again, with a graph: from here on, the weights have their gradients
                for side, gradients in learning:
                    side.cache.replay(side.positions, gradients)

            together(self.world, replay)
            self.mark("replay")
        sum_gradients_(self._parameters, self.world)
        return StepOutcome(loss, tokens, sampled, self._pool_report(encoded, targets, filtered))

    def _learning(
        self, encoded: Encoded, gradients: Tensor, start: float, now: Moment
    ) -> tuple[list[tuple[Side, Tensor]], dict[str, float]]:
        """The labels that carry their gradients back, all of them or a sample, and what that spares and costs."""
        labels, shard = encoded.labels, encoded.shard
        if encoded.bank is not None:  # labels that were not drawn are encoded, and so renewed, only now
            assert encoded.draw is not None and self.pool is not None
            drawn = encoded.draw.rows
            chosen, gradients, sampled = thin(gradients, encoded.draw.others / shard.count, shard, start, drawn)
            self.mark("loss")
            was_drawn = np.isin(chosen + shard.start, drawn)
            others = self._side(2, *self._texts.of(chosen[~was_drawn]), now)
            self.pool.seen(chosen[~was_drawn] + shard.start, others.vectors(), now[1])
            mask = torch.from_numpy(was_drawn).to(gradients.device)
            return [(labels, gradients[mask]), (others, gradients[~mask])], sampled
        if (fraction := self.config.training.replay_fraction) is None:
            return [(labels, gradients)], {}
        if labels.cache.is_random:
            reason = "dropout ties a text to its micro-batch, so leaving texts out would spare nothing"
            advice = "set dropout = 0 and hidden_dropout = 0 for the label tower"
            raise BadConfig(f"training.replay_fraction: {reason}; {advice}")
        chosen, gradients, sampled = thin(gradients, fraction, shard, start)
        positions = chosen if labels.positions is None else labels.positions[chosen]
        return [(Side(labels.cache, positions), gradients)], sampled

    def _encode(
        self, rows: NDArray[np.int64], targets: Targets, filtered: Pairs | None, rng: np.random.Generator, now: Moment
    ) -> Encoded:
        """The vectors of the batch's queries, then of all labels or of those that the pool draws with their help."""
        share = Shard(self.world, len(rows))
        queries = self._side(0, *self.data.queries.take(rows[share.rows]).distinct(), now)
        vectors = share.gather(queries.vectors())
        if self.pool is None:
            labels = self._side(1, self._texts.distinct, self._texts.positions, now)
            return Encoded(queries, labels, vectors, self.labels, None)
        draw = self.pool.draw(Batch(rows, vectors.detach(), targets, self.data.known.take(rows), filtered, now[1], rng))
        self.mark("loss")  # mining is a loss, too
        shard = self.labels.among(draw.rows)
        own = draw.rows[shard.rows]
        labels = self._side(1, *self._texts.of(own - self.labels.start), now)
        self.pool.seen(own, labels.vectors(), now[1])
        bank = self.pool.kept()
        return Encoded(queries, labels, vectors, shard if bank is None else self.labels, draw, bank)

    def _at_vectors(
        self, encoded: Encoded, targets: Targets, filtered: Pairs | None
    ) -> tuple[float, tuple[Tensor, Tensor] | None]:
        """The objective over all scores, differentiated down to the vectors; None where nothing is to be learnt.

        The gradients at all queries' vectors [B, d] are this process's part of their sum; those at its labels' [L, d]
        are whole. What the objective learns has its part at once. Parts whose scores will be added up learn to rank
        each by itself.
        """
        labels = encoded.labels.vectors() if encoded.bank is None else encoded.bank.detach()
        queries, labels = encoded.vectors.requires_grad_(), labels.requires_grad_()
        losses, shares = [], self.towers.query.shares
        for columns, of_score in shares:
            some = (queries, labels) if len(shares) == 1 else (queries[:, columns], labels[:, columns])
            temperature, tile = self.config.objective.temperature * of_score, self.config.training.tile
            scores = Scores(*some, shard=encoded.shard, temperature=temperature, filtered=filtered, tile=tile)
            losses.append(self.objective(scores, targets))
        loss = torch.stack(losses).sum() if len(losses) > 1 else losses[0]
        if not loss.requires_grad:
            return float(loss), None
        at_queries, at_labels, *own = torch.autograd.grad(loss, (queries, labels, *self._of_objective))
        for parameter, gradient in zip(self._of_objective, own, strict=True):
            parameter.grad = gradient
        return float(loss.detach()), (at_queries, at_labels)

    def _side(self, number: int, texts: TokenTable, positions: NDArray[np.int64] | None, now: Moment) -> Side:
        """Encodes queries (0), labels (1) or, after these, more labels (2)."""
        # Processes must not draw the same dropout for different texts.
        own = [self.world.rank] if self.world.rank else []
        seed = int(np.random.SeedSequence([*now, number, *own]).generate_state(1, np.uint32)[0])
        tower = self.towers.label if number else self.towers.query
        dtype = torch.bfloat16 if number and self.config.training.half_labels else None
        cache = together(self.world, lambda: CachedVectors(tower, texts, budget=self._budget, seed=seed, dtype=dtype))
        self.mark("encode_labels" if number else "encode_queries")
        return Side(cache, positions)

    def _pool_report(self, encoded: Encoded, targets: Targets, filtered: Pairs | None) -> dict[str, float]:
        if encoded.draw is None:
            return {}
        in_play = encoded.shard.count
        alone = int((targets.relevant.joined(filtered).per_query(targets.queries) >= in_play).sum())
        if alone and not self._told_of_lonely_queries:
            self._told_of_lonely_queries = True
            lonely = f"{alone:,} of {targets.queries:,} queries of a batch have no negative"
            advice = "a larger training.batch_size or pool.negatives gives some"
            self.notice(f"{lonely} among the {in_play:,} labels in play and learn nothing from it; {advice}")
        return {"pool": in_play, "staleness": encoded.draw.staleness, "queries_without_negatives": alone}
