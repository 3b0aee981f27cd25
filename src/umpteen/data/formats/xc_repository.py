"""The Extreme Classification Repository's files, as downloaded and as the field's tools unpack them.

Either {lbl,trn,tst}.json[.gz], one object a line with uid, title, content, target_ind, target_rel; or texts
one a line beside trn_X_Y.txt, whose header "queries labels" is followed by lines "label:weight label:weight …".
"""

from collections.abc import Iterator
from pathlib import Path

from umpteen.data.formats.reading import (
    Record,
    filter_files,
    first_existing,
    in_step,
    list_of,
    read_filter,
    read_lines,
    read_records,
    string,
)
from umpteen.data.prepared import Builder, Place
from umpteen.errors import BadFile

PARTS = {"train": "trn", "test": "tst"}
LABEL_TEXTS = ("lbl.raw.txt", "lbl_X.txt", "Y.txt", "raw/Y.txt")


def recognises(folder: Path) -> bool:
    return bool(_json(folder, "lbl") or _json(folder, "trn") or (folder / "trn_X_Y.txt").is_file())


def sources(folder: Path) -> list[Path]:
    found: list[Path | None] = [_json(folder, "lbl"), first_existing(folder, *LABEL_TEXTS)]
    for split, part in PARTS.items():
        found += [_json(folder, part), _texts(folder, part), *filter_files(folder, split)]
        found.append(first_existing(folder, f"{part}_X_Y.txt"))
    return [path for path in found if path is not None]


def read(folder: Path, into: Builder) -> None:
    """Train must be whole; test may be missing, but not by halves."""
    _read_labels(folder, into)
    for split, part in PARTS.items():
        if path := _json(folder, part):
            into.begin(split, path)
            for at, record in read_records(path, into.advance):
                labels = list_of("whole numbers", record, "target_ind", at)
                weights = list_of("numbers", record, "target_rel", at) if "target_rel" in record else None
                into.add_query(_text(record, at), labels, weights, at)
        elif split == "train" or _texts(folder, part) or (folder / f"{part}_X_Y.txt").is_file():
            _read_sparse(split, folder, part, into)
        else:
            continue
        read_filter(folder, split, into)


def _json(folder: Path, part: str) -> Path | None:
    return first_existing(folder, f"{part}.json.gz", f"{part}.json")


def _texts(folder: Path, part: str) -> Path | None:
    return first_existing(folder, f"{part}.raw.txt", f"{part}_X.txt", f"raw/{part}_X.txt")


def _read_labels(folder: Path, into: Builder) -> None:
    if path := _json(folder, "lbl"):
        into.begin_labels(path)
        for row, (at, record) in enumerate(read_records(path, into.advance)):
            uid = record.get("uid")
            into.add_label(str(row if uid is None else uid), _text(record, at), at)
    elif path := first_existing(folder, *LABEL_TEXTS):
        into.begin_labels(path)
        for row, (at, text) in enumerate(read_lines(path, into.advance)):
            into.add_label(str(row), text, at)
    else:
        names = ", ".join(LABEL_TEXTS)
        raise BadFile(folder / "lbl.json.gz", f"is missing, and so are {names}; one of them must give the labels")


def _text(record: Record, at: Place) -> str:
    """The title, and the content when there is any."""
    parts = [string(record, field, at) for field in ("title", "content") if record.get(field) or field == "title"]
    return " ".join(part for part in parts if part.strip())


def _read_sparse(split: str, folder: Path, part: str, into: Builder) -> None:
    texts, pairs = _texts(folder, part), folder / f"{part}_X_Y.txt"
    if texts is None:
        raise BadFile(folder / f"{part}_X.txt", f"is missing, and so is {part}.raw.txt; one must give the query texts")
    into.begin(split, texts)
    rows = in_step(texts, read_lines(texts, into.advance), pairs, _sparse_rows(pairs, into), "queries")
    for (at_text, text), (at_pairs, labels, weights) in rows:
        into.add_query(text, labels, weights, at_pairs if text.strip() else at_text)


def _sparse_rows(path: Path, into: Builder) -> Iterator[tuple[Place, list[int], list[float]]]:
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
