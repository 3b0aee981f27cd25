"""What a step works on: the data it draws from, what a batch asks of the loss, and which texts have to be encoded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.labels import Relevance, draw_positives
from umpteen.data.tokens import TokenTable
from umpteen.objectives.targets import Pairs, Targets
from umpteen.training.negatives.pool import Draw


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
        self,
        rows: NDArray[np.int64],
        positives: int | None,
        reduction: Literal["mean", "sum"],
        rng: np.random.Generator,
        *,
        device: torch.device,
    ) -> tuple[Targets, Pairs | None]:
        """What a batch pulls (at most so many positives a query), what is relevant to it, and its filtered pairs."""
        query, label, weights = draw_positives(self.relevance, rows, positives, rng)
        batch = self.relevance.take(rows)
        filtered = self.filtered.take(rows)
        scale = None
        if positives is not None:
            # Sampling n of a query's positives is unbiased for their sum once scaled by |P| / n; a mean ignores it.
            every, _, _ = draw_positives(self.relevance, rows, None, rng)
            counts = [np.bincount(queries, minlength=len(rows)) for queries in (every, query)]
            scale = torch.from_numpy(counts[0] / np.maximum(counts[1], 1)).to(device)
        targets = Targets(
            pulled=Pairs(torch.from_numpy(query).to(device), torch.from_numpy(label).to(device)),
            relevant=_pairs(batch, device),
            queries=len(rows),
            weights=torch.from_numpy(weights).to(device) if batch.graded else None,
            reduction=reduction,
            scale=scale,
        )
        return targets, _pairs(filtered, device) if filtered.matrix.nnz else None


def in_pool(targets: Targets, filtered: Pairs | None, draw: Draw) -> tuple[Targets, Pairs | None]:
    """The same over the labels in play, by their positions there; pairs kept out become filtered ones."""
    rows = torch.from_numpy(draw.rows).to(targets.relevant.label.device)
    left_out = draw.kept_out if filtered is None else filtered.joined(draw.kept_out)
    inside = replace(
        targets, pulled=_at_positions(targets.pulled, rows), relevant=_at_positions(targets.relevant, rows)
    )
    left_out = _at_positions(left_out, rows)
    return inside, left_out if len(left_out.query) else None


def _at_positions(pairs: Pairs, rows: Tensor) -> Pairs:
    """The pairs whose label stands among ascending rows, the label by its position there."""
    pairs = Pairs(pairs.query.to(rows.device), pairs.label.to(rows.device))
    positions = torch.searchsorted(rows, pairs.label).clamp_max(len(rows) - 1)
    there = rows[positions] == pairs.label
    return Pairs(pairs.query[there], positions[there])


def _pairs(relevance: Relevance, device: torch.device) -> Pairs:
    matrix = relevance.matrix
    query = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return Pairs(torch.from_numpy(query).to(device), torch.from_numpy(matrix.indices.astype(np.int64)).to(device))


FEW_TWINS = 0.1  # a smaller share of labels with an earlier label's text is encoded again: cheaper than copies of all


@dataclass(frozen=True)
class DistinctTexts:
    """What one call of the gradient cache encodes."""

    lengths: NDArray[np.int64]
    fetch: Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class InPlay:
    """Texts to encode, one entry per tower (one in all when shared), and where queries and labels stand in them."""

    encoded: list[DistinctTexts]
    queries: NDArray[np.int64] | slice  # [B] positions in the first entry
    labels: NDArray[np.int64] | slice  # [L] positions in the last entry


class TextsInPlay:
    """Finds the distinct texts of a batch of queries and of all labels."""

    def __init__(self, queries: TokenTable, labels: TokenTable, *, shared: bool) -> None:
        self._queries = queries
        self._shared = shared
        distinct, positions = labels.distinct()
        # A slice needs no copy of the vectors, nor of their gradients.
        repeats = len(distinct) < (1 - FEW_TWINS) * len(labels)
        self._labels = distinct if repeats else labels
        self._label_positions = positions if repeats else slice(0, len(labels))
        # Only shared towers can give a query the vector of a label with the same text.
        self._known = len(self._labels) if shared else 0
        texts = _row_contents(self._labels, np.arange(self._known))
        self._label_of_text = {text: row for row, text in enumerate(texts)}

    def in_play(self, rows: NDArray[np.int64]) -> InPlay:
        """The texts of a step over the queries at these rows and all labels."""
        positions = self._positions(rows)
        fresh = self._queries.take(rows[_first_occurrences(positions, self._known)])
        if not self._shared:
            in_order = len(fresh) == len(rows)
            encoded = [_whole(fresh), _whole(self._labels)]
            return InPlay(encoded, slice(0, len(rows)) if in_order else positions, self._label_positions)
        return InPlay([_joined(self._labels, fresh)], positions, self._label_positions)

    def of_queries(self, rows: NDArray[np.int64]) -> tuple[DistinctTexts, NDArray[np.int64]]:
        """The texts of these queries alone, and where each query stands in them."""
        fresh: dict[bytes, int] = {}
        texts = _row_contents(self._queries, rows)
        positions = np.array([fresh.setdefault(text, len(fresh)) for text in texts], dtype=np.int64)
        return _whole(self._queries.take(rows[_first_occurrences(positions, 0)])), positions

    def of_labels(self, rows: NDArray[np.int64]) -> tuple[DistinctTexts, NDArray[np.int64]]:
        """The texts of some labels, and where each of them stands in them."""
        positions = rows if isinstance(self._label_positions, slice) else self._label_positions[rows]
        needed, places = np.unique(positions, return_inverse=True)
        return _whole(self._labels.take(needed)), places.astype(np.int64)

    def _positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each query's text by number: that of the label it equals, else the next free one, equal texts sharing it."""
        known, fresh = self._label_of_text, dict[bytes, int]()
        return np.array(
            [
                known[text] if text in known else fresh.setdefault(text, self._known + len(fresh))
                for text in _row_contents(self._queries, rows)
            ],
            dtype=np.int64,
        )


def _row_contents(table: TokenTable, rows: NDArray[np.int64]) -> Iterator[bytes]:
    ids, offsets = (tensor.numpy() for tensor in table.batch(rows))
    return (ids[start:end].tobytes() for start, end in pairwise(offsets))


def _first_occurrences(positions: NDArray[np.int64], at_least: int) -> NDArray[np.int64]:
    values, firsts = np.unique(positions, return_index=True)
    return firsts[values >= at_least]


def _whole(table: TokenTable) -> DistinctTexts:
    return DistinctTexts(table.lengths, table.batch)


def _joined(first: TokenTable, second: TokenTable) -> DistinctTexts:
    def fetch(positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        # A micro-batch may mix both tables: fetch from each, then put the rows back in the order asked for.
        in_first = positions < len(first)
        if in_first.all():
            return first.batch(positions)
        if not in_first.any():
            return second.batch(positions - len(first))
        parts = [*_split(first.batch(positions[in_first])), *_split(second.batch(positions[~in_first] - len(first)))]
        order = np.argsort(np.concatenate([np.flatnonzero(in_first), np.flatnonzero(~in_first)]))
        rows = [parts[at] for at in order]
        lengths = torch.tensor([len(row) for row in rows])
        return torch.cat(rows), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    return DistinctTexts(np.concatenate([first.lengths, second.lengths]), fetch)


def _split(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    ids, offsets = batch
    return torch.split(ids, offsets.diff().tolist())
