"""Who is told apart from whom: for each label the training texts that have it, and those that wrongly retrieve it.

All of it lies on disk, mapped by the processes that fit: the texts' features, the relevant pairs, and the candidates
of blocks of texts. Memory holds the samples of one block of labels.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.storage import write_atomically

TEXTS_AT_A_TIME = 8192
_ARRAYS = ("data", "indices", "indptr")


class LabelSamples(NamedTuple):
    """Rows of training texts."""

    label: int
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]


class Samples:
    """A folder of samples; `keep_…` fill it, and what is there already survives a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep_matrix(self, name: str, matrix: csr_array) -> None:
        """A sparse matrix that processes can map."""
        for array in _ARRAYS:
            _write(self.folder / f"{name}.{array}.npy", getattr(matrix, array))
        _write(self.folder / f"{name}.shape.npy", np.array(matrix.shape))

    def matrix(self, name: str) -> csr_array:
        """The matrix of that name, mapped."""
        arrays = tuple(np.load(self.folder / f"{name}.{array}.npy", mmap_mode="r") for array in _ARRAYS)
        return csr_array(arrays, shape=tuple(np.load(self.folder / f"{name}.shape.npy").tolist()))

    def keep_candidates(self, start: int, rows: NDArray[np.int32], vectors: NDArray[np.float32] | None) -> None:
        """The labels retrieved for the texts from `start` on, and their vectors where these are features, too."""
        if vectors is not None:
            _write(self._path("vectors", start), vectors)
        _write(self._path("candidates", start), rows)  # last: its presence vouches for both

    def has_candidates(self, start: int) -> bool:
        return self._path("candidates", start).exists()

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The dense vectors of these texts."""
        block, within = np.divmod(rows, TEXTS_AT_A_TIME)
        parts = {int(b): np.load(self._path("vectors", int(b) * TEXTS_AT_A_TIME), mmap_mode="r") for b in set(block)}
        return np.stack([parts[int(b)][w] for b, w in zip(block, within, strict=True)])

    def of_labels(self, start: int, stop: int) -> Iterator[LabelSamples]:
        """The samples of each label from `start` to `stop`: relevant pairs and filtered ones are never negatives.

        Filtered pairs are no candidates in the first place.
        """
        relevant = self.matrix("relevant")
        pulled, known = _pairs_between(relevant, start, stop)
        positives = known[pulled]
        retrieved = np.concatenate([*self._retrieved(start, stop), np.empty((0, 2), dtype=np.int64)])
        count = stop - start
        wrong = ~np.isin(retrieved @ [count, 1], known @ [count, 1])
        by_label = [_by_label(pairs, count) for pairs in (positives, retrieved[wrong])]
        for offset in range(count):
            yield LabelSamples(start + offset, *(part[offset] for part in by_label))

    def _retrieved(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        for path in sorted(self.folder.glob("candidates-*.npy")):
            rows = np.load(path, mmap_mode="r")
            query, place = np.nonzero((rows >= start) & (rows < stop))
            yield np.stack([query + _start_of(path), rows[query, place] - start], 1)

    def _path(self, name: str, start: int) -> Path:
        return self.folder / f"{name}-{start:012}.npy"


def _start_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _pairs_between(matrix: csr_array, start: int, stop: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each pair is pulled (weight above 0), and the pairs as text and label − start."""
    chosen = np.flatnonzero((matrix.indices >= start) & (matrix.indices < stop))
    query = np.searchsorted(matrix.indptr, chosen, side="right") - 1
    return np.asarray(matrix.data[chosen] > 0), np.stack([query, matrix.indices[chosen] - start], 1).astype(np.int64)


def _by_label(pairs: NDArray[np.int64], labels: int) -> list[NDArray[np.int64]]:
    ordered = pairs[np.argsort(pairs[:, 1], kind="stable")]
    return np.split(ordered[:, 0], np.searchsorted(ordered[:, 1], np.arange(1, labels)))


def _write(path: Path, array: NDArray[np.generic]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
