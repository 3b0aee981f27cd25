"""Hard negatives from a shortlist (ANCE): the labels each query's current vector scores best, refreshed now and then.

N training queries, w the shortlist's width. Nothing of size N × labels exists: queries are searched in blocks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.config.settings import ShortlistPool
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.towers import Towers
from umpteen.files.progress import Notice
from umpteen.objectives.targets import Pairs
from umpteen.parallel.world import Shard
from umpteen.search.ranking import NO_LABEL, best_known, top_k
from umpteen.training.inputs import TrainingData
from umpteen.training.negatives.pool import Batch, Draw, Pool

BLOCK = 32_768  # queries searched at once


@dataclass(eq=False)
class Shortlist(Pool):
    """The batch's pulled labels, and m per query sampled from its shortlist of labels not known to be right for it."""

    towers: Towers
    data: TrainingData
    shard: Shard
    settings: ShortlistPool
    batches_per_epoch: int
    token_budget: int | None = None
    notice: Notice = lambda message: None

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
        own = self.data.labels.take(np.arange(self.shard.start, self.shard.stop))
        vectors = encode_tokens(self.towers.label, own, token_budget=self.token_budget)
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
        queries = block.gather(encode_tokens(self.towers.query, tokens, token_budget=self.token_budget))
        found = top_k(
            queries, labels, self.settings.shortlist, shard=self.shard, excluding=self.data.known.take(some).matrix
        )
        if self.settings.margin is None:
            return found.rows, np.zeros(found.rows.shape, dtype=bool)
        best = best_known(queries, labels, self.data.relevance.take(some).matrix, self.shard)
        # A query without positives has nothing to hold a label against.
        return found.rows, np.isfinite(best)[:, None] & (found.scores > best[:, None] - self.settings.margin)

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
        return {
            "refreshed": torch.tensor(self._refreshed),
            "rows": torch.from_numpy(self._rows),
            "kept_out": torch.from_numpy(self._kept_out),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        if state:
            self._refreshed = int(state["refreshed"])
            self._rows, self._kept_out = state["rows"].cpu().numpy(), state["kept_out"].cpu().numpy()


def sample_per_row(
    rows: NDArray[np.int32], allowed: NDArray[np.bool_], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """From each row at most so many of its allowed entries, uniformly and without replacement, one after the other."""
    order = np.argsort(np.where(allowed, rng.random(rows.shape), np.inf), axis=1)[:, :count]
    chosen = np.take_along_axis(rows, order, 1)
    return chosen[np.take_along_axis(allowed, order, 1)].astype(np.int64)
