"""Rows with named fields, from JSON lines or from CSV and TSV tables, and fields checked for their type."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from umpteen.data.formats.lines import read_lines
from umpteen.data.prepared import Place
from umpteen.errors import BadFile

Record = dict[str, Any]

KINDS: dict[str, tuple[type, ...]] = {"strings": (str,), "whole numbers": (int,), "numbers": (int, float)}


def read_json_lines(path: Path, advance: Callable[[int], None]) -> Iterator[tuple[Place, Record]]:
    """One JSON object per line; blank lines are passed over."""
    for at, line in read_lines(path, advance):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise at.error(f"is no valid JSON ({error}); each line must hold one whole object") from None
        if not isinstance(record, dict):
            raise at.error(f'holds {_shown(record)}, not an object such as {{"text": "…"}}')
        yield at, record


def read_table(path: Path, advance: Callable[[int], None]) -> Iterator[tuple[Place, dict[str, str]]]:
    """The rows of a CSV or TSV file under its header; quoted cells may hold the delimiter and line ends."""
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    rows = csv.reader((line for _, line in read_lines(path, advance, keep_ends=True)), delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # a document may be longer than csv's 131,072 characters
    line = 1
    try:
        header = [name.strip() for name in next(rows)]
        if len(set(header)) != len(header):
            raise BadFile(path, f"names a column twice: {', '.join(header)}", line=1)
        line = rows.line_num + 1
        for cells in rows:
            at = Place(path, line)
            line = rows.line_num + 1
            if not cells:
                continue
            if len(cells) != len(header):
                raise at.error(
                    f"has {len(cells)} cells but the header has {len(header)}; quote cells that hold {delimiter!r}"
                )
            yield at, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise BadFile(path, f"breaks the quoting rules ({error}); double the quotes inside cells", line=line) from None
    finally:
        csv.field_size_limit(limit)


def string(record: Record, field: str, at: Place) -> str:
    """A field that must be there and be a string."""
    if field not in record:
        raise at.error(f"has no {field!r}; it has {', '.join(map(repr, record)) or 'no field at all'}")
    value = record[field]
    if not isinstance(value, str):
        raise at.error(f"{field!r} is {_shown(value)}, not a string; put it in quotes")
    return value


def list_of(kind: str, record: Record, field: str, at: Place) -> list[Any]:
    """A field that must be a list of strings, whole numbers or numbers."""
    if field not in record:
        raise at.error(f"has no {field!r}; give a list, an empty one if there are none")
    values = record[field]
    if not isinstance(values, list):
        raise at.error(f"{field!r} is {_shown(values)}, not a list; wrap it in one: [{_shown(values)}]")
    wanted = KINDS[kind]
    for value in values:
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise at.error(f"{field!r} must be a list of {kind} but holds {_shown(value)}")
    return values


def _shown(value: object) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 60 else written[:60] + "…"
