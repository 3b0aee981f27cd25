"""Labels in files of their own, as JSON lines or tables: what such a file asks for, and labels written as one."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from umpteen.data.formats.reading import ENDINGS, is_table, read_records, string
from umpteen.data.prepared import Place
from umpteen.errors import BadFile, BadInput
from umpteen.files.storage import write_atomically
from umpteen.model.changes import Add, Change, Rename, Retire, step_of
from umpteen.model.labels import LiveLabels


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
    first: dict[str, int] = {}
    for at, record in read_records(path, lambda _: None):
        key = string(record, "key", at)
        key = key.strip() if is_table(path) else key
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
    buffer = io.StringIO()
    if path.suffix == ".jsonl":
        for entry in entries:
            line: dict[str, Any] = {"key": entry.key, "text": entry.text, "origin": entry.origin}
            line |= {"retired": True} if entry.retired else {}
            buffer.write(json.dumps(line, ensure_ascii=False) + "\n")
    else:
        table = csv.writer(buffer, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
        table.writerow(["key", "text", "origin", "retired"])
        table.writerows((entry.key, entry.text, entry.origin, str(entry.retired).lower()) for entry in entries)
    write_atomically(path, buffer.getvalue())
    return len(entries)
