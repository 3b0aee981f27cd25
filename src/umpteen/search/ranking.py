"""The best few labels of many queries, best first: what search returns and evaluation reads."""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import BadFile, BadInput
from umpteen.files.storage import atomic_file, write_atomically

_LARGEST = 2**31 - 1  # that indices of 32 bits count to

Parts = Callable[[], Iterable[csr_array]]


def write_csr(path: Path, parts: Parts, shape: tuple[int, int], stored: int) -> None:
    """All rows of the parts below each other, so many of them with so many stored numbers.

    `parts` gives them from the first, whenever it is called; indices are sorted within a row. Whole or not at all.
    """
    index = np.dtype(np.int32 if max(stored, *shape) <= _LARGEST else np.int64)
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        _write(archive, "indices", (stored,), index, (part.indices for part in parts()))
        _write(archive, "indptr", (shape[0] + 1,), index, _starts(parts()))
        for name, value in (("format", b"csr"), ("shape", shape), ("_is_array", True)):
            _write(archive, name, np.shape(value), np.array(value).dtype, [np.array(value)])
        _write(archive, "data", (stored,), np.dtype(np.float32), (part.data for part in parts()))


def _starts(parts: Iterable[csr_array]) -> Iterator[NDArray[np.int64]]:
    last = np.zeros(1, dtype=np.int64)
    yield last
    for part in parts:
        starts = last[-1] + part.indptr[1:].astype(np.int64)
        yield starts
        last = starts if len(starts) else last


def _write(
    archive: zipfile.ZipFile,
    name: str,
    shape: tuple[int, ...],
    kind: np.dtype[Any],
    pieces: Iterable[NDArray[Any]],
) -> None:
    """One array of the archive, from its pieces in order; the same numbers give the same bytes, whenever it is."""
    about = zipfile.ZipInfo(f"{name}.npy")  # without the time of day
    about.compress_type = zipfile.ZIP_DEFLATED
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with archive.open(about, "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for piece in pieces:
            member.write(np.ascontiguousarray(piece, dtype=kind).tobytes())


NO_LABEL = -1  # stands in `rows` where a query has fewer labels than the ranking is wide


@dataclass(frozen=True)
class Ranking:
    """Row i lists query i's labels, best first; where there are fewer, the row ends in −1 with score −∞."""

    rows: NDArray[np.int32]  # [N, k]
    scores: NDArray[np.float32]  # [N, k]
    labels: int  # how many labels there are to choose from

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    def head(self, k: int) -> "Ranking":
        """The best k of each query."""
        if k > self.width:
            raise BadInput(
                f"the best {k:,} were asked of a ranking that is {self.width:,} wide; search with k={k} first"
            )
        return Ranking(self.rows[:, :k], self.scores[:, :k], self.labels)

    def without(self, pairs: csr_array) -> "Ranking":
        """The same ranking with these pairs taken out and the labels behind them moved up."""
        if pairs.nnz == 0:
            return self
        keep = (self.rows != NO_LABEL) & ~contains(pairs, self.rows)
        order = np.argsort(~keep, axis=1, kind="stable")
        rows = np.where(keep, self.rows, np.int32(NO_LABEL))
        scores = np.where(keep, self.scores, np.float32(-np.inf))
        return Ranking(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1), self.labels)

    def to_csr(self) -> csr_array:
        """Scores as a sparse query × label matrix, the form other tools exchange predictions in."""
        real = self.rows != NO_LABEL
        starts = np.concatenate([[0], np.cumsum(real.sum(1))])
        matrix = csr_array((self.scores[real], self.rows[real], starts), shape=(len(self), self.labels))
        matrix.sort_indices()
        return matrix

    @classmethod
    def from_csr(cls, matrix: csr_array, k: int) -> "Ranking":
        """The k largest stored scores of each row; of equal ones, the smaller label row first."""
        matrix = _without_hopeless(matrix, k)
        queries, labels = matrix.shape
        query = np.repeat(np.arange(queries), np.diff(matrix.indptr))
        order = np.lexsort((matrix.indices, -matrix.data, query))  # by query, then score, then row
        place = np.arange(len(order)) - matrix.indptr[query]
        chosen = place < k
        rows = np.full((queries, k), NO_LABEL, dtype=np.int32)
        scores = np.full((queries, k), -np.inf, dtype=np.float32)
        rows[query[chosen], place[chosen]] = matrix.indices[order[chosen]]
        scores[query[chosen], place[chosen]] = matrix.data[order[chosen]]
        return cls(rows, scores, labels)

    def save(self, path: Path) -> None:
        """Written as scipy CSR (.npz), which `scipy.sparse.load_npz` reads."""
        buffer = io.BytesIO()
        scipy.sparse.save_npz(buffer, self.to_csr())
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path, k: int) -> "Ranking":
        """The best k a row of a saved query × label matrix, ours or another tool's."""
        try:
            matrix = scipy.sparse.load_npz(path)
        except FileNotFoundError:
            raise BadFile(path, "there is no such file") from None
        except Exception as error:
            raise BadFile(path, f"not a scipy sparse matrix ({error}); save one with scipy.sparse.save_npz") from error
        return cls.from_csr(csr_array(matrix), k)


def _without_hopeless(matrix: csr_array, k: int) -> csr_array:
    """Long rows cut down to scores that reach their k-th largest: sorting them whole would take most of the time."""
    lengths = np.diff(matrix.indptr)
    keep = np.ones(matrix.nnz, dtype=np.bool_)
    for row in np.flatnonzero(lengths > 4 * k):
        stored = slice(matrix.indptr[row], matrix.indptr[row + 1])
        scores = matrix.data[stored]
        keep[stored] = scores >= np.partition(scores, -k)[-k]
    if keep.all():
        return matrix
    starts = np.concatenate([[0], np.cumsum(keep)])[matrix.indptr]
    return csr_array((matrix.data[keep], matrix.indices[keep], starts), shape=matrix.shape)


def contains(pairs: csr_array, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether (query i, label rows[i, j]) is stored in `pairs`; what is stored there, even 0, doesn't matter."""
    queries, labels = pairs.shape
    stored = np.repeat(np.arange(queries, dtype=np.int64), np.diff(pairs.indptr)) * labels + pairs.indices
    asked = np.arange(queries, dtype=np.int64)[:, None] * labels + rows
    found: NDArray[np.bool_] = np.isin(asked, stored) & (rows != NO_LABEL)
    return found


def values_at(matrix: csr_array, rows: NDArray[np.int32]) -> NDArray[np.float32]:
    """What `matrix` stores at (query i, label rows[i, j]); 0 where it stores nothing."""
    matrix = csr_array(matrix)
    matrix.sum_duplicates()
    queries, labels = matrix.shape
    stored = np.repeat(np.arange(queries, dtype=np.int64), np.diff(matrix.indptr)) * labels + matrix.indices
    asked = np.arange(queries, dtype=np.int64)[:, None] * labels + rows
    place = np.minimum(np.searchsorted(stored, asked), max(0, len(stored) - 1))
    found = (stored[place] == asked) & (rows != NO_LABEL) if len(stored) else np.zeros(rows.shape, dtype=bool)
    return np.where(found, matrix.data[place] if len(stored) else 0, 0).astype(np.float32)
