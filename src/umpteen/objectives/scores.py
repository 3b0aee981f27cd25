"""Scores of every query against every label in play: walked in tiles, reduced and differentiated, never held.

Every process has all queries and its own shard of the labels; values are the same on each of them. The gradients a
process gets are those of its own labels, and its labels' part of the queries': the sum over processes is the whole.

B queries, L labels, p pairs, T labels of a tile.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from umpteen.errors import BadInput
from umpteen.objectives.bars import LogSumExp, SoftplusSum, SoftThreshold
from umpteen.objectives.targets import Pairs
from umpteen.parallel.world import Shard, World, spread, undivided

TILE_SCORES = 2**19  # a tile of so many scores stays in a core's second-level cache
WORTH_A_THREAD = 2**26  # multiplications that take longer than starting a thread does
PAIRS_AT_ONCE = 4096  # so that their gathered vectors stay small
HALVES = (torch.bfloat16, torch.float16)

Holes = Sequence[Tensor]  # for each tile, the flat positions of its excluded pairs
Gradients = tuple[Tensor | None, Tensor | None]  # of the queries, of the labels, as far as they are wanted


class Bar(Protocol):
    """A reduction along the label axis: tiles fold into partial results, these merge, and the last gives the value."""

    sharpness: float  # the tiles given to it hold sharpness × score

    def fold(self, tile: Tensor) -> None:
        """Take one tile [B, T] into the partial result; excluded pairs are −∞, and the tile may be overwritten."""

    def merge(self, other: Self) -> None:
        """Take in the partial result of other labels, which is used up."""

    def value(self, world: World) -> Tensor:
        """The reduction of all tiles that all processes have seen [B], the same on each."""

    def weigh(self, tile: Tensor) -> None:
        """Turn a tile in place into ∂value_i/∂score_ij ÷ factor_i."""

    def factor(self) -> Tensor:
        """What the weights of each query are still to be multiplied by [B]."""


AnyBar = TypeVar("AnyBar", bound=Bar)


class Tiles:
    """Scores of all queries against a slice of the labels at a time, and the gradients that reductions add up."""

    def __init__(self, queries: Tensor, labels: Tensor, shard: Shard, temperature: float, size: int | None) -> None:
        self.queries = queries.detach() / temperature  # [B, d]
        self._labels = labels.detach()  # [L, d] this shard's; those of half precision are widened tile by tile
        self.shard, self.temperature = shard, temperature
        count = len(labels)
        self.size = min(size or even_tile(len(queries), count), max(count, 1))
        self.edges = list(pairwise([*range(0, count, self.size), count]))
        self.wanted = (False, False)  # whether gradients of the queries, of the labels will be asked for
        self._query_gradient: Tensor | None = None
        self._label_gradient: Tensor | None = None

    def check(self, pairs: Pairs) -> None:
        """Refuse pairs that are not in the matrix."""
        for name, rows, count in (("query", pairs.query, len(self.queries)), ("label", pairs.label, self.shard.count)):
            outside = rows[(rows < 0) | (rows >= count)]
            if len(outside):
                raise BadInput(f"a pair names {name} {int(outside[0]):,}, but they run from 0 to {count - 1:,}")

    def holes(self, *excluded: Pairs | None) -> Holes | None:
        """Where the excluded pairs stand in each tile; a pair named twice leaves once."""
        given = [pairs for pairs in excluded if pairs is not None and len(pairs.query)]
        if not given:
            return None
        everything = Pairs(*map(torch.cat, zip(*given, strict=True)))
        self.check(everything)
        query, label = everything.take(self._mine(everything))
        if not len(label):
            return None
        label, order = (label - self.shard.start).sort()
        number = label // self.size
        widths = torch.tensor([stop - start for start, stop in self.edges], device=label.device)
        flat = query[order] * widths[number] + label - number * self.size
        ends = torch.searchsorted(label, torch.tensor([stop for _, stop in self.edges[:-1]], device=label.device))
        return flat.tensor_split(ends.tolist())

    def labels(self, rows: slice | Tensor) -> Tensor:
        """Some of the label vectors, in the precision of the scores."""
        return self._labels[rows].to(self.queries.dtype)

    def walk(
        self, holes: Holes | None, sharpness: float, share: int, shares: int
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The share's slices of the labels, their vectors, and their scores [B, T] until the next overwrite them."""
        queries = self.queries if sharpness == 1 else self.queries * sharpness
        buffer = queries.new_empty(len(queries) * self.size)
        for number in range(len(self.edges) * share // shares, len(self.edges) * (share + 1) // shares):
            start, stop = self.edges[number]
            flat = buffer[: len(queries) * (stop - start)]
            tile = flat.view(len(queries), stop - start)
            labels = self.labels(slice(start, stop))
            torch.mm(queries, labels.t(), out=tile)
            if holes is not None and len(holes[number]):
                flat[holes[number]] = -torch.inf
            yield slice(start, stop), labels, tile

    def reduce(self, make_bar: Callable[[], AnyBar], holes: Holes | None) -> tuple[AnyBar, Tensor]:
        """A bar that has seen every tile, and its value [B]."""
        shares = self._shares()

        def fold(share: int) -> AnyBar:
            bar = make_bar()
            for _, _, tile in self.walk(holes, bar.sharpness, share, shares):
                bar.fold(tile)
            return bar

        bar, *others = spread(fold, shares)
        with undivided():
            for other in others:
                bar.merge(other)
            return bar, bar.value(self.shard.world)

    def backpropagate(self, bar: Bar, holes: Holes | None, gradient: Tensor) -> None:
        """Add gradient_i · ∂value_i/∂score_ij · ∂score_ij, for all i and j, to the gradients of the vectors."""
        keep = 0 if self._label_gradient is None else 1  # the first walk writes all of it: a pass over L × d is saved
        to_queries, to_labels = self._buffers(torch.empty_like)
        # What is the same for all of a query's scores multiplies its vector: a pass over B × d, not over B × L.
        gain = (gradient * bar.factor())[:, None]
        scaled = self.queries * gain
        shares = self._shares()

        def accumulate(share: int) -> Tensor:
            gathered = torch.zeros_like(self.queries)
            for columns, labels, tile in self.walk(holes, bar.sharpness, share, shares):
                bar.weigh(tile)
                if to_labels is not None:
                    so_far = to_labels[columns]
                    total = so_far.to(tile.dtype).addmm_(tile.t(), scaled, beta=keep)
                    if total.dtype != so_far.dtype:
                        so_far.copy_(total)
                if to_queries is not None:
                    gathered.addmm_(tile, labels)
            return gathered

        for gathered in spread(accumulate, shares):
            if to_queries is not None:
                to_queries.addcmul_(gathered, gain / self.temperature)

    def largest(self) -> float:
        """A bound no score exceeds, up or down, on any process."""
        sides = (self.queries, self._labels)
        norms = [float(torch.linalg.vector_norm(side, dim=1).amax()) if side.numel() else 0.0 for side in sides]
        return self.shard.world.largest(norms[0] * norms[1])[0]

    def at(self, pairs: Pairs) -> Tensor:
        """The scores at the given pairs [p]."""
        self.check(pairs)
        scores = self.queries.new_zeros(len(pairs.query))
        for some in torch.split(self._mine(pairs), PAIRS_AT_ONCE):
            query, label = pairs.take(some)
            scores[some] = torch.linalg.vecdot(self.queries[query], self.labels(label - self.shard.start))
        return self.shard.world.sum_(scores)  # every pair has one owner, all others add 0

    def backpropagate_at(self, pairs: Pairs, gradient: Tensor) -> None:
        """Add the gradient [p] of the scores at the given pairs to the gradients of the vectors."""
        to_queries, to_labels = self._buffers()
        for some in torch.split(self._mine(pairs), PAIRS_AT_ONCE):
            query, label = pairs.take(some)
            label, share = label - self.shard.start, gradient[some, None]
            if to_queries is not None:
                to_queries.index_add_(0, query, self.labels(label) * (share / self.temperature))
            if to_labels is not None:
                added = self.queries[query] * share
                if to_labels.dtype != added.dtype:  # a label's many pairs add up before they are rounded
                    label, place = torch.unique(label, return_inverse=True)
                    added = added.new_zeros(len(label), added.shape[1]).index_add_(0, place, added).to(to_labels)
                to_labels.index_add_(0, label, added)

    def hand_out(self) -> Gradients:
        """The gradients collected so far, of the queries and of the labels; collecting begins anew."""
        gradients = self._buffers()
        self._query_gradient = self._label_gradient = None
        return gradients

    def _mine(self, pairs: Pairs) -> Tensor:
        """Positions of the pairs whose label is in this shard."""
        return torch.where((pairs.label >= self.shard.start) & (pairs.label < self.shard.stop))[0]

    def _buffers(self, new_for_labels: Callable[[Tensor], Tensor] = torch.zeros_like) -> Gradients:
        """The gradients so far, of those that are wanted."""
        if self.wanted[0] and self._query_gradient is None:
            self._query_gradient = torch.zeros_like(self.queries)
        if self.wanted[1] and self._label_gradient is None:
            self._label_gradient = new_for_labels(self._labels)
        return self._query_gradient, self._label_gradient

    def _shares(self) -> int:
        """Into how many threads a walk is divided."""
        if self._labels.device.type != "cpu" or len(self.queries) * self._labels.numel() < WORTH_A_THREAD:
            return 1
        return max(min(torch.get_num_threads(), len(self.edges)), 1)


def even_tile(queries: int, labels: int) -> int:
    """Labels per tile: a cache-sized number, evened out so that the last tile is not a sliver."""
    size = min(max(TILE_SCORES // max(queries, 1), 64), 4096)
    tiles = max(-(-labels // size), 1)
    return max(-(-labels // tiles), 1)


# Gradients of everything asked of one Scores meet in one pair of buffers: a root in the autograd graph takes the
# vectors and returns an anchor; the reductions hang on the anchor and add to the buffers in their backward; the root's
# backward, which runs after theirs, hands the buffers out.
class Scores:
    """The matrix <query_i, label_j> / temperature, of which no more than a tile exists at a time.

    Filtered pairs leave every reduction. `tile` is the number of labels in a tile, chosen to fit the cache if left out.
    `shard` says which of the labels in play are given here; without it, all of them. Vectors may have half precision:
    what is multiplied and added up is float32, and only the sums, the vectors' gradients, are rounded.
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
        if queries.dtype != labels.dtype and labels.dtype not in HALVES:
            raise BadInput(f"queries are {queries.dtype}, labels {labels.dtype}; convert one of them")
        if not (temperature > 0 and math.isfinite(temperature)):
            raise BadInput(f"temperature {temperature} is not a positive number")
        if tile is not None and tile < 1:
            raise BadInput(f"tile {tile} is not a number of labels; use 1 or more")
        queries = queries.float() if queries.dtype in HALVES else queries
        shard = Shard(World(), len(labels)) if shard is None else shard
        if len(labels) != len(shard):
            raise BadInput(f"{len(labels):,} label vectors given for a shard of {len(shard):,}")
        self.shape = (len(queries), shard.count)
        self._vectors = queries, labels
        self.filtered = filtered
        self._tiles = Tiles(queries, labels, shard, temperature, tile)
        if filtered is not None:
            self._tiles.check(filtered)
        self._anchor = _apply(_Root, queries, labels, self._tiles)

    def scaled(self, scale: Tensor, bias: Tensor) -> "Scores":
        """The matrix scale · score + bias, differentiable in both: a bias is one coordinate more, 1 in every label."""
        (queries, labels), tiles = self._vectors, self._tiles
        constant = (bias.to(queries) * tiles.temperature).expand(len(queries), 1)
        left = torch.cat([scale.to(queries) * queries, constant], 1)
        right = torch.cat([labels, labels.new_ones(len(labels), 1)], 1)
        how: dict[str, Any] = {"temperature": tiles.temperature, "filtered": self.filtered, "tile": tiles.size}
        return Scores(left, right, shard=tiles.shard, **how)

    def at(self, pairs: Pairs) -> Tensor:
        """The scores at the given pairs [p], filtered or not."""
        with _without_autocast(self._anchor):
            value = self._tiles.at(pairs)
        return _apply(_Answer, self._anchor, value, partial(self._tiles.backpropagate_at, pairs))

    def log_sum_exp(self, excluding: Pairs | None = None) -> Tensor:
        """log Σ_j exp(s_ij) for each query [B]; −∞ for a query that has no label left."""
        return self._reduce(partial(LogSumExp, self._tiles.queries, self._tiles.largest()), excluding)

    def softplus_sum(self, excluding: Pairs | None = None) -> Tensor:
        """Σ_j log(1 + exp(s_ij)) for each query [B]."""
        return self._reduce(partial(SoftplusSum, self._tiles.queries), excluding)

    def soft_threshold(self, k: int | Tensor, alpha: float, excluding: Pairs | None = None) -> Tensor:
        """The t_i with Σ_j σ(alpha · (s_ij − t_i)) = k for each query [B]: what the soft top k lie above.

        k is one number or one per query [B]; the threshold of a query with k = 0, or no more labels than k, is −∞.
        """
        in_play = self._tiles.queries.new_full(self.shape[:1], self.shape[1], dtype=torch.int64)
        gone = self.filtered if excluding is None else excluding.joined(self.filtered)
        if gone is not None:
            in_play -= gone.per_query(self.shape[0])
        return self._reduce(partial(SoftThreshold, self._tiles.queries, k, alpha, in_play), excluding)

    def _reduce(self, make_bar: Callable[[], Bar], excluding: Pairs | None) -> Tensor:
        holes = self._tiles.holes(self.filtered, excluding)
        with _without_autocast(self._anchor):
            bar, value = self._tiles.reduce(make_bar, holes)
        return _apply(_Answer, self._anchor, value, partial(self._tiles.backpropagate, bar, holes))


def _without_autocast(where: Tensor) -> torch.autocast:
    """Whoever computes in mixed precision has scores and sums in float32 all the same."""
    return torch.autocast(where.device.type, enabled=False)


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


class _Answer(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, backpropagate: Callable[[Tensor], None]) -> Tensor:
        ctx.backpropagate = backpropagate
        # A bar may keep its value. As the output of this node it would hold the node, which holds the bar: a circle
        # that keeps all vectors until the garbage collector comes by.
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with _without_autocast(gradients[0]):
            ctx.backpropagate(gradients[0])
        return gradients[0].new_zeros(()), None, None
