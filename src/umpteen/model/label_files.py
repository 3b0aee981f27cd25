"""Labels in files of their own, as JSON lines or tables: what such a file asks for, and labels written as one."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from umpteen.data.formats.reading import ENDINGS, is_table, read_records, string
from umpteen.errors import BadFile, BadInput
from umpteen.files.storage import write_atomically
from umpteen.model.changes import Add, Change, Rename, Retire
from umpteen.model.labels import LiveLabels


def changes_of(path: Path, labels: LiveLabels, *, retire_missing: bool = False) -> list[Change]:
    """What makes the labels those of the file: new ones added, other texts renamed, lines marked as retired retired.

    Labels that are not in the file stay, unless they are to be retired. A line that cannot be is refused by its number.
    """
    if not path.is_file():
        raise BadFile(path, "there is no such file")
    if not path.name.endswith(ENDINGS):
        raise BadFile(path, f"labels are read from {', '.join(ENDINGS[:3])}, packed or not (.gz)")
    changes: list[Change] = []
    first: dict[str, int] = {}
    for at, record in read_records(path, lambda _: None):
        key = string(record, "key", at)
        key = key.strip() if is_table(path) else key
        if key in first:
            raise at.error(f"label key {key!r} stands twice, first in line {first[key]:,}; keys must be unique")
        first[key] = at.line
        if record.get("retired") in (True, "true", "True", "1"):
            changes += [Retire(key)] if key in labels else []
            continue
        text = string(record, "text", at)
        if labels.text_of(key) == text:
            continue  # whatever it is, it is not new
        change = Rename(key, text) if key in labels else Add(key, text)
        try:
            changes += [change] if labels.step_of(change) is not None else []
        except BadInput as problem:
            raise at.error(str(problem)) from None
    if retire_missing:
        changes += [Retire(labels.keys[row]) for row in labels.find_rows() if labels.keys[row] not in first]
    return changes


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
