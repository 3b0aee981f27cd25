"""The query × label matrix walked in tiles: recomputed whenever it is needed, never held.

B queries, L labels, d numbers a vector, T labels a tile; a score is <query, label>/τ. Every reduction along the
label axis shares the two loops below: `reduce` for its value, `backpropagate` for its gradient.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.objectives.targets import Pairs

TILE_SCORES = 2**19  # a tile of so many scores stays in a core's second-level cache
PAIRS_AT_ONCE = 4096

Holes = Sequence[Tensor]  # for each tile, the flat positions of its excluded pairs


class Bar(Protocol):
    """A reduction along the label axis: tiles fold into a partial result, and that gives one number per query."""

    sharpness: float  # the tiles given to it hold sharpness × score

    def fold(self, tile: Tensor) -> None:
        """Take one tile [B, T] into the partial result; excluded pairs are −∞, and the tile may be overwritten."""

    def value(self) -> Tensor:
        """The reduction of all tiles seen [B]."""

    def weigh(self, tile: Tensor, active: Tensor) -> None:
        """Turn a tile in place into ∂value_i/∂score_ij; in rows that are not active [B] nothing may be left but 0."""


class Tiles:
    """Scores of all queries against a slice of the labels at a time, in one buffer used again and again.

    The gradients of all reductions add up in one buffer for the queries and one for the labels.
    """

    def __init__(self, queries: Tensor, labels: Tensor, temperature: float, size: int | None) -> None:
        self.queries = queries.detach() / temperature  # [B, d]
        self.labels = labels.detach()  # [L, d]
        self.temperature = temperature
        count = len(labels)
        self.size = min(size or even_tile(len(queries), count), max(count, 1))
        self.edges = list(pairwise([*range(0, count, self.size), count]))
        self.wanted = (False, False)  # whether gradients of the queries, of the labels will be asked for
        self._query_gradient: Tensor | None = None
        self._label_gradient: Tensor | None = None
        self._buffer: Tensor | None = None

    def holes(self, *excluded: Pairs | None) -> Holes | None:
        """Where the excluded pairs stand in each tile; a pair named twice leaves once."""
        given = [pairs for pairs in excluded if pairs is not None and len(pairs.query)]
        if not given:
            return None
        query = torch.cat([pairs.query for pairs in given])
        label, order = torch.cat([pairs.label for pairs in given]).sort()
        self._check(Pairs(query, label))
        number = label // self.size
        widths = torch.tensor([stop - start for start, stop in self.edges], device=label.device)
        flat = query[order] * widths[number] + label - number * self.size
        ends = torch.searchsorted(label, torch.tensor([stop for _, stop in self.edges[:-1]], device=label.device))
        return flat.tensor_split(ends.tolist())

    def walk(self, holes: Holes | None, sharpness: float = 1.0) -> Iterator[tuple[slice, Tensor]]:
        """Each slice of the labels with its scores [B, T], excluded pairs at −∞; the next step overwrites them."""
        if self._buffer is None:
            self._buffer = self.queries.new_empty(len(self.queries) * self.size)
        queries = self.queries if sharpness == 1 else self.queries * sharpness
        for number, (start, stop) in enumerate(self.edges):
            flat = self._buffer[: len(queries) * (stop - start)]
            tile = flat.view(len(queries), stop - start)
            torch.mm(queries, self.labels[start:stop].t(), out=tile)
            if holes is not None and len(holes[number]):
                flat[holes[number]] = -torch.inf
            yield slice(start, stop), tile

    def reduce(self, bar: Bar, holes: Holes | None) -> Tensor:
        """The bar's value for each query."""
        for _, tile in self.walk(holes, bar.sharpness):
            bar.fold(tile)
        return bar.value()  # [B]

    def backpropagate(self, bar: Bar, holes: Holes | None, gradient: Tensor) -> None:
        """Add gradient_i · ∂value_i/∂score_ij · ∂score_ij, for all i and j, to the gradients of the vectors.

        gradient_i multiplies the query's vector instead of the tile's row: a pass over B × d, not over B × L.
        """
        to_queries, to_labels = self._buffers()
        active = gradient != 0
        scaled = self.queries * gradient[:, None]
        gathered = torch.zeros_like(self.queries)
        for columns, tile in self.walk(holes, bar.sharpness):
            bar.weigh(tile, active)
            if to_labels is not None:
                to_labels[columns].addmm_(tile.t(), scaled)
            if to_queries is not None:
                gathered.addmm_(tile, self.labels[columns])
        if to_queries is not None:
            to_queries.addcmul_(gathered, gradient[:, None] / self.temperature)

    def at(self, pairs: Pairs) -> Tensor:
        """The scores at the given pairs [p]."""
        self._check(pairs)
        return torch.cat(
            [
                torch.linalg.vecdot(self.queries[pairs.query[span]], self.labels[pairs.label[span]])
                for span in spans(len(pairs.query))
            ]
        )

    def backpropagate_at(self, pairs: Pairs, gradient: Tensor) -> None:
        """Add the gradient [p] of the scores at the given pairs to the gradients of the vectors."""
        to_queries, to_labels = self._buffers()
        for span in spans(len(gradient)):
            query, label, share = pairs.query[span], pairs.label[span], gradient[span, None]
            if to_labels is not None:
                to_labels.index_add_(0, label, self.queries[query] * share)
            if to_queries is not None:
                to_queries.index_add_(0, query, self.labels[label] * (share / self.temperature))

    def hand_out(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients collected so far, of the queries and of the labels; collecting begins anew."""
        gradients = self._buffers()
        self._query_gradient = self._label_gradient = None
        return gradients

    def _buffers(self) -> tuple[Tensor | None, Tensor | None]:
        if self.wanted[0] and self._query_gradient is None:
            self._query_gradient = torch.zeros_like(self.queries)
        if self.wanted[1] and self._label_gradient is None:
            self._label_gradient = torch.zeros_like(self.labels)
        return self._query_gradient, self._label_gradient

    def _check(self, pairs: Pairs) -> None:
        for name, rows, count in (("query", pairs.query, len(self.queries)), ("label", pairs.label, len(self.labels))):
            if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
                raise BadInput(f"a pair names {name} {int(rows.max()):,} of {count:,}; positions run from 0")


def even_tile(queries: int, labels: int) -> int:
    """Labels per tile: a cache-sized number, evened out so that the last tile is not a sliver."""
    size = min(max(TILE_SCORES // max(queries, 1), 64), 4096)
    tiles = max(-(-labels // size), 1)
    return max(-(-labels // tiles), 1)


def spans(pairs: int) -> list[slice]:
    """Slices of so many pairs that keep their gathered vectors small; at least one."""
    return [slice(start, start + PAIRS_AT_ONCE) for start in range(0, max(pairs, 1), PAIRS_AT_ONCE)]
