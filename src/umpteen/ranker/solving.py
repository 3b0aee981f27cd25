"""The weights of one label: a linear support vector machine on the few texts and n-grams that concern it (liblinear).

min ½(|w|² + b²) + C Σ max(0, 1 − y(w·x + b))², y = 1 for texts that have the label and −1 for those that do not.
Light to import: processes that fit labels load nothing else.
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix, hstack, vstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from umpteen.ranker.samples import LabelSamples, Samples
from umpteen.ranker.settings import RankerSettings


class BlockWeights(NamedTuple):
    """Weights of the labels of one block, a CSR matrix without its shape."""

    counts: NDArray[np.int64]  # weights of each label
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    intercepts: NDArray[np.float32]


def solve_block(samples: Samples, start: int, stop: int, settings: RankerSettings) -> BlockWeights:
    """The pruned weights of the labels from `start` to `stop`."""
    features = samples.matrix("features")
    compact = _Compact(features.shape[1])
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `iterations` is a choice
        for label in samples.of_labels(start, stop):
            found.append(_solve_label(label, features, samples, compact, settings))
    columns, values, intercepts = zip(*found, strict=True)
    return BlockWeights(
        np.array([len(part) for part in columns], dtype=np.int64),
        np.concatenate(columns).astype(np.int32),
        np.concatenate(values).astype(np.float32),
        np.array(intercepts, dtype=np.float32),
    )


Solution = tuple[NDArray[np.int64], NDArray[np.float64], float]


def _solve_label(
    label: LabelSamples, features: csr_array, samples: Samples, compact: "_Compact", settings: RankerSettings
) -> Solution:
    positives, negatives = len(label.positives), len(label.negatives)
    if positives == 0:  # nothing to recognise it by
        return np.empty(0, dtype=np.int64), np.empty(0), 0.0
    rows = np.concatenate([label.positives, label.negatives])
    matrix, columns = compact(features[rows])
    if settings.dense:
        vectors = settings.dense * samples.vectors(rows)
        matrix = hstack([matrix, csr_matrix(vectors)], format="csr")
        columns = np.concatenate([columns, features.shape[1] + np.arange(vectors.shape[1])])
    if matrix.shape[1] == 0:  # none of its texts has an n-gram that is known
        return np.empty(0, dtype=np.int64), np.empty(0), 0.0
    signs = np.repeat([1, -1], [positives, negatives])
    if negatives == 0:  # no text retrieves it wrongly: it is told apart from the text without words
        matrix, signs = vstack([matrix, csr_matrix((1, matrix.shape[1]))], format="csr"), np.append(signs, -1)
    solver = LinearSVC(
        C=settings.cost,
        dual=True,
        tol=settings.tolerance,
        max_iter=settings.iterations,
        random_state=0,
    )
    solver.fit(matrix, signs)
    weights = solver.coef_[0]
    kept = np.abs(weights) >= max(settings.threshold, np.finfo(np.float32).tiny)
    return columns[kept], weights[kept], float(solver.intercept_[0])


class _Compact:
    """Leaves out columns that are empty: liblinear's weights are dense, and a label meets few of a million n-grams."""

    def __init__(self, columns: int) -> None:
        self._met = np.zeros(columns, dtype=np.bool_)
        self._place = np.zeros(columns, dtype=np.int32)

    def __call__(self, rows: csr_array) -> tuple[csr_matrix, NDArray[np.int64]]:
        self._met[rows.indices] = True
        columns = np.flatnonzero(self._met)
        self._met[columns] = False
        self._place[columns] = np.arange(len(columns), dtype=np.int32)
        shape = (rows.shape[0], len(columns))
        return csr_matrix((rows.data.astype(np.float64), self._place[rows.indices], rows.indptr), shape=shape), columns
