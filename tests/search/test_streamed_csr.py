"""A matrix that is written from arrays, mapped or not, is the one that scipy would have written."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csr_array

from umpteen.errors import NotSaved
from umpteen.search.ranking import write_csr


@pytest.mark.parametrize("rows", [0, 1, 15])
@pytest.mark.parametrize("starts", [np.int32, np.int64])
@pytest.mark.parametrize("mapped", [False, True])
def test_scipy_reads_what_was_written(rows: int, starts: type, mapped: bool, tmp_path: Path) -> None:
    whole = csr_array(scipy.sparse.random(rows, 40, 0.1, "csr", dtype=np.float32, rng=np.random.default_rng(0)))
    arrays = whole.data, whole.indices, whole.indptr.astype(starts)
    for name in ("one.npz", "again.npz"):
        given = [_mapped(tmp_path / f"array-{place}", array) if mapped else array for place, array in enumerate(arrays)]
        write_csr(tmp_path / name, whole.shape, *given)
    found = scipy.sparse.load_npz(tmp_path / "one.npz")
    assert isinstance(found, csr_array) and found.dtype == np.float32 and found.shape == whole.shape
    assert (found.indptr == whole.indptr).all() and (found.indices == whole.indices).all()
    assert (found.data == whole.data).all()
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def _mapped(path: Path, array: np.ndarray) -> np.ndarray:
    array.tofile(path)
    return np.memmap(path, array.dtype, "r") if len(array) else array


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", failing)
    with pytest.raises(NotSaved, match=r"one\.npz: could not be written"):
        write_csr(tmp_path / "one.npz", (1, 40), np.ones(1), np.zeros(1, dtype=np.int32), np.arange(2))
    assert list(tmp_path.iterdir()) == []
