"""The layout of the paper's published code: raw/{trn_X,tst_X,Y}.txt, Y.{trn,tst}.npz, filter_labels_*.txt.

raw/Y_ids.txt gives the label keys if it is there; else a label's key is its row number.
"""

from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, load_npz

from umpteen.data.formats.reading import filter_files, in_step, read_filter, read_lines
from umpteen.data.prepared import Builder
from umpteen.errors import BadFile

PARTS = {"train": "trn", "test": "tst"}


def recognises(folder: Path) -> bool:
    raw_only = (folder / "raw" / "Y.txt").is_file() and not (folder / "trn_X_Y.txt").is_file()
    return (folder / "Y.trn.npz").is_file() or raw_only


def sources(folder: Path) -> list[Path]:
    paths = [folder / "raw" / "Y.txt", folder / "raw" / "Y_ids.txt"]
    for split, part in PARTS.items():
        paths += [_texts(folder, part), _matrix(folder, part), *filter_files(folder, split)]
    return [path for path in paths if path.is_file()]


def read(folder: Path, into: Builder) -> None:
    """Train must be whole; test may be missing, but not by halves."""
    _read_labels(folder / "raw" / "Y.txt", folder / "raw" / "Y_ids.txt", into)
    for split, part in PARTS.items():
        texts, matrix = _texts(folder, part), _matrix(folder, part)
        if split == "train" or texts.is_file() or matrix.is_file():
            _read_split(split, texts, matrix, into)
            read_filter(folder, split, into)


def _texts(folder: Path, part: str) -> Path:
    return folder / "raw" / f"{part}_X.txt"


def _matrix(folder: Path, part: str) -> Path:
    return folder / f"Y.{part}.npz"


def _read_labels(texts: Path, ids: Path, into: Builder) -> None:
    into.begin_labels(texts)
    lines = read_lines(texts, into.advance)
    if not ids.is_file():
        for row, (at, text) in enumerate(lines):
            into.add_label(str(row), text, at)
        return
    for (at_text, text), (at_key, key) in in_step(texts, lines, ids, read_lines(ids, into.advance), "lines"):
        into.add_label(key, text, at_key if text.strip() else at_text)


def _read_split(split: str, texts: Path, matrix_path: Path, into: Builder) -> None:
    matrix = _load(matrix_path, into.labels)
    into.begin(split, texts)
    pairs = map(slice, matrix.indptr[:-1], matrix.indptr[1:])
    rows = ((matrix.indices[some].tolist(), matrix.data[some].tolist()) for some in pairs)
    for (labels, weights), (at, text) in in_step(matrix_path, rows, texts, read_lines(texts, into.advance), "rows"):
        into.add_query(text, labels, weights, at)
    into.advance(matrix_path.stat().st_size)


def _load(path: Path, labels: int) -> csr_array:
    """A query × label matrix whose rows and weights are possible."""
    if not path.is_file():
        raise BadFile(path, "is missing; it holds the labels of each query as a scipy CSR matrix")
    try:
        with path.open("rb") as file:
            matrix = csr_array(load_npz(file))
        damaged = "row starts go backwards" if (np.diff(matrix.indptr) < 0).any() else ""
    except Exception as error:  # scipy, numpy and zipfile raise all sorts on a file that is cut short or another
        damaged = str(error) or type(error).__name__
    if damaged:
        raise BadFile(path, f"is no whole scipy sparse matrix ({damaged}); save it again with scipy.sparse.save_npz")
    if matrix.shape[1] != labels:
        raise BadFile(path, f"has {matrix.shape[1]:,} columns but raw/Y.txt has {labels:,} lines; one column per label")
    _refuse(path, matrix, (matrix.indices < 0) | (matrix.indices >= labels), f"label row not in 0 to {labels - 1:,}")
    _refuse(path, matrix, ~(np.isfinite(matrix.data) & (matrix.data >= 0)), "weight that is no finite number ≥ 0")
    return matrix


def _refuse(path: Path, matrix: csr_array, wrong: np.ndarray, problem: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
        raise BadFile(path, f"row {row:,} has a {problem}: label row {matrix.indices[at]:,}, weight {matrix.data[at]}")
