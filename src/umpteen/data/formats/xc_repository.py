"""The Extreme Classification Repository's files: as downloaded, as the field's tools and as the paper's code have them.

Either {lbl,trn,tst}.json[.gz], one object a line with uid, title, content, target_ind, target_rel; or texts one a line
beside trn_X_Y.txt, whose header "queries labels" is followed by lines "label:weight label:weight …"; or, as the paper's
code has them, raw/{trn_X,tst_X,Y}.txt beside Y.{trn,tst}.npz, and maybe the label keys in raw/Y_ids.txt. In all of them
filter_labels_*.txt are pairs to ignore. Where nothing gives a label's key, it is its row number.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from scipy.sparse import csr_array, load_npz

from umpteen.data.formats.reading import Record, list_of, read_lines, read_records, string
from umpteen.data.prepared import Builder, Place
from umpteen.errors import BadFile

A = TypeVar("A")
B = TypeVar("B")
Labels = tuple[Place, list[int], list[float]]  # of a query: where they stand, their rows and weights

PARTS = {"train": "trn", "test": "tst"}
LABEL_TEXTS = ("lbl.raw.txt", "lbl_X.txt", "Y.txt", "raw/Y.txt")
IDS = "raw/Y_ids.txt"
# Renee turns the name round. Tools of the field ask for an empty file where there is nothing to filter.
FILTERS = {split: (f"filter_labels_{split}.txt", f"{part}_filter_labels.txt") for split, part in PARTS.items()}


def recognises(folder: Path) -> bool:
    found = _json(folder, "lbl") or _json(folder, "trn") or (folder / "trn_X_Y.txt").is_file()
    return bool(found) or _is_of_the_paper(folder)


def sources(folder: Path) -> list[Path]:
    names = ["lbl.json.gz", "lbl.json", *LABEL_TEXTS, IDS]
    for split, part in PARTS.items():
        names += [f"{part}.json.gz", f"{part}.json", f"{part}_X_Y.txt", f"Y.{part}.npz", *_texts(part), *FILTERS[split]]
    return [folder / name for name in names if (folder / name).is_file()]


def read(folder: Path, into: Builder) -> None:
    """Train must be whole; test may be missing, but not by halves."""
    _read_labels(folder, into)
    paper = _is_of_the_paper(folder)
    for split, part in PARTS.items():
        texts = _first(folder, *_texts(part)[-1 if paper else 0 :])
        pairs = folder / (f"Y.{part}.npz" if paper else f"{part}_X_Y.txt")
        if path := _json(folder, part):
            into.begin(split, path)
            for at, record in read_records(path, into.advance):
                labels = list_of("whole numbers", record, "target_ind", at)
                weights = list_of("numbers", record, "target_rel", at) if "target_rel" in record else None
                into.add_query(_text(record, at), labels, weights, at)
        elif split == "train" or texts or pairs.is_file():
            if texts is None:
                raw = "raw/" if paper else ""
                missing = f"is missing, and so is {part}.raw.txt; one must give the query texts"
                raise BadFile(folder / f"{raw}{part}_X.txt", missing)
            into.begin(split, texts)
            labelled = _matrix_rows(pairs, into) if paper else _sparse_rows(pairs, into)
            rows = _in_step(texts, read_lines(texts, into.advance), pairs, labelled, "queries")
            for (at_text, text), (at, own, weight) in rows:
                into.add_query(text, own, weight, at if text.strip() else at_text)
        else:
            continue
        _read_filter(folder, split, into)


def _is_of_the_paper(folder: Path) -> bool:
    raw_only = (folder / "raw" / "Y.txt").is_file() and not (folder / "trn_X_Y.txt").is_file()
    return (folder / "Y.trn.npz").is_file() or (raw_only and not _json(folder, "trn"))


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _json(folder: Path, part: str) -> Path | None:
    return None if (folder / "Y.trn.npz").is_file() else _first(folder, f"{part}.json.gz", f"{part}.json")


def _texts(part: str) -> tuple[str, ...]:
    return (f"{part}.raw.txt", f"{part}_X.txt", f"raw/{part}_X.txt")


def _read_labels(folder: Path, into: Builder) -> None:
    if path := _json(folder, "lbl"):
        into.begin_labels(path)
        for row, (at, record) in enumerate(read_records(path, into.advance)):
            uid = record.get("uid")
            into.add_label(str(row if uid is None else uid), _text(record, at), at)
        return
    paper = _is_of_the_paper(folder)
    path = _first(folder, *LABEL_TEXTS[-1 if paper else 0 :])
    if path is None and paper:
        raise BadFile(folder / LABEL_TEXTS[-1], "is missing; it gives the labels' texts")
    if path is None:
        names = ", ".join(LABEL_TEXTS)
        raise BadFile(folder / "lbl.json.gz", f"is missing, and so are {names}; one of them must give the labels")
    into.begin_labels(path)
    texts = read_lines(path, into.advance)
    if paper and (folder / IDS).is_file():
        keys = read_lines(folder / IDS, into.advance)
        for (at, text), (at_key, key) in _in_step(path, texts, folder / IDS, keys, "lines"):
            into.add_label(key, text, at_key if text.strip() else at)
    else:
        for row, (at, text) in enumerate(texts):
            into.add_label(str(row), text, at)


def _text(record: Record, at: Place) -> str:
    """The title, and the content when there is any."""
    parts = [string(record, field, at) for field in ("title", "content") if record.get(field) or field == "title"]
    return " ".join(part for part in parts if part.strip())


def _sparse_rows(path: Path, into: Builder) -> Iterator[Labels]:
    lines = read_lines(path, into.advance)
    at, header = next(lines)
    try:
        queries, labels = map(int, header.split())
    except ValueError:
        raise at.error(f'{header[:60]!r} is not the header "queries labels", two whole numbers') from None
    if labels != into.labels:
        raise at.error(f"the header says {labels:,} labels but {into.labels:,} label texts were read; they must agree")
    count = 0
    for at, line in lines:
        count += 1
        try:
            pairs = [pair.split(":") for pair in line.split()]
            yield at, [int(label) for label, _ in pairs], [float(weight) for _, weight in pairs]
        except ValueError:
            raise at.error(f'{line[:60]!r} is not a list of "label:weight"') from None
    if count != queries:
        raise BadFile(path, f"has {count:,} rows of labels but its header says {queries:,}; was it cut short?")


def _matrix_rows(path: Path, into: Builder) -> Iterator[Labels]:
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
    if matrix.shape[1] != into.labels:
        both = f"{matrix.shape[1]:,} columns but raw/Y.txt has {into.labels:,} lines"
        raise BadFile(path, f"has {both}; one column per label")
    for row, pairs in enumerate(map(slice, matrix.indptr[:-1], matrix.indptr[1:])):
        yield Place(path, row + 1), matrix.indices[pairs].tolist(), matrix.data[pairs].tolist()
    into.advance(path.stat().st_size)


def _in_step(
    first_path: Path, first: Iterator[A], second_path: Path, second: Iterator[B], what: str
) -> Iterator[tuple[A, B]]:
    """Pairs of two files' rows; they must end together, and if they don't, the error gives both counts."""
    missing = object()
    pairs = zip_longest(first, second, fillvalue=missing)
    for count, (one, other) in enumerate(pairs):
        if one is missing or other is missing:
            longer = count + 1 + sum(1 for _ in pairs)
            first_count, second_count = (count, longer) if one is missing else (longer, count)
            problem = f"has {first_count:,} {what} but {second_path} has {second_count:,}; was one of them cut short?"
            raise BadFile(first_path, problem)
        yield cast(A, one), cast(B, other)


def _read_filter(folder: Path, split: str, into: Builder) -> None:
    """Adds the split's pairs, if it has a filter file; its queries must have been added."""
    paths = [folder / name for name in FILTERS[split] if (folder / name).is_file()]
    if len(paths) > 1:
        raise BadFile(paths[1], f"stands beside {paths[0].name}, which means the same; remove one of them")
    for path in paths:
        for at, line in read_lines(path, into.advance, may_be_empty=True):
            if line.strip():
                try:
                    query, label = map(int, line.split())
                except ValueError:
                    raise at.error(f'{line.strip()[:60]!r} is not "query_row label_row", two whole numbers') from None
                into.ignore(query, label, at)
