"""Mined negatives: from a shortlist of each query's best labels (ANCE), or from a cache of all label vectors.

A bank is a cache that competes: the loss runs over all of its vectors, most of them some steps old.

N training queries, w the shortlist's width. Nothing of size N × labels exists: queries are searched in blocks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.config.settings import BankPool, CachePool, RunConfig, ShortlistPool
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.towers import Towers
from umpteen.files.progress import Notice, silent
from umpteen.objectives.losses import Objective
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs
from umpteen.parallel.world import Shard, together
from umpteen.search.exact import top_k
from umpteen.search.ranking import NO_LABEL
from umpteen.training.negatives.pool import Batch, Draw, Pool
from umpteen.training.step import TrainingData, pairs_of

BLOCK = 32_768  # queries searched at once


@dataclass(eq=False)
class Shortlist(Pool):
    """The batch's pulled labels, and m per query sampled from its shortlist of labels not known to be right for it."""

    towers: Towers
    data: TrainingData
    shard: Shard
    settings: ShortlistPool
    config: RunConfig
    batches_per_epoch: int
    notice: Notice = silent

    def __post_init__(self) -> None:
        self._refreshed: int | None = None
        self._rows: NDArray[np.int32] = np.empty((0, self.settings.shortlist), dtype=np.int32)  # [N, w]
        self._kept_out: NDArray[np.bool_] = np.empty((0, self.settings.shortlist), dtype=bool)  # [N, w]

    def prepare(self, step: int) -> None:
        every = max(1, round(self.settings.refresh_epochs * self.batches_per_epoch))
        first = round(self.settings.from_epoch * self.batches_per_epoch)
        if step >= (first if self._refreshed is None else self._refreshed + every):
            self._refresh(step)

    def _refresh(self, step: int) -> None:
        own = self.data.labels.take(self.shard.rows)
        vectors = encode_tokens(self.towers.label, own, token_budget=self.config.training.token_budget)
        blocks = [self._search(start, vectors) for start in range(0, len(self.data.queries), BLOCK)]
        self._rows, self._kept_out = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        self._refreshed = step
        if self.settings.margin is not None:
            share = self._kept_out.sum() / max(1, (self._rows != NO_LABEL).sum())
            self.notice(f"shortlist at step {step:,}: {share:.1%} are probable false negatives and are kept out")

    def _search(self, start: int, labels: Tensor) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        some = np.arange(start, min(start + BLOCK, len(self.data.queries)))
        block = Shard(self.shard.world, len(some))
        tokens = self.data.queries.take(some[block.rows])
        queries = block.gather(encode_tokens(self.towers.query, tokens, token_budget=self.config.training.token_budget))
        right = self.data.known.take(some).matrix
        found = top_k(queries, labels, self.settings.shortlist, shard=self.shard, excluding=right)
        if self.settings.margin is None:
            return found.rows, np.zeros(found.rows.shape, dtype=bool)
        known = pairs_of(self.data.relevance.take(some), queries.device)
        best = queries.new_full((len(some),), -torch.inf)
        best.scatter_reduce_(0, known.query, Scores(queries, labels, shard=self.shard).at(known), "amax")
        bar = best.cpu().numpy()[:, None] - self.settings.margin  # −∞ for a query without positives: nothing to compare
        return found.rows, np.isfinite(bar) & (found.scores > bar)

    def draw(self, batch: Batch) -> Draw:
        if self._refreshed is None:
            return Draw(batch.pulled)
        rows, out = self._rows[batch.rows], self._kept_out[batch.rows]
        mined = sample_per_row(rows, (rows != NO_LABEL) & ~out, self.settings.negatives, batch.rng)
        query, place = np.nonzero(out & (rows != NO_LABEL))
        kept_out = Pairs(torch.from_numpy(query), torch.from_numpy(rows[query, place].astype(np.int64)))
        return Draw(np.unique(np.concatenate([batch.pulled, mined])), kept_out, float(batch.step - self._refreshed))

    def state(self) -> dict[str, Tensor]:
        if self._refreshed is None:
            return {}
        rows, kept_out = torch.from_numpy(self._rows), torch.from_numpy(self._kept_out)
        return {"refreshed": torch.tensor(self._refreshed), "rows": rows, "kept_out": kept_out}

    def restore(self, state: dict[str, Tensor]) -> None:
        if state:
            self._refreshed = int(state["refreshed"])
            self._rows, self._kept_out = state["rows"].cpu().numpy(), state["kept_out"].cpu().numpy()


def sample_per_row(
    rows: NDArray[np.int32], allowed: NDArray[np.bool_], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """From each row at most so many of its allowed entries, uniformly and without replacement, one after the other."""
    order = np.argsort(np.where(allowed, rng.random(rows.shape), np.inf), axis=1)[:, :count]
    return np.take_along_axis(rows, order, 1)[np.take_along_axis(allowed, order, 1)].astype(np.int64)


@dataclass(eq=False)
class VectorCache(Pool):
    """The batch's pulled labels, and the K others with the largest ‖∂loss/∂z‖ when z are the cached vectors.

    Every label is encoded once at the start; its cached vector is renewed whenever it is in play: a pulled label's
    before the others are mined, a mined one's when it has been encoded for the step.
    """

    towers: Towers
    data: TrainingData
    shard: Shard
    settings: CachePool | BankPool  # K is so many for each query of the batch
    config: RunConfig
    objective: Objective

    def __post_init__(self) -> None:
        self._vectors: Tensor | None = None  # [own labels, d]
        self._seen = torch.zeros(len(self.shard), dtype=torch.int64)  # the step at which each was last encoded

    def prepare(self, step: int) -> None:
        if self._vectors is None:
            own = self.data.labels.take(self.shard.rows)
            vectors = encode_tokens(self.towers.label, own, token_budget=self.config.training.token_budget)
            self._vectors = vectors.bfloat16() if self.config.training.half_labels else vectors
            self._seen.fill_(step)

    def draw(self, batch: Batch) -> Draw:
        mined = self.mine(batch)
        return Draw(np.union1d(batch.pulled, mined), staleness=self.age(mined, batch.step))

    def mine(self, batch: Batch) -> NDArray[np.int64]:
        """The K labels that the batch pushes hardest and does not pull, ascending."""
        own = self._own(batch.pulled)
        rows, budget = own.numpy() + self.shard.start, self.config.training.token_budget
        tokens = self.data.labels.take(rows)
        fresh = together(self.shard.world, lambda: encode_tokens(self.towers.label, tokens, token_budget=budget))
        self.seen(rows, fresh, batch.step)  # before the mining, as in the paper
        norms = self.push(batch)
        norms[own.to(norms.device)] = 0
        count = min(self.settings.negatives * len(batch.rows), self.shard.count)
        found = top_k(norms.new_ones(1, 1), norms[:, None], count, shard=self.shard)  # the largest, of all processes
        return np.sort(found.rows[found.scores > 0]).astype(np.int64)  # a label nobody pushes is none

    def age(self, rows: NDArray[np.int64], step: int) -> float:
        """Mean steps since these labels' vectors were computed."""
        waited = (step - self._seen[self._own(rows)]).sum(0, keepdim=True)
        return float(self.shard.world.sum_(waited.to(self.shard.world.device, torch.float64))) / max(1, len(rows))

    def _own(self, rows: NDArray[np.int64]) -> Tensor:
        """Those of this process's slice, by their positions there."""
        return torch.from_numpy(rows[(rows >= self.shard.start) & (rows < self.shard.stop)] - self.shard.start)

    def push(self, batch: Batch) -> Tensor:
        """‖∂loss/∂z‖ of this process's labels [own], no query pushing on a label that is known to be right for it."""
        assert self._vectors is not None
        vectors = self._vectors.detach().requires_grad_()
        filtered = batch.targets.unpulled.joined(batch.filtered)
        temperature, tile = self.config.objective.temperature, self.config.training.tile
        scores = Scores(batch.vectors, vectors, shard=self.shard, temperature=temperature, filtered=filtered, tile=tile)
        loss = self.objective(scores, batch.targets)
        gradient = torch.autograd.grad(loss, vectors)[0] if loss.requires_grad else torch.zeros_like(vectors)
        norms: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        return norms

    def seen(self, rows: NDArray[np.int64], vectors: Tensor, step: int) -> None:
        assert self._vectors is not None
        own = torch.from_numpy(rows - self.shard.start)
        self._vectors[own.to(self._vectors.device)] = vectors.detach().to(self._vectors.dtype)
        self._seen[own] = step

    def state(self) -> dict[str, Tensor]:
        if self._vectors is None:
            return {}
        vectors = self.shard.collect(self._vectors)
        seen = self.shard.collect(self._seen.to(self._vectors.device))
        return {} if vectors is None or seen is None else {"vectors": vectors.cpu(), "seen": seen.cpu()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if state:
            device = next(self.towers.label.parameters()).device
            self._vectors = state["vectors"][self.shard.rows].to(device)
            self._seen = state["seen"][self.shard.rows].cpu()


class Bank(VectorCache):
    """All labels compete by kept vectors; new are those of the pulled labels, of mined ones and of those in their turn.

    After the loss, others are sampled by their gradients; what the step encodes for them is kept, too.
    """

    def draw(self, batch: Batch) -> Draw:
        assert isinstance(self.settings, BankPool)
        count, renewed = self.shard.count, self.settings.renewed
        turn = (batch.step * renewed + np.arange(renewed)) % count
        mined = self.mine(batch) if self.settings.negatives else turn
        rows = np.unique(np.concatenate([batch.pulled, mined, turn]))
        age, others = self.age(np.arange(count), batch.step), self.settings.sampled * len(batch.rows)
        return Draw(rows, staleness=age, others=others)

    def kept(self) -> Tensor | None:
        return self._vectors
