"""umpteen's own format, easy to write by hand: labels, train, and optionally validation and test.

labels.jsonl {key, text}; train.jsonl {text, labels: [key…], optional weights: […], ignore: [key…]}; or .csv and .tsv
with the same columns and several keys in one cell; every file may be packed (.gz). An optional dataset.toml gives
`name` and `label_separator`.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from umpteen.data.formats.reading import ENDINGS, Record, is_table, list_of, read_records, string
from umpteen.data.prepared import SPLITS, Builder, Place
from umpteen.errors import BadFile

SETTINGS = "dataset.toml"
SEPARATORS = "|;"
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
    path = _file(folder, "labels")
    into.begin_labels(path)
    for at, record in read_records(path, into.advance):
        key = string(record, "key", at)
        into.add_label(key.strip() if is_table(path) else key, string(record, "text", at), at)
    for split in SPLITS:
        if split == "train" or _candidates(folder, split):
            _read_split(split, _file(folder, split), settings.get("label_separator"), into)


def _read_split(split: str, path: Path, separator: str | None, into: Builder) -> None:
    into.begin(split, path)
    records, hint = read_records(path, into.advance), ""
    if is_table(path):
        hint = f'; if these are several keys, give what separates them in {SETTINGS}: label_separator = ","'
        records = _with_lists(records, _splitter(separator, path, into))
    for query, (at, record) in enumerate(records):
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
    pattern = re.compile("|".join(map(re.escape, usable)))
    return lambda cell: [part for part in map(str.strip, pattern.split(cell)) if part]


def _with_lists(
    rows: Iterator[tuple[Place, Record]], split: Callable[[str], list[str]]
) -> Iterator[tuple[Place, Record]]:
    """The rows of a table in the shape that JSON lines have."""
    for at, row in rows:
        record: Record = dict(row)
        for field in ("labels", "ignore", "weights"):
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
