"""Hard negatives from a shortlist (ANCE): the labels each query's current vector scores best, refreshed now and then.

N training queries, w the shortlist's width. Nothing of size N × labels exists: queries are searched in blocks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.towers import Towers
from umpteen.files.progress import Notice
from umpteen.objectives.targets import Pairs
from umpteen.parallel.world import Shard
from umpteen.search.ranking import NO_LABEL, best_known, top_k
from umpteen.training.inputs import TrainingData
from umpteen.training.negatives.pool import Batch, Draw

BLOCK = 32_768  # queries searched at once


@dataclass(frozen=True)
class ShortlistSettings:
    width: int
    per_query: int  # drawn from a query's shortlist at a step
    every: int  # steps between two refreshes
    first: int  # step of the first one; before it, the batch's own labels compete
    margin: float | None  # a label that scores more than a query's best positive less this is kept out


class Shortlist:
    """The batch's pulled labels, and m per query sampled from its shortlist of labels not known to be right for it."""

    def __init__(
        self,
        towers: Towers,
        data: TrainingData,
        shard: Shard,
        settings: ShortlistSettings,
        *,
        token_budget: int | None = None,
        notice: Notice = lambda message: None,
    ) -> None:
        self._towers = towers
        self._data = data
        self._shard = shard
        self._settings = settings
        self._token_budget = token_budget
        self._notice = notice
        self._refreshed: int | None = None
        self._rows: NDArray[np.int32] = np.empty((0, settings.width), dtype=np.int32)  # [N, w]
        self._kept_out: NDArray[np.bool_] = np.empty((0, settings.width), dtype=bool)  # [N, w]

    def prepare(self, step: int) -> None:
        due = self._settings.first if self._refreshed is None else self._refreshed + self._settings.every
        if step >= due:
            self._refresh(step)

    def _refresh(self, step: int) -> None:
        own = self._data.labels.take(np.arange(self._shard.start, self._shard.stop))
        vectors = encode_tokens(self._towers.label, own, token_budget=self._token_budget)
        blocks = [self._search(start, vectors) for start in range(0, len(self._data.queries), BLOCK)]
        self._rows, self._kept_out = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        self._refreshed = step
        if self._settings.margin is not None:
            share = self._kept_out.sum() / max(1, (self._rows != NO_LABEL).sum())
            self._notice(f"shortlist at step {step:,}: {share:.1%} are probable false negatives and are kept out")

    def _search(self, start: int, labels: Tensor) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        some = np.arange(start, min(start + BLOCK, len(self._data.queries)))
        block = Shard(self._shard.world, len(some))
        tokens = self._data.queries.take(some[block.rows])
        queries = block.gather(encode_tokens(self._towers.query, tokens, token_budget=self._token_budget))
        found = top_k(
            queries, labels, self._settings.width, shard=self._shard, excluding=self._data.known.take(some).matrix
        )
        if self._settings.margin is None:
            return found.rows, np.zeros(found.rows.shape, dtype=bool)
        best = best_known(queries, labels, self._data.relevance.take(some).matrix, self._shard)
        # A query without positives has nothing to hold a label against.
        return found.rows, np.isfinite(best)[:, None] & (found.scores > best[:, None] - self._settings.margin)

    def draw(self, batch: Batch) -> Draw:
        if self._refreshed is None:
            return Draw(batch.pulled)
        rows, out = self._rows[batch.rows], self._kept_out[batch.rows]
        mined = sample_per_row(rows, (rows != NO_LABEL) & ~out, self._settings.per_query, batch.rng)
        query, place = np.nonzero(out & (rows != NO_LABEL))
        kept_out = Pairs(torch.from_numpy(query), torch.from_numpy(rows[query, place].astype(np.int64)))
        return Draw(np.unique(np.concatenate([batch.pulled, mined])), kept_out, float(batch.step - self._refreshed))

    def seen(self, rows: NDArray[np.int64], vectors: Tensor, step: int) -> None: ...

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
