"""umpteen's own format, easy to write by hand: train, and optionally labels, validation and test; or one file.

labels.jsonl {key, text}; train.jsonl {text, labels: [key…], optional weights: […], ignore: [key…]}; or .csv, .tsv and
.parquet with the same columns, or others that columns.py makes out, and several keys in one cell; text files may be
packed (.gz). Without a file of labels, they are those that the queries have, and their names are their texts. An
optional dataset.toml gives a `name`.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from umpteen.data.formats.columns import columns_of, parting
from umpteen.data.formats.reading import ENDINGS, Heard, Placed, Record, is_table, list_of, read_records, string
from umpteen.data.prepared import SPLITS, Builder, Place
from umpteen.errors import BadFile

SETTINGS = "dataset.toml"
LOOKED_AT = 1000  # rows, to make out columns
OPTIONAL = ("weights", "ignore")
SEVERAL = "if these are several keys, say what separates them: DATA?separator=…"
Records = Callable[[Path, Heard], Iterator[Placed]]


def recognises(folder: Path) -> bool:
    return folder.is_file() or bool(_candidates(folder, "labels") or _candidates(folder, "train"))


def sources(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    settings = [folder / SETTINGS] if (folder / SETTINGS).is_file() else []
    return settings + [path for stem in ("labels", *SPLITS) for path in _candidates(folder, stem)]


def read(folder: Path, into: Builder) -> None:
    if folder.is_file():
        into.name = folder.name.partition(".")[0]
        read_queries({"train": folder}, into)
        return
    if (folder / SETTINGS).is_file():
        into.name = _name(folder / SETTINGS)
    splits = {split: _file(folder, split) for split in SPLITS if split == "train" or _candidates(folder, split)}
    if _candidates(folder, "labels"):
        path = _file(folder, "labels")
        into.begin_labels(path)
        for at, record in read_records(path, into.advance):
            key = string(record, "key", at)
            into.add_label(key.strip() if is_table(path) else key, string(record, "text", at), at)
    read_queries(splits, into)


def read_queries(splits: Mapping[str, Path], into: Builder, records: Records = read_records) -> None:
    """The queries of all splits; `records` gives the rows of a split's path.

    Where labels have no file of their own, they are known by name alone: those that some query has, or ignores, in the
    order in which they come.
    """
    named, cut, suspected = into.labels_are_named, None, False
    for split, path in splits.items():
        into.begin(split, path)
        rows = records(path, into.advance)
        if not (first := list(islice(rows, LOOKED_AT))):
            continue  # which is an error of the Builder's
        columns = columns_of(path, [row for _, row in first], into.asked, None if named else into.row_of)
        cut = cut or columns.split  # a small file of another split may not show what separates labels
        columns = replace(columns, split=cut)
        into.tell(columns.told)
        as_it_is = not named and (columns.text, columns.labels) == (("text",), "labels")
        hint = f"; {SEVERAL}" if is_table(path) else ""
        for at, row in chain(first, rows):
            record = dict(row) if as_it_is else columns.record(row, at)
            if is_table(path):
                _divide_cells(record, cut, at)
            for field in () if named else record:  # a table of somebody else's may have any column
                if meant := _meant(field):
                    raise at.error(f"field {field!r} is unknown; did you mean {meant!r}?")
            keys, ignored = list_of("strings", record, "labels", at), _optional("strings", record, "ignore", at) or []
            is_told = isinstance(record.get("label_texts"), list)  # of its labels, then of those it ignores
            told = list_of("strings", record, "label_texts", at) if is_told else []
            texts = dict(zip((*keys, *ignored), told, strict=False))
            for key in (*keys, *ignored) if named else ():
                if key not in into.row_of:
                    is_cell = not suspected and not isinstance(row.get(columns.labels), list)
                    if is_cell and (mark := parting([key], into.row_of)):
                        suspected, told_of = True, f"{path.name}, line {at.line}: {key!r}"
                        into.tell(f"{told_of} would part at {mark!r} into known labels{hint}")
                    into.add_label(key, texts.get(key) or key.replace("_", " "), at)
            labels = [into.label_row(key, at, hint) for key in keys]
            query = into.add_query(string(record, "text", at), labels, _optional("numbers", record, "weights", at), at)
            for key in ignored:
                into.ignore(query, into.label_row(key, at, hint), at)


def _optional(kind: str, record: Record, field: str, at: Place) -> list[Any] | None:
    return None if record.get(field) is None else list_of(kind, record, field, at)


def _name(path: Path) -> str:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadFile(path, f"cannot be read as TOML: {error}") from None
    name = given.pop("name", None)
    if given or not isinstance(name, str) or not name:
        raise BadFile(path, "may hold the dataset's name, a string that is not empty, and nothing else")
    return name


def _candidates(folder: Path, stem: str) -> list[Path]:
    return [folder / (stem + ending) for ending in ENDINGS if (folder / (stem + ending)).is_file()]


def _file(folder: Path, stem: str) -> Path:
    paths = _candidates(folder, stem)
    if not paths:
        raise BadFile(folder / f"{stem}.jsonl", f"is missing, and so are {stem}.csv and {stem}.tsv; one must be there")
    if len(paths) > 1:
        raise BadFile(paths[1], f"stands beside {paths[0].name}; keep the one that is meant and remove the other")
    return paths[0]


def _divide_cells(record: Record, cut: Callable[[str], list[str]], at: Place) -> None:
    """A row of a table gets the shape that JSON lines have."""
    for field in ("labels", *OPTIONAL):
        if isinstance(cell := record.get(field), str):
            record[field] = cut(cell)
            if field == "weights":
                record[field] = [_number(part, at) for part in record[field]] or None


def _number(cell: str, at: Place) -> float:
    try:
        return float(cell)
    except ValueError:
        raise at.error(f"weight {cell!r} is not a number") from None


@lru_cache
def _meant(field: str) -> str | None:
    """Other fields are welcome and ignored, but not a slip such as "weight", which would go unnoticed."""
    near = get_close_matches(field, OPTIONAL, n=1, cutoff=0.8)
    return near[0] if near and field not in OPTIONAL else None
