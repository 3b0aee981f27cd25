"""Scores of every query against every label in play: reduced, sampled and differentiated, never held.

Every process has all queries and its own shard of the labels; values are the same on each of them. The gradients a
process gets are those of its own labels, and its labels' part of the queries': the sum over processes is the whole.

B queries, L labels, p pairs. Gradients of everything asked of one Scores meet in one pair of buffers: a root
in the autograd graph takes the vectors and returns an anchor; the reductions hang on the anchor and add to the
buffers in their backward; the root's backward, which runs after theirs, hands the buffers out.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from umpteen.errors import BadInput
from umpteen.objectives.reductions import LogSumExp, SoftplusSum
from umpteen.objectives.targets import Pairs
from umpteen.objectives.threshold import SoftThreshold
from umpteen.objectives.tiles import Bar, Holes, Tiles
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World


class Scores:
    """The matrix <query_i, label_j> / temperature, of which no more than a tile exists at a time.

    Filtered pairs leave every reduction. `tile` is the number of labels in a tile, chosen to fit the cache if left out.
    `shard` says which of the labels in play are given here; without it, all of them.
    """

    def __init__(
        self,
        queries: Tensor,  # [B, d]
        labels: Tensor,  # [L, d], this process's shard of them
        *,
        shard: Shard | None = None,
        temperature: float = 1.0,
        filtered: Pairs | None = None,
        tile: int | None = None,
    ) -> None:
        if queries.dim() != 2 or labels.dim() != 2 or queries.shape[1] != labels.shape[1]:
            raise BadInput(f"vectors of shapes {tuple(queries.shape)} and {tuple(labels.shape)} have no scores")
        if queries.dtype != labels.dtype:
            raise BadInput(f"queries are {queries.dtype}, labels {labels.dtype}; convert one of them")
        if not (temperature > 0 and math.isfinite(temperature)):
            raise BadInput(f"temperature {temperature} is not a positive number")
        if tile is not None and tile < 1:
            raise BadInput(f"tile {tile} is not a number of labels; use 1 or more")
        if queries.dtype in (torch.float16, torch.bfloat16):
            queries, labels = queries.float(), labels.float()
        shard = Shard(World(), len(labels)) if shard is None else shard
        if len(labels) != len(shard):
            raise BadInput(f"{len(labels):,} label vectors given for a shard of {len(shard):,}")
        self.shape = (len(queries), shard.count)
        self.filtered = filtered
        self._tiles = Tiles(queries, labels, shard, temperature, tile)
        if filtered is not None:
            self._tiles.check(filtered)
        self._anchor = _apply(_Root, queries, labels, self._tiles)

    def at(self, pairs: Pairs) -> Tensor:
        """The scores at the given pairs [p], filtered or not."""
        return _apply(_At, self._anchor, self._tiles, pairs)

    def log_sum_exp(self, excluding: Pairs | None = None) -> Tensor:
        """log Σ_j exp(s_ij) for each query [B]; −∞ for a query that has no label left."""
        return self._reduce(partial(LogSumExp, self._tiles.queries, self._tiles.largest()), excluding)

    def softplus_sum(self, excluding: Pairs | None = None) -> Tensor:
        """Σ_j log(1 + exp(s_ij)) for each query [B]."""
        return self._reduce(partial(SoftplusSum, self._tiles.queries), excluding)

    def soft_threshold(self, k: int | Tensor, alpha: float) -> Tensor:
        """The t_i with Σ_j σ(alpha · (s_ij − t_i)) = k for each query [B]: what the soft top k lie above.

        With as few labels as k, or fewer, there is none: one k for all is then refused, and where k is given per
        query [B] the threshold of such a query, or of one with k = 0, is −∞.
        """
        in_play = self._tiles.queries.new_full(self.shape[:1], self.shape[1], dtype=torch.int64)
        if self.filtered is not None:
            in_play -= self.filtered.per_query(self.shape[0])
        return self._reduce(partial(SoftThreshold, self._tiles.queries, k, alpha, in_play), None)

    def _reduce(self, make_bar: Callable[[], Bar], excluding: Pairs | None) -> Tensor:
        holes = self._tiles.holes(self.filtered, excluding)
        return _apply(_Reduce, self._anchor, self._tiles, make_bar, holes)


def _apply(function: type[Function], *arguments: object) -> Tensor:
    apply: Callable[..., Tensor] = function.apply
    return apply(*arguments)


class _Root(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, labels: Tensor, tiles: Tiles) -> Tensor:
        ctx.save_for_backward(queries, labels)
        ctx.tiles = tiles
        tiles.wanted = ctx.needs_input_grad[:2]
        return queries.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if a vector was overwritten since the forward pass
        return *ctx.tiles.hand_out(), None


class _At(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tiles: Tiles, pairs: Pairs) -> Tensor:
        ctx.tiles, ctx.pairs = tiles, pairs
        return tiles.at(pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.tiles.backpropagate_at(ctx.pairs, gradients[0])
        return gradients[0].new_zeros(()), None, None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tiles: Tiles, make_bar: Callable[[], Bar], holes: Holes | None) -> Tensor:
        ctx.tiles, ctx.holes = tiles, holes
        ctx.bar, value = tiles.reduce(make_bar, holes)
        # A bar may keep its value. As the output of this node it would hold the node, which holds the bar: a circle
        # that keeps all vectors until the garbage collector comes by.
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.tiles.backpropagate(ctx.bar, ctx.holes, gradients[0])
        return gradients[0].new_zeros(()), None, None, None
