"""Texts as token ids, tokenised once: a memory-mapped table that a killed process resumes and two can share.

While it grows, a table is a folder `….partial`: ids are appended chunk by chunk, and once they are on the disk, the
lengths that vouch for them. Ids beyond these are cut off on resuming; the last rename makes the table complete.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from umpteen.data.prepared import cache_folder, cached
from umpteen.data.texts import Texts
from umpteen.files.progress import Advance, silent

LENGTHS = np.dtype(np.int32)
Ids = list[list[int]]  # of several texts
TOKENS_VERSION = 1
CHUNK = 8_192  # texts between two records, at most
CHUNK_BYTES = 1 << 21  # of text between two records, unless one text is longer; bounds the memory
SMALL = 20_000  # fewer texts are tokenised in memory faster than a table is looked after
IDS_FILE, LENGTHS_FILE = "ids.bin", "lengths.bin"


@dataclass(eq=False)
class TokenTable:
    """The token ids of many texts, one after the other; row r is ids[starts[r] : ends[r]]."""

    ids: NDArray[np.integer[Any]]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[list[int]], vocabulary_size: int) -> "TokenTable":
        return cls.of_lengths(*flatten(list(rows), id_type(vocabulary_size)))

    @classmethod
    def of_lengths(cls, ids: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> "TokenTable":
        """Rows that follow each other without a gap."""
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(ids, ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.ends - self.starts

    def take(self, rows: NDArray[Any] | slice) -> "TokenTable":
        """These rows in this order; shares the ids."""
        return TokenTable(self.ids, self.starts[rows], self.ends[rows])

    def followed_by(self, other: "TokenTable") -> "TokenTable":
        """These rows, then the other's; in memory."""
        ids = [table.batch(np.arange(len(table)))[0].numpy().astype(np.int32) for table in (self, other)]
        return TokenTable.of_lengths(np.concatenate(ids), np.concatenate([self.lengths, other.lengths]))

    def batch(self, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """The rows' ids one after the other, int64 [T], and where each begins and ends, int64 [n + 1]."""
        starts = self.starts[rows]
        lengths = self.ends[rows] - starts
        offsets = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        ids = self.ids[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(offsets)

    def distinct(self) -> tuple["TokenTable", NDArray[np.int64]]:
        """The rows that differ, in order of first appearance, and for each row its position among them."""
        seen: dict[bytes, int] = {}
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        rows = (self.ids[start:end].tobytes() for start, end in bounds)
        positions = np.fromiter((seen.setdefault(row, len(seen)) for row in rows), dtype=np.int64, count=len(self))
        return self.take(np.unique(positions, return_index=True)[1]), positions


class JoinedTokens(TokenTable):
    """Several tables of the same texts as one: a row is the lengths of all its segments but the last, then these."""

    def __init__(self, parts: Sequence[TokenTable]) -> None:
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def lengths(self) -> NDArray[np.int64]:
        return sum((part.lengths for part in self.parts), np.full(len(self), len(self.parts) - 1))

    def followed_by(self, other: TokenTable) -> "JoinedTokens":
        assert isinstance(other, JoinedTokens)
        return JoinedTokens([one.followed_by(two) for one, two in zip(self.parts, other.parts, strict=True)])

    def take(self, rows: NDArray[Any] | slice) -> "JoinedTokens":
        return JoinedTokens([part.take(rows) for part in self.parts])

    def batch(self, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
        batches = [part.batch(rows) for part in self.parts]
        lengths = [offsets.diff() for _, offsets in batches]
        headers = len(batches) - 1
        offsets = pad((torch.stack(lengths).sum(0) + headers).cumsum(0), (1, 0))
        ids = torch.empty(int(offsets[-1]), dtype=torch.int64)
        start = offsets[:-1] + headers
        for number, ((segment, begins), length) in enumerate(zip(batches, lengths, strict=True)):
            if number < headers:
                ids[offsets[:-1] + number] = length
            ids[places(start - begins[:-1], length)] = segment
            start = start + length
        return ids, offsets

    def distinct(self) -> tuple[TokenTable, NDArray[np.int64]]:
        positions = np.stack([part.distinct()[1] for part in self.parts], 1)
        _, at, group = np.unique(positions, axis=0, return_index=True, return_inverse=True)
        firsts, places = np.unique(at[group.ravel()], return_inverse=True)
        return self.take(firsts), places.astype(np.int64)


def segments(ids: Tensor, offsets: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches that a batch of so many joined tables was made of."""
    headers = count - 1
    start, left = offsets[:-1] + headers, offsets.diff() - headers
    for number in range(count):
        length = ids[offsets[:-1] + number] if number < headers else left
        begins = pad(length.cumsum(0), (1, 0))
        yield ids[places(start - begins[:-1], length)], begins
        start, left = start + length, left - length


def places(shifts: Tensor, lengths: Tensor) -> Tensor:
    """Running numbers, those of row r shifted by shifts[r]."""
    return torch.arange(int(lengths.sum()), device=lengths.device) + torch.repeat_interleave(shifts, lengths)


def id_type(vocabulary_size: int) -> np.dtype[Any]:
    """Two bytes for a token where they suffice."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)


def flatten(rows: Ids, dtype: np.dtype[Any]) -> tuple[NDArray[np.integer[Any]], NDArray[np.int32]]:
    """All ids one after the other, and the length of each row."""
    lengths = np.fromiter(map(len, rows), dtype=LENGTHS, count=len(rows))
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(lengths.sum(dtype=np.int64))), lengths


class Tokenizer(Protocol):
    """Texts to ragged lists of ids below `vocabulary_size`; equal fingerprints give equal ids."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def vocabulary_size(self) -> int: ...
    def __call__(self, texts: list[str]) -> Ids: ...


def tokenise(texts: Texts, tokenizer: Tokenizer, progress: Advance = silent) -> TokenTable:
    """The texts' token ids; all texts that `texts` is a view of are tokenised together, once, into the cache."""
    whole = texts.whole()
    if len(whole) < SMALL:
        return TokenTable.of(chain(*_tokenised(texts, tokenizer, 0, progress)), tokenizer.vocabulary_size)
    dtype = id_type(tokenizer.vocabulary_size)
    identity = {"version": TOKENS_VERSION, "texts": whole.fingerprint()}
    identity |= {"tokenizer": tokenizer.fingerprint, "id_type": dtype.name}
    folder = cache_folder() / "tokens" / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    find, make = partial(_open, folder, dtype, len(whole)), partial(_write, folder, whole, tokenizer, progress)
    table = cached(folder, find, make)
    return table if texts is whole else table.take(texts.rows)


def _open(folder: Path, dtype: np.dtype[Any], texts: int) -> TokenTable | None:
    """The complete table, or None if there is none, or its files do not fit each other and so many texts."""
    try:
        lengths, size = np.fromfile(folder / LENGTHS_FILE, dtype=LENGTHS), (folder / IDS_FILE).stat().st_size
    except FileNotFoundError:
        return None
    if len(lengths) != texts or (lengths < 0).any() or size != lengths.sum(dtype=np.int64) * dtype.itemsize:
        return None
    # An empty file cannot be mapped.
    ids = np.asarray(np.memmap(folder / IDS_FILE, dtype, "r")) if size else np.empty(0, dtype)
    return TokenTable.of_lengths(ids, lengths)


def _write(folder: Path, texts: Texts, tokenizer: Tokenizer, progress: Advance) -> None:
    """Tokenise on from where the partial table ends, then put it in place."""
    begun, dtype = folder.with_suffix(".partial"), id_type(tokenizer.vocabulary_size)
    begun.mkdir(parents=True, exist_ok=True)
    with (begun / IDS_FILE).open("ab") as ids_file, (begun / LENGTHS_FILE).open("ab") as lengths_file:
        done = np.fromfile(begun / LENGTHS_FILE, dtype=LENGTHS)
        if (done < 0).any() or ids_file.tell() < done.sum(dtype=np.int64) * dtype.itemsize:  # it is damaged
            done = done[:0]
        ids_file.truncate(int(done.sum(dtype=np.int64)) * dtype.itemsize)
        lengths_file.truncate(done.nbytes)
        for rows in _tokenised(texts, tokenizer, len(done), progress):
            for file, values in zip((ids_file, lengths_file), flatten(rows, dtype), strict=True):
                _append(file, values)
    shutil.rmtree(folder, ignore_errors=True)
    begun.replace(folder)


def _tokenised(texts: Texts, tokenizer: Tokenizer, first: int, progress: Advance) -> Iterator[Ids]:
    """Chunk by chunk from the text `first` on; progress hears of a chunk once the caller is done with it."""
    ends = np.cumsum(texts.byte_lengths())
    start = first
    while start < len(texts):
        progress(start, len(texts))
        bytes_before = ends[start - 1] if start else 0
        within_bytes = int(np.searchsorted(ends, bytes_before + CHUNK_BYTES, side="right"))
        end = min(max(within_bytes, start + 1), start + CHUNK, len(texts))
        yield tokenizer([texts[row] for row in range(start, end)])
        start = end
    progress(len(texts), len(texts))


def _append(file: BinaryIO, values: NDArray[Any]) -> None:
    """On the disk when this returns."""
    file.write(values.tobytes())
    file.flush()
    os.fsync(file.fileno())
