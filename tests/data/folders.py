"""One small multilingual dataset, written in every format umpteen reads, and the way to open such folders."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, save_npz

from umpteen.data.dataset import Dataset, open_dataset

# CJK, Arabic with marks, an emoji of several code points, combining marks, Devanagari, and control characters
# and line separators other than "\n": str.splitlines would break these texts apart.
MULTILINGUAL = [
    "図書館と情報検索",
    "قَانُونُ ٱلضَّرَائِب",
    "family 👩‍👩‍👧‍👦 & flags 🇫🇮",
    "e\u0301te\u0301 and o\u0308l: combining marks",
    "हिन्दी में शीर्षक",
    "bell \x07, unit separator \x1f, next line \x85, form feed \x0c, line separator \u2028 inside",
]
KEYS = ["10", "rôle", "税"]
LABEL_TEXTS = ["domestic trade", "rôle: the part\u2029played", "税金 💶"]
TRAIN_LABELS = [[0], [1, 2], [2], [0, 1]]
TEST_LABELS = [[2], [0]]
TRAIN_FILTER, TEST_FILTER = [(1, 0), (3, 2)], [(0, 1)]


def write_text(path: Path, text: str) -> Path:
    """Writes the characters as they are: no translation of line ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_lines(path: Path, lines: list[str]) -> Path:
    return write_text(path, "".join(line + "\n" for line in lines))


def write_json_lines(path: Path, records: Sequence[Mapping[str, object]]) -> Path:
    return write_lines(path, [json.dumps(record) for record in records])


def write_dexml(folder: Path, *, ids: bool = True, filters: bool = True) -> Path:
    write_lines(folder / "raw" / "Y.txt", LABEL_TEXTS)
    write_lines(folder / "raw" / "trn_X.txt", MULTILINGUAL[:4])
    write_lines(folder / "raw" / "tst_X.txt", MULTILINGUAL[4:])
    if ids:
        write_lines(folder / "raw" / "Y_ids.txt", KEYS)
    save_npz(folder / "Y.trn.npz", matrix(TRAIN_LABELS))
    save_npz(folder / "Y.tst.npz", matrix(TEST_LABELS))
    if filters:
        write_filters(folder, "filter_labels_train.txt", "filter_labels_test.txt")
    return folder


def write_xc_json(folder: Path, ending: str = ".json.gz") -> Path:
    labels = [{"uid": key, "title": text} for key, text in zip(KEYS, LABEL_TEXTS, strict=True)]
    write_json_lines(folder / f"lbl{ending}", labels)
    for part, texts, rows in (("trn", MULTILINGUAL[:4], TRAIN_LABELS), ("tst", MULTILINGUAL[4:], TEST_LABELS)):
        records = [
            {"uid": f"{part}{n}", "title": text, "content": "", "target_ind": row, "target_rel": [1.0] * len(row)}
            for n, (text, row) in enumerate(zip(texts, rows, strict=True))
        ]
        write_json_lines(folder / f"{part}{ending}", records)
    write_filters(folder, "filter_labels_train.txt", "filter_labels_test.txt")
    return folder


def write_xc_sparse(folder: Path, names: tuple[str, str, str] = ("trn_X.txt", "tst_X.txt", "Y.txt")) -> Path:
    for name, texts in zip(names, (MULTILINGUAL[:4], MULTILINGUAL[4:], LABEL_TEXTS), strict=True):
        write_lines(folder / name, texts)
    for part, rows in (("trn", TRAIN_LABELS), ("tst", TEST_LABELS)):
        lines = [" ".join(f"{label}:1.00000" for label in row) for row in rows]
        write_lines(folder / f"{part}_X_Y.txt", [f"{len(rows)} {len(KEYS)}", *lines])
    write_filters(folder, "trn_filter_labels.txt", "tst_filter_labels.txt")
    return folder


def write_native_folder(folder: Path, ending: str = ".jsonl") -> Path:
    labels = [{"key": key, "text": text} for key, text in zip(KEYS, LABEL_TEXTS, strict=True)]
    write_json_lines(folder / f"labels{ending}", labels)
    for name, texts, rows, pairs in (
        ("train", MULTILINGUAL[:4], TRAIN_LABELS, TRAIN_FILTER),
        ("test", MULTILINGUAL[4:], TEST_LABELS, TEST_FILTER),
    ):
        records = [
            {
                "text": text,
                "labels": [KEYS[label] for label in row],
                "ignore": [KEYS[label] for query, label in pairs if query == n],
            }
            for n, (text, row) in enumerate(zip(texts, rows, strict=True))
        ]
        write_json_lines(folder / f"{name}{ending}", records)
    return folder


def write_filters(folder: Path, train: str, test: str) -> None:
    for name, pairs in ((train, TRAIN_FILTER), (test, TEST_FILTER)):
        write_lines(folder / name, [f"{query} {label}" for query, label in reversed(pairs)])


def matrix(rows: list[list[int]], labels: int = len(KEYS)) -> csr_array:
    dense = np.zeros((len(rows), labels), dtype=np.float32)
    for query, row in enumerate(rows):
        dense[query, row] = 1
    return csr_array(dense)


def opened(folder: Path) -> Dataset:
    """The dataset in the folder, its binary copy beside it."""
    return open_dataset(folder, cache=folder.parent / "cache")
