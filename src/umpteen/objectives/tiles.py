"""The query × label matrix walked in tiles: recomputed whenever it is needed, never held.

B queries, L labels, d numbers a vector, T labels a tile; a score is <query, label>/τ. Every reduction along the
label axis shares the two loops below: `reduce` for its value, `backpropagate` for its gradient. Each process walks its
own shard of the labels; pairs name labels by their place among all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.objectives.targets import Pairs
from umpteen.parallel.shard import Shard
from umpteen.parallel.threads import spread, undivided
from umpteen.parallel.world import World

TILE_SCORES = 2**19  # a tile of so many scores stays in a core's second-level cache
WORTH_A_THREAD = 2**26  # multiplications that take longer than starting a thread does
PAIRS_AT_ONCE = 4096

Holes = Sequence[Tensor]  # for each tile, the flat positions of its excluded pairs


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
    """Scores of all queries against a slice of the labels at a time.

    The gradients of all reductions add up in one buffer for the queries and one for the labels.
    """

    def __init__(self, queries: Tensor, labels: Tensor, shard: Shard, temperature: float, size: int | None) -> None:
        self.queries = queries.detach() / temperature  # [B, d]
        self.labels = labels.detach()  # [L, d] this shard's
        self.shard = shard
        self.temperature = temperature
        count = len(labels)
        self.size = min(size or even_tile(len(queries), count), max(count, 1))
        self.edges = list(pairwise([*range(0, count, self.size), count]))
        self.wanted = (False, False)  # whether gradients of the queries, of the labels will be asked for
        self._query_gradient: Tensor | None = None
        self._label_gradient: Tensor | None = None
        self._label_gradient_is_blank = False  # allocated, not yet written

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

    def walk(self, holes: Holes | None, sharpness: float, share: int, shares: int) -> Iterator[tuple[slice, Tensor]]:
        """The share's slices of the labels, each with its scores [B, T] until the next one overwrites them."""
        queries = self.queries if sharpness == 1 else self.queries * sharpness
        buffer = queries.new_empty(len(queries) * self.size)
        for number in range(len(self.edges) * share // shares, len(self.edges) * (share + 1) // shares):
            start, stop = self.edges[number]
            flat = buffer[: len(queries) * (stop - start)]
            tile = flat.view(len(queries), stop - start)
            torch.mm(queries, self.labels[start:stop].t(), out=tile)
            if holes is not None and len(holes[number]):
                flat[holes[number]] = -torch.inf
            yield slice(start, stop), tile

    def reduce(self, make_bar: Callable[[], AnyBar], holes: Holes | None) -> tuple[AnyBar, Tensor]:
        """A bar that has seen every tile, and its value [B]."""
        shares = self._shares()

        def fold(share: int) -> AnyBar:
            bar = make_bar()
            for _, tile in self.walk(holes, bar.sharpness, share, shares):
                bar.fold(tile)
            return bar

        bar, *others = spread(fold, shares)
        with undivided():
            for other in others:
                bar.merge(other)
            return bar, bar.value(self.shard.world)

    def backpropagate(self, bar: Bar, holes: Holes | None, gradient: Tensor) -> None:
        """Add gradient_i · ∂value_i/∂score_ij · ∂score_ij, for all i and j, to the gradients of the vectors.

        What is the same for all of a query's scores multiplies its vector: a pass over B × d, not over B × L.
        """
        to_queries, to_labels = self._query_buffer(), self._label_buffer(blank=True)
        keep = 0 if self._label_gradient_is_blank else 1
        gain = (gradient * bar.factor())[:, None]
        scaled = self.queries * gain
        shares = self._shares()

        def accumulate(share: int) -> Tensor:
            gathered = torch.zeros_like(self.queries)
            for columns, tile in self.walk(holes, bar.sharpness, share, shares):
                bar.weigh(tile)
                if to_labels is not None:
                    to_labels[columns].addmm_(tile.t(), scaled, beta=keep)
                if to_queries is not None:
                    gathered.addmm_(tile, self.labels[columns])
            return gathered

        for gathered in spread(accumulate, shares):
            if to_queries is not None:
                to_queries.addcmul_(gathered, gain / self.temperature)
        self._label_gradient_is_blank = False

    def largest(self) -> float:
        """A bound no score exceeds, up or down, on any process."""
        norms = [
            float(torch.linalg.vector_norm(vectors, dim=1).amax()) if vectors.numel() else 0.0
            for vectors in (self.queries, self.labels)
        ]
        return self.shard.world.largest(norms[0] * norms[1])[0]

    def at(self, pairs: Pairs) -> Tensor:
        """The scores at the given pairs [p]."""
        self.check(pairs)
        mine = self._mine(pairs)
        query, label = pairs.take(mine)
        scores = self.queries.new_zeros(len(pairs.query))
        for span in spans(len(query)):
            rows = label[span] - self.shard.start
            scores[mine[span]] = torch.linalg.vecdot(self.queries[query[span]], self.labels[rows])
        return self.shard.world.sum_(scores)  # every pair has one owner, all others add 0

    def backpropagate_at(self, pairs: Pairs, gradient: Tensor) -> None:
        """Add the gradient [p] of the scores at the given pairs to the gradients of the vectors."""
        to_queries, to_labels = self._query_buffer(), self._label_buffer()
        mine = self._mine(pairs)
        for span in spans(len(mine)):
            query, label = pairs.take(mine[span])
            label, share = label - self.shard.start, gradient[mine[span], None]
            if to_labels is not None:
                to_labels.index_add_(0, label, self.queries[query] * share)
            if to_queries is not None:
                to_queries.index_add_(0, query, self.labels[label] * (share / self.temperature))

    def hand_out(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients collected so far, of the queries and of the labels; collecting begins anew."""
        gradients = self._query_buffer(), self._label_buffer()
        self._query_gradient = self._label_gradient = None
        return gradients

    def _mine(self, pairs: Pairs) -> Tensor:
        """Positions of the pairs whose label is in this shard."""
        return torch.where((pairs.label >= self.shard.start) & (pairs.label < self.shard.stop))[0]

    def _query_buffer(self) -> Tensor | None:
        if self.wanted[0] and self._query_gradient is None:
            self._query_gradient = torch.zeros_like(self.queries)
        return self._query_gradient

    def _label_buffer(self, blank: bool = False) -> Tensor | None:
        """The labels' gradient so far; a walk over all labels takes it blank and saves a pass over L × d."""
        if self.wanted[1] and self._label_gradient is None:
            self._label_gradient = torch.empty_like(self.labels)
            self._label_gradient_is_blank = True
        if self._label_gradient is not None and self._label_gradient_is_blank and not blank:
            self._label_gradient.zero_()
            self._label_gradient_is_blank = False
        return self._label_gradient

    def _shares(self) -> int:
        """Into how many threads a walk is divided."""
        work = len(self.queries) * self.labels.numel()
        if self.labels.device.type != "cpu" or work < WORTH_A_THREAD:
            return 1
        return max(min(torch.get_num_threads(), len(self.edges)), 1)


def even_tile(queries: int, labels: int) -> int:
    """Labels per tile: a cache-sized number, evened out so that the last tile is not a sliver."""
    size = min(max(TILE_SCORES // max(queries, 1), 64), 4096)
    tiles = max(-(-labels // size), 1)
    return max(-(-labels // tiles), 1)


def spans(pairs: int) -> list[slice]:
    """Slices of so many pairs that keep their gathered vectors small."""
    return [slice(start, start + PAIRS_AT_ONCE) for start in range(0, pairs, PAIRS_AT_ONCE)]
