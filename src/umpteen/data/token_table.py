"""Ragged token ids of many texts, one after the other, in memory or mapped from a file."""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LENGTHS = np.dtype(np.int32)
HASHED_AT_ONCE = 1 << 21  # tokens


class TokenTable:
    """The token ids of many texts, one after the other; row r is ids[starts[r] : ends[r]]."""

    def __init__(self, ids: NDArray[np.integer[Any]], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.ids = ids
        self.starts = starts
        self.ends = ends

    @classmethod
    def of(cls, rows: Iterable[list[int]], vocabulary_size: int) -> "TokenTable":
        """A table in memory."""
        ids, lengths = flatten(list(rows), id_type(vocabulary_size))
        return cls.of_lengths(ids, lengths)

    @classmethod
    def of_lengths(cls, ids: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> "TokenTable":
        """Rows that follow each other without a gap."""
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(ids, ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens in each row."""
        return self.ends - self.starts

    def take(self, rows: NDArray[Any]) -> "TokenTable":
        """These rows in this order; shares the ids."""
        return TokenTable(self.ids, self.starts[rows], self.ends[rows])

    def preceded_by(self, firsts: NDArray[np.int64]) -> "TokenTable":
        """Each row with one more id before its own."""
        lengths = self.lengths
        ids = np.empty(int(lengths.sum()) + len(self), dtype=np.int32)
        ends = np.cumsum(lengths + 1)
        is_first = np.zeros(len(ids), dtype=bool)
        is_first[ends - lengths - 1] = True
        ids[is_first] = firsts
        ids[~is_first] = self._gather(np.arange(len(self)))[0]
        return TokenTable(ids, ends - lengths - 1, ends)

    def without_firsts(self) -> "TokenTable":
        """The rows that `preceded_by` was given; shares the ids."""
        return TokenTable(self.ids, self.starts + 1, self.ends)

    def batch(self, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """The rows' ids one after the other, int64 [T], and where each begins and ends, int64 [n + 1]."""
        ids, offsets = self._gather(rows)
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(offsets)

    def distinct(self) -> tuple["TokenTable", NDArray[np.int64]]:
        """The rows that differ, in order of first appearance, and for each row its position among them.

        Rows are grouped by hash, then compared with the first of their group; those that differ from it
        go into another round. So the answer does not depend on the hash, only the time does.
        """
        first = np.full(len(self), -1, dtype=np.int64)
        unsettled = np.arange(len(self))
        round_number = 0
        while len(unsettled):
            hashes = self._hashes(unsettled, round_number)
            _, at, group = np.unique(hashes, return_index=True, return_inverse=True)
            candidate = unsettled[at][group]
            same = self._equal(unsettled, candidate)
            first[unsettled[same]] = candidate[same]
            unsettled = unsettled[~same]
            round_number += 1
        firsts, positions = np.unique(first, return_inverse=True)
        return self.take(firsts), positions.astype(np.int64)

    def _gather(self, rows: NDArray[Any]) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
        starts, ends = self.starts[rows], self.ends[rows]
        offsets = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(ends - starts, out=offsets[1:])
        return self.ids[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)], offsets

    def _hashes(self, rows: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
        """A sum of 64-bit mixtures of token and place; sums wrap, so differences of a running sum are exact."""
        hashes = np.empty(len(rows), dtype=np.uint64)
        for part in self._parts(rows):
            ids, offsets = self._gather(rows[part])
            place = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))
            mixed = _mix((ids.astype(np.uint64) << np.uint64(32)) + place.astype(np.uint64) + _mix(np.uint64(seed)))
            running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)])
            hashes[part] = running[offsets[1:]] - running[offsets[:-1]]
        return hashes

    def _equal(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows hold the same ids as their others."""
        lengths = self.lengths
        equal: NDArray[np.bool_] = lengths[rows] == lengths[others]
        to_compare = np.flatnonzero(equal & (rows != others))
        for part in self._parts(rows[to_compare]):
            at = to_compare[part]
            ids, offsets = self._gather(rows[at])
            differs = np.concatenate([[0], np.cumsum(ids != self._gather(others[at])[0])])
            equal[at] = differs[offsets[1:]] == differs[offsets[:-1]]
        return equal

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[slice]:
        """Slices of `rows` of about equally many tokens, few enough to work on at once."""
        part = np.cumsum(self.lengths[rows]) // HASHED_AT_ONCE
        bounds = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(rows)]
        return (slice(start, end) for start, end in pairwise(bounds) if end > start)


def id_type(vocabulary_size: int) -> np.dtype[Any]:
    """Two bytes for a token where they suffice."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)


def flatten(rows: list[list[int]], dtype: np.dtype[Any]) -> tuple[NDArray[np.integer[Any]], NDArray[np.int32]]:
    """All ids one after the other, and the length of each row."""
    lengths = np.fromiter(map(len, rows), dtype=LENGTHS, count=len(rows))
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(lengths.sum(dtype=np.int64))), lengths


def _mix(values: Any) -> Any:
    """Spreads every bit over all 64: the finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
