"""Labels in files of their own, as JSON lines or tables: what such a file asks for, and labels written as one."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from umpteen.data.formats.reading import Record, read_json_lines, read_table, string
from umpteen.data.prepared import Place
from umpteen.errors import BadFile, BadInput
from umpteen.files.storage import write_atomically
from umpteen.model.changes import Add, Change, Rename, Retire, step_of
from umpteen.model.labels import LiveLabels

ENDINGS = (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz")


class Line(NamedTuple):
    """One label of a file."""

    at: Place
    key: str
    text: str  # empty where only keys were asked for
    retired: bool


def additions(path: Path, labels: LiveLabels) -> list[Change]:
    """An Add for each line; a line that cannot be added is refused by its number."""
    return [_checked(Add(line.key, line.text), line.at, labels) for line in read_lines_of(path)]


def renamings(path: Path, labels: LiveLabels) -> list[Change]:
    """A Rename for each line."""
    return [_checked(Rename(line.key, line.text), line.at, labels) for line in read_lines_of(path)]


def retirements(path: Path, labels: LiveLabels) -> list[Change]:
    """A Retire for each line, whose text, if it has one, does not matter."""
    return [_checked(Retire(line.key), line.at, labels) for line in read_lines_of(path, texts=False)]


def changes_of(path: Path, labels: LiveLabels, *, retire_missing: bool = False) -> list[Change]:
    """What makes the labels those of the file: new ones added, other texts renamed, lines marked as retired retired.

    Labels that are not in the file stay, unless they are to be retired.
    """
    changes: list[Change] = []
    named: set[str] = set()
    for line in read_lines_of(path):
        named.add(line.key)
        there = labels.text_of(line.key)
        if line.retired:
            changes += [Retire(line.key)] if there is not None else []
        elif there is None:
            changes.append(_checked(Add(line.key, line.text), line.at, labels))
        elif there != line.text:
            changes.append(_checked(Rename(line.key, line.text), line.at, labels))
    if retire_missing:
        changes += [Retire(labels.keys[row]) for row in labels.find_rows() if labels.keys[row] not in named]
    return changes


def read_lines_of(path: Path, *, texts: bool = True) -> Iterator[Line]:
    """Key and text of each line; a key that stands twice is refused with both lines."""
    if not path.is_file():
        raise BadFile(path, "there is no such file")
    if not path.name.endswith(ENDINGS):
        raise BadFile(path, f"labels are read from {', '.join(ENDINGS[:3])}, packed or not (.gz)")
    is_table = ".jsonl" not in path.suffixes
    read: Callable[..., Iterator[tuple[Place, Record]]] = read_table if is_table else read_json_lines
    first: dict[str, int] = {}
    for at, record in read(path, lambda _: None):
        key = string(record, "key", at)
        key = key.strip() if is_table else key
        if key in first:
            raise at.error(f"label key {key!r} stands twice, first in line {first[key]:,}; keys must be unique")
        first[key] = at.line
        retired = record.get("retired") in (True, "true", "True", "1")
        yield Line(at, key, string(record, "text", at) if texts and not retired else "", retired)


def _checked(change: Change, at: Place, labels: LiveLabels) -> Change:
    try:
        step_of(change, labels)
    except BadInput as problem:
        raise at.error(str(problem)) from None
    return change


def write_label_file(path: Path, labels: LiveLabels, *, retired: bool = False) -> int:
    """Writes the labels, by the file's ending, and returns how many; `changes_of` finds nothing to change then."""
    if not path.name.endswith(ENDINGS[:3]):
        raise BadFile(path, "labels are written as .jsonl, .csv or .tsv")
    entries = [labels.entry(row) for row in labels.find_rows(retired=retired)]
    fields = [{"key": entry.key, "text": entry.text, "origin": entry.origin} for entry in entries]
    buffer = io.StringIO()
    if path.suffix == ".jsonl":
        for entry, line in zip(entries, fields, strict=True):
            marked = {**line, "retired": True} if entry.retired else line
            buffer.write(json.dumps(marked, ensure_ascii=False) + "\n")
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        table = csv.DictWriter(buffer, ["key", "text", "origin", "retired"], delimiter=delimiter, lineterminator="\n")
        table.writeheader()
        for entry, line in zip(entries, fields, strict=True):
            table.writerow({**line, "retired": "true" if entry.retired else "false"})
    write_atomically(path, buffer.getvalue())
    return len(entries)
