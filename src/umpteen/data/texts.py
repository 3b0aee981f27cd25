"""Many texts as one UTF-8 blob and its offsets, memory-mapped: 1.8 million documents cost no memory until read.

Views share the blob, so the train, validation and test parts of one file are tokenised once, together.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from umpteen.errors import BadFile, BadInput

CHUNK = 65_536  # texts walked at a time


@dataclass(eq=False, repr=False)
class Texts(Sequence[str]):
    """Texts that cannot change; `take` gives a view that shares the blob and remembers its rows in the whole."""

    _blob: bytes | mmap.mmap
    _starts: NDArray[np.int64]
    _ends: NDArray[np.int64]
    _whole: Texts | None = None
    _rows: NDArray[np.int64] | None = None
    _fingerprint: str | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Texts held in memory, for sets that fit."""
        encoded = [encode(text) for text in texts]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in encoded], out=offsets[1:])
        return cls(b"".join(encoded), offsets[:-1], offsets[1:])

    @classmethod
    def open(cls, folder: Path, name: str) -> Texts:
        """What a TextsWriter wrote under this name, mapped and not read."""
        path = folder / f"{name}.txt.bin"
        try:
            offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")
            recorded = (folder / f"{name}.sha256").read_text().strip()
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                blob = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except (OSError, ValueError, EOFError) as error:
            raise BadFile(path, f"cannot be opened ({error}); delete the folder {folder} to have it rebuilt") from error
        if offsets.ndim != 1 or len(offsets) == 0 or offsets[-1] != size:
            raise BadFile(path, f"has {size:,} bytes, not what its offsets say; delete the folder {folder}")
        return cls(blob, offsets[:-1], offsets[1:], _fingerprint=recorded)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Texts: ...
    def __getitem__(self, row: int | slice) -> str | Texts:
        if isinstance(row, slice):
            return self.take(row)
        return self._blob[self._starts[row] : self._ends[row]].decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        return (piece.decode("utf-8") for piece in self._pieces())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Texts) and len(self) == len(other) and self.fingerprint() == other.fingerprint()

    def __repr__(self) -> str:
        return f"<{len(self):,} texts>"

    def byte_lengths(self) -> NDArray[np.int64]:
        return np.asarray(self._ends - self._starts)

    def take(self, rows: ArrayLike | slice) -> Texts:
        """A view of these rows, or of those where a mask is true, in this order; it copies offsets, never text."""
        chosen = np.arange(len(self))[rows]  # type: ignore[index]
        return Texts(self._blob, self._starts[chosen], self._ends[chosen], self.whole(), self.rows[chosen])

    def whole(self) -> Texts:
        """The texts this is a view of; itself when it is not a view."""
        return self if self._whole is None else self._whole

    @property
    def rows(self) -> NDArray[np.int64]:
        """Where each text stands in the whole."""
        return np.arange(len(self), dtype=np.int64) if self._rows is None else self._rows

    def followed_by(self, other: Texts) -> Texts:
        """These texts, then the other's: a view when both are views of one whole, else a copy in memory."""
        if self.whole() is other.whole():
            return self.whole().take(np.concatenate([self.rows, other.rows]))
        return Texts.of([*self, *other])

    def fingerprint(self) -> str:
        """A sha256 of bytes and lengths: equal texts have equal fingerprints, however they are stored."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for piece in self._pieces():
                digest.update(piece)
            self._fingerprint = _sealed(digest, self.byte_lengths())
        return self._fingerprint

    def _pieces(self) -> Iterator[bytes]:
        blob = self._blob
        for first in range(0, len(self), CHUNK):  # lists of ints are much faster to walk than numpy scalars
            bounds = (edges[first : first + CHUNK].tolist() for edges in (self._starts, self._ends))
            for start, end in zip(*bounds, strict=True):
                yield blob[start:end]
            if isinstance(blob, mmap.mmap):
                blob.madvise(mmap.MADV_DONTNEED)  # what has been read need not stay in memory; the file keeps it


class TextsWriter:
    """Streams texts to disk for `Texts.open`: only their offsets stay in memory, which are written at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._file = (folder / f"{name}.txt.bin").open("wb")
        self._offsets = array("q", [0])
        self._digest = hashlib.sha256()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, text: str) -> None:
        encoded = encode(text)
        self._file.write(encoded)
        self._digest.update(encoded)
        self._offsets.append(self._offsets[-1] + len(encoded))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if error is None:  # else there is nothing to open
            offsets = np.frombuffer(self._offsets, dtype=np.int64)
            np.save(self._folder / f"{self._name}.offsets.npy", offsets)
            (self._folder / f"{self._name}.sha256").write_text(_sealed(self._digest, np.diff(offsets)) + "\n")


def encode(text: str) -> bytes:
    """UTF-8 bytes; half of a surrogate pair has none and is refused."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}, half of a surrogate pair and no character"
        advice = "remove it, or write the pair as one character"
        raise BadInput(f"character {error.start + 1:,} of the text is {half}; {advice}") from None


def _sealed(digest: Any, lengths: NDArray[np.int64]) -> str:
    digest.update(np.ascontiguousarray(lengths, dtype="<i8").tobytes())
    return str(digest.hexdigest())


def values_of(column: Any) -> list[Any]:
    """The values of a list, array or column as Python's own; numpy, pandas, polars, pyarrow name it differently.

    Classes in a column of `datasets` are their names.
    """
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            return list(getattr(column, name)())
    names = class_names(getattr(column, "features", None))
    return [class_called(value, names) for value in column] if names else list(column)


def class_names(feature: Any) -> list[str]:
    """What `datasets`, or a JSON file of theirs, calls the classes of a column, or of the lists in it."""
    while isinstance(feature, list) and feature:
        feature = feature[0]
    about = feature if isinstance(feature, dict) else getattr(feature, "__dict__", {})
    return list(about.get("names") or []) or (class_names(about["feature"]) if "feature" in about else [])


def class_called(cell: Any, names: list[str]) -> Any:
    """A class's name; none for what stands for an unknown one."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    if isinstance(cell, list):
        return [name for one in cell if (name := class_called(one, names)) is not None]
    return names[cell] if isinstance(cell, int) and 0 <= cell < len(names) else None
