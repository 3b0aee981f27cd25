"""All labels' weights, block by block on several processes; a finished block is a file, so a killed fit goes on."""

import io
import os
import warnings
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from scipy.sparse import csr_array, csr_matrix, vstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from umpteen.errors import LostProcess
from umpteen.files.progress import Advance, silent
from umpteen.files.storage import write_atomically
from umpteen.rerank.features import RankerSettings

TEXTS_AT_A_TIME = 8192
_ARRAYS = ("data", "indices", "indptr")
# Every block reads all candidates once: few blocks for many labels, and for few labels blocks small enough to share.
_MOST_BLOCKS = 64
_SMALLEST_BLOCK = 256


# Who is told apart from whom: for each label the training texts that have it, and those that wrongly retrieve it.
# All of it lies on disk, mapped by the processes that fit: the texts' features, the relevant pairs, and the candidates
# of blocks of texts. Memory holds the samples of one block of labels.
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
        arrays = tuple(np.load(self.folder / f"{name}.{array}.npy", mmap_mode="r") for array in _ARRAYS)
        return csr_array(arrays, shape=tuple(np.load(self.folder / f"{name}.shape.npy").tolist()))

    def candidates(self, start: int) -> Path:
        """Where the labels are that were retrieved for the texts from `start` on."""
        return self.folder / f"candidates-{start:012}.npy"

    def keep_candidates(self, start: int, rows: NDArray[np.int32]) -> None:
        _write(self.candidates(start), rows)

    def of_labels(self, start: int, stop: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The rows of positives and of negatives of each label from `start` to `stop`.

        Relevant pairs are never negatives; filtered ones are no candidates in the first place.
        """
        relevant, count = self.matrix("relevant"), stop - start
        chosen = np.flatnonzero((relevant.indices >= start) & (relevant.indices < stop))
        query = np.searchsorted(relevant.indptr, chosen, side="right") - 1
        known = np.stack([query, relevant.indices[chosen] - start], 1).astype(np.int64)
        blocks: list[NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)]
        for path in sorted(self.folder.glob("candidates-*.npy")):
            rows = np.load(path, mmap_mode="r")
            text, place = np.nonzero((rows >= start) & (rows < stop))
            blocks.append(np.stack([text + int(path.stem.rpartition("-")[2]), rows[text, place] - start], 1))
        retrieved = np.concatenate(blocks)
        wrong = ~np.isin(retrieved @ [count, 1], known @ [count, 1])
        positives, negatives = known[relevant.data[chosen] > 0], retrieved[wrong]
        return zip(_by_label(positives, count), _by_label(negatives, count), strict=True)


def _by_label(pairs: NDArray[np.int64], labels: int) -> list[NDArray[np.int64]]:
    ordered = pairs[np.argsort(pairs[:, 1], kind="stable")]
    return np.split(ordered[:, 0], np.searchsorted(ordered[:, 1], np.arange(1, labels)))


def _write(path: Path, array: NDArray[np.generic]) -> None:
    buffer = io.BytesIO()  # written straight to the disk, numpy would not say why it is too full
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())


# The weights of one label: a linear support vector machine on the few texts and n-grams that concern it (liblinear).
# min ½(|w|² + b²) + C Σ max(0, 1 − y(w·x + b))², y = 1 for texts that have the label and −1 for those that do not.
# Light to import: processes that fit labels load nothing else.
def solve_block(samples: Samples, start: int, stop: int, settings: RankerSettings) -> dict[str, NDArray[Any]]:
    """The pruned weights of the labels from `start` to `stop`: how many each has, their columns and values, and the
    labels' intercepts."""
    features = samples.matrix("features")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `iterations` is a choice
        found = [_solve_label(*rows, features, settings) for rows in samples.of_labels(start, stop)]
    columns, values, intercepts = zip(*found, strict=True)
    return {
        "counts": np.array([len(part) for part in columns], dtype=np.int64),
        "columns": np.concatenate(columns).astype(np.int32),
        "values": np.concatenate(values).astype(np.float32),
        "intercepts": np.array(intercepts, dtype=np.float32),
    }


def _solve_label(
    positives: NDArray[np.int64], negatives: NDArray[np.int64], features: csr_array, settings: RankerSettings
) -> tuple[NDArray[np.integer], NDArray[np.float64], float]:
    """The columns and values of its weights, and its intercept."""
    nothing = np.empty(0, dtype=np.int64), np.empty(0), 0.0
    if len(positives) == 0:  # nothing to recognise it by
        return nothing
    rows = features[np.concatenate([positives, negatives])]
    # Only the columns that are not empty: liblinear's weights are dense, and a label meets few of a million n-grams.
    columns, place = np.unique(rows.indices, return_inverse=True)
    if len(columns) == 0:  # none of its texts has an n-gram that is known
        return nothing
    values, shape = (rows.data.astype(np.float64), place.astype(np.int32), rows.indptr), (rows.shape[0], len(columns))
    matrix = csr_matrix(values, shape=shape)
    signs = np.repeat([1, -1], [len(positives), len(negatives)])
    if len(negatives) == 0:  # no text retrieves it wrongly: it is told apart from the text without words
        matrix, signs = vstack([matrix, csr_matrix((1, matrix.shape[1]))], format="csr"), np.append(signs, -1)
    how = {"C": settings.cost, "tol": settings.tolerance, "max_iter": settings.iterations}
    solver = LinearSVC(dual=True, random_state=0, **how).fit(matrix, signs)
    weights = solver.coef_[0]
    kept = np.abs(weights) >= max(settings.threshold, np.finfo(np.float32).tiny)
    return columns[kept], weights[kept], float(solver.intercept_[0])


def fit_weights(
    samples: Samples, labels: int, settings: RankerSettings, *, jobs: int = 1, progress: Advance = silent
) -> tuple[csr_array, NDArray[np.float32]]:
    """Weights (features × labels) and intercepts; blocks that an earlier call finished are not solved again."""
    size = max(_SMALLEST_BLOCK, -(-labels // _MOST_BLOCKS))
    blocks = [(start, min(start + size, labels)) for start in range(0, labels, size)]
    waiting = [block for block in blocks if not _path(samples, block).exists()]
    done = labels - sum(stop - start for start, stop in waiting)
    try:
        at_once = Parallel(n_jobs=min(jobs, max(1, len(waiting))), return_as="generator_unordered")
        work = (delayed(_fit_block)(samples.folder, block, settings, os.getpid()) for block in waiting)
        for start, stop in at_once(work):
            done += stop - start
            progress(done, labels)
    except BrokenProcessPool as problem:
        ended = f"a process that fitted labels has ended ({str(problem).partition('.')[0]}); finished labels are kept"
        raise LostProcess(f"{ended}, the same command goes on; if memory ran out, give fewer --jobs") from None
    solved = [load_file(_path(samples, block)) for block in blocks]
    whole = {name: np.concatenate([block[name] for block in solved]) for name in solved[0]}
    starts = np.concatenate([[0], np.cumsum(whole["counts"])])
    shape = (labels, int(samples.matrix("features").shape[1]))
    by_label = csr_array((whole["values"], whole["columns"], starts), shape=shape)
    return csr_array(by_label.T.tocsr()), whole["intercepts"]


def _fit_block(folder: Path, block: tuple[int, int], settings: RankerSettings, asked_by: int) -> tuple[int, int]:
    samples = Samples(folder)
    solved = save(solve_block(samples, *block, settings))
    if asked_by not in (os.getpid(), os.getppid()):
        os._exit(1)  # who asked was killed: the folder may be gone, or another fit's by now
    write_atomically(_path(samples, block), solved)
    return block


def _path(samples: Samples, block: tuple[int, int]) -> Path:
    return samples.folder / f"weights-{block[0]:012}.safetensors"
