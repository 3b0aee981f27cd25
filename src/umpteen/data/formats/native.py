"""umpteen's own format, easy to write by hand: train, and optionally labels, validation and test; or train alone.

labels.jsonl {key, text}; train.jsonl {text, labels: [key…], optional weights: […], ignore: [key…]}; or .csv, .tsv and
.parquet with the same columns, or others that columns.py makes out, and several keys in one cell; text files may be
packed (.gz). Without a file of labels, they are those that the queries have, and their names are their texts. An
optional dataset.toml gives `name` and `label_separator`.
"""

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from umpteen.data.formats.columns import Columns, columns_of, splitter
from umpteen.data.formats.reading import ENDINGS, Record, is_table, list_of, read_records, string
from umpteen.data.prepared import SPLITS, Builder, Place
from umpteen.errors import BadFile

SETTINGS = "dataset.toml"
SEPARATORS = "|;"
LOOKED_AT = 1000  # rows, to make out columns
OPTIONAL = ("weights", "ignore")
KNOWN = ("name", "label_separator")


def recognises(folder: Path) -> bool:
    return bool(_candidates(folder, "labels") or _candidates(folder, "train"))


def sources(folder: Path) -> list[Path]:
    settings = [folder / SETTINGS] if (folder / SETTINGS).is_file() else []
    return settings + [path for stem in ("labels", *SPLITS) for path in _candidates(folder, stem)]


def read(folder: Path, into: Builder) -> None:
    settings = _settings(folder / SETTINGS)
    into.name = settings.get("name", into.name)
    splits = {split: _file(folder, split) for split in SPLITS if split == "train" or _candidates(folder, split)}
    separator = settings.get("label_separator")
    if not _candidates(folder, "labels"):
        _read_named(splits, {"separator": separator} if separator else {}, into)
        return
    path = _file(folder, "labels")
    into.begin_labels(path)
    for at, record in read_records(path, into.advance):
        key = string(record, "key", at)
        into.add_label(key.strip() if is_table(path) else key, string(record, "text", at), at)
    for split, file in splits.items():
        _read_split(split, file, separator, into)


@dataclass(frozen=True)
class OneFile:
    """A format of a single file: training texts with the names of their labels."""

    asked: Mapping[str, str]  # as columns.asked_of reads it

    def recognises(self, folder: Path) -> bool:
        return folder.is_file()

    def sources(self, folder: Path) -> list[Path]:
        return [folder]

    def read(self, folder: Path, into: Builder) -> None:
        into.name = folder.name.partition(".")[0]
        _read_named({"train": folder}, self.asked, into)


def _read_named(splits: Mapping[str, Path], asked: Mapping[str, str], into: Builder) -> None:
    """Labels by name alone: those that some query has, in the order in which they come."""
    columns = {split: _columns(path, asked) for split, path in splits.items()}
    cut = columns["train"].split  # a small file of another split may not show what separates labels
    columns = {split: replace(own, split=cut) for split, own in columns.items()}
    for path, own in ((splits[split], columns[split]) for split in splits):
        into.begin_labels(path)
        for at, row in read_records(path):
            for key in list_of("strings", own.record(row, at), "labels", at):
                if key not in into.row_of:
                    into.add_label(key, key.replace("_", " "), at)
    into.name_labels()
    for split, path in splits.items():
        into.begin(split, path)
        into.tell(columns[split].told)
        records = read_records(path, into.advance)
        if is_table(path):
            records = _with_lists(records, cut, ("ignore", "weights"))
        _add_queries(((at, columns[split].record(row, at)) for at, row in records), "", into)


def _columns(path: Path, asked: Mapping[str, str], separates: str | None = None) -> Columns:
    rows = [row for _, row in itertools.islice(read_records(path), LOOKED_AT)]
    return columns_of(path, rows, asked, separates=separates)


def _read_split(split: str, path: Path, separator: str | None, into: Builder) -> None:
    into.begin(split, path)
    records, hint = read_records(path, into.advance), ""
    if is_table(path):
        hint = f'; if these are several keys, give what separates them in {SETTINGS}: label_separator = ","'
        records = _with_lists(records, _splitter(separator, path, into))
    if not {"text", "labels"} & set(next((row for _, row in read_records(path)), {"text": ""})):
        columns = replace(_columns(path, {}, SEPARATORS), split=_splitter(separator, path, into))
        into.tell(columns.told)
        records = ((at, columns.record(row, at)) for at, row in records)
    _add_queries(records, hint, into)


def _add_queries(records: Iterator[tuple[Place, Record]], hint: str, into: Builder) -> None:
    for query, (at, record) in enumerate(records):
        if not into.labels_are_named:  # a table of somebody else's may have any column
            _refuse_misspelt(record, at)
        labels = [into.label_row(key, at, hint) for key in list_of("strings", record, "labels", at)]
        weights = list_of("numbers", record, "weights", at) if record.get("weights") is not None else None
        into.add_query(string(record, "text", at), labels, weights, at)
        for key in list_of("strings", record, "ignore", at) if record.get("ignore") is not None else ():
            into.ignore(query, into.label_row(key, at, hint), at)


def _settings(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadFile(path, f"cannot be read as TOML: {error}") from None
    for field, value in given.items():
        if field not in KNOWN:
            raise BadFile(path, f"unknown setting {field!r}; known are {' and '.join(KNOWN)}")
        if not isinstance(value, str) or not value:
            raise BadFile(path, f"{field} = {value!r} must be a string that is not empty")
    return given


def _candidates(folder: Path, stem: str) -> list[Path]:
    return [folder / (stem + ending) for ending in ENDINGS if (folder / (stem + ending)).is_file()]


def _file(folder: Path, stem: str) -> Path:
    paths = _candidates(folder, stem)
    if not paths:
        raise BadFile(folder / f"{stem}.jsonl", f"is missing, and so are {stem}.csv and {stem}.tsv; one must be there")
    if len(paths) > 1:
        raise BadFile(paths[1], f"stands beside {paths[0].name}; keep the one that is meant and remove the other")
    return paths[0]


def _splitter(separator: str | None, path: Path, into: Builder) -> Callable[[str], list[str]]:
    """Cuts a cell into its parts: at the given separator, else at each of | and ; that stands in no label key."""
    usable = [separator] if separator else [mark for mark in SEPARATORS if not any(mark in key for key in into.row_of)]
    if not usable:
        raise BadFile(
            path,
            "label keys hold both | and ;, so neither can separate them; "
            f'separate them with something else and say so in {SETTINGS}: label_separator = "…"',
        )
    return splitter(separator, "".join(usable))


def _with_lists(
    rows: Iterator[tuple[Place, Record]],
    split: Callable[[str], list[str]],
    cells: tuple[str, ...] = ("labels", "ignore", "weights"),
) -> Iterator[tuple[Place, Record]]:
    """The rows of a table in the shape that JSON lines have."""
    for at, row in rows:
        record: Record = dict(row)
        for field in cells:
            if field in row:
                record[field] = split(row[field])
        if "weights" in row:
            record["weights"] = [_number(cell, at) for cell in record["weights"]] or None
        yield at, record


def _number(cell: str, at: Place) -> float:
    try:
        return float(cell)
    except ValueError:
        raise at.error(f"weight {cell!r} is not a number") from None


def _refuse_misspelt(record: Record, at: Place) -> None:
    """Other fields are welcome and ignored, but not a slip such as "weight", which would go unnoticed."""
    for field in record:
        if meant := _misspelt(field):
            raise at.error(f"field {field!r} is unknown; did you mean {meant!r}?")


@lru_cache
def _misspelt(field: str) -> str | None:
    near = get_close_matches(field, OPTIONAL, n=1, cutoff=0.8)
    return near[0] if near and field not in OPTIONAL else None
