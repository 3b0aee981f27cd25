"""Finds equal texts in large sets by 64-bit hashes, then compares them, so that every find is real."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.data.dataset import Split
from umpteen.data.relevance import Relevance
from umpteen.data.texts import Texts

QUERIES_AT_ONCE = 65_536


class Scan(NamedTuple):
    """What one pass over texts leaves: words in each, and a hash that holds within this process."""

    words: NDArray[np.int64]
    hashes: NDArray[np.int64]


def scan(texts: Texts) -> Scan:
    """Reads each text once and keeps 16 bytes of it."""
    both = np.fromiter(((len(text.split()), hash(text)) for text in texts), dtype="i8,i8", count=len(texts))
    return Scan(both["f0"], both["f1"])


class TextIndex:
    """Texts that can be looked up by content."""

    def __init__(self, texts: Texts, hashes: NDArray[np.int64]) -> None:
        self._texts = texts
        self._rows = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._rows]

    def first_twins(self, texts: Texts, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each text the first row here that equals it, or -1."""
        twins = np.full(len(texts), -1, dtype=np.int64)
        starts, ends = self._ranges(hashes)
        for row in np.flatnonzero(starts < ends).tolist():
            text = texts[row]
            candidates = (int(self._rows[at]) for at in range(starts[row], ends[row]))
            twins[row] = next((candidate for candidate in candidates if self._texts[candidate] == text), -1)
        return twins

    def earlier_twins(self, texts: Texts, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each of the indexed texts the first one that equals it, or -1 if that is itself."""
        twins = self.first_twins(texts, hashes)
        return np.where(twins < np.arange(len(twins)), twins, -1)

    def all_twins(self, texts: Texts, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs (row of `texts`, row here) of equal texts, ascending."""
        starts, ends = self._ranges(hashes)
        row = np.repeat(np.arange(len(hashes)), ends - starts)
        offsets = np.cumsum(ends - starts) - (ends - starts)
        twin = self._rows[np.arange(len(row)) + np.repeat(starts - offsets, ends - starts)]
        pairs = zip(row.tolist(), twin.tolist(), strict=True)
        same = np.fromiter((texts[one] == self._texts[other] for one, other in pairs), dtype=bool, count=len(row))
        return row[same], twin[same]

    def _ranges(self, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, ends = (np.searchsorted(self._sorted, hashes, side) for side in ("left", "right"))
        return starts, ends


class TwinLabels(NamedTuple):
    """Queries whose text is also a label's, the first such label, and how the dataset deals with it."""

    queries: NDArray[np.int64]
    labels: NDArray[np.int64]
    ignored: int  # all twins are among the pairs to ignore
    right: int  # some are right answers instead
    uncovered: int  # some are neither: the model must push down a label that reads exactly like the query


def twin_labels(split: Split, hashes: NDArray[np.int64], labels: TextIndex) -> TwinLabels:
    """Looks every query up among the labels, a part of the queries at a time."""
    queries, firsts, ignored, right, uncovered = [], [], 0, 0, 0
    for start in range(0, len(split), QUERIES_AT_ONCE):
        part = np.arange(start, min(start + QUERIES_AT_ONCE, len(split)))
        query, label = labels.all_twins(split.texts.take(part), hashes[part])
        is_ignored = _holds(split.filtered.take(part), query, label)
        is_right = _holds(split.relevance.take(part), query, label)
        hit, first, group = np.unique(query, return_index=True, return_inverse=True)
        open_twins = np.bincount(group, weights=~(is_ignored | is_right), minlength=len(hit)) > 0
        right_twins = np.bincount(group, weights=~is_ignored & is_right, minlength=len(hit)) > 0
        queries.append(hit + start)
        firsts.append(label[first])
        uncovered += int(open_twins.sum())
        right += int((right_twins & ~open_twins).sum())
        ignored += int((~right_twins & ~open_twins).sum())
    none = np.empty(0, dtype=np.int64)
    return TwinLabels(np.concatenate([none, *queries]), np.concatenate([none, *firsts]), ignored, right, uncovered)


def _holds(relevance: Relevance, query: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these pairs are in the matrix, whatever their weight."""
    matrix = relevance.matrix
    owner = np.repeat(np.arange(len(relevance)), np.diff(matrix.indptr))
    return np.isin(query * relevance.labels + label, owner * relevance.labels + matrix.indices.astype(np.int64))
