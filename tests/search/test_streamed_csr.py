"""A matrix that is written part by part is the one that scipy would have written whole."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csr_array

from umpteen.errors import NotSaved
from umpteen.search import ranking as streamed_csr
from umpteen.search.ranking import write_csr


def matrix(seed: int, rows: int) -> csr_array:
    return csr_array(scipy.sparse.random(rows, 40, 0.1, "csr", dtype=np.float32, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("largest", [2**31 - 1, 10])  # indices of 32 and of 64 bits
@pytest.mark.parametrize("sizes", [[], [0], [7], [5, 0, 9, 1]])
def test_scipy_reads_all_rows_of_all_parts(
    sizes: list[int], largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_csr, "_LARGEST", largest)
    parts = [matrix(seed, rows) for seed, rows in enumerate(sizes)]
    whole = csr_array(scipy.sparse.vstack(parts)) if parts else csr_array((0, 40), dtype=np.float32)
    for name in ("one.npz", "again.npz"):
        write_csr(tmp_path / name, lambda: iter(parts), (sum(sizes), 40), whole.nnz)
    found = scipy.sparse.load_npz(tmp_path / "one.npz")
    assert isinstance(found, csr_array) and found.dtype == np.float32 and found.shape == whole.shape
    assert (found.indptr == whole.indptr).all() and (found.indices == whole.indices).all()
    assert (found.data == whole.data).all()
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_a_part_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> list[csr_array]:
        raise OSError(5, "Input/output error")

    with pytest.raises(NotSaved, match=r"one\.npz: could not be written"):
        write_csr(tmp_path / "one.npz", failing, (1, 40), 1)
    assert list(tmp_path.iterdir()) == []
