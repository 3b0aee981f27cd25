"""Which texts a step must encode: each distinct one once, even where a query's text is also a label's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.token_table import TokenTable

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
