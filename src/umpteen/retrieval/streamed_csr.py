"""A sparse matrix written part by part, never held whole: the file that scipy.sparse.save_npz would write."""

import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.storage import atomic_file

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
