"""Rows of a file of texts, one at a time: JSON lines, CSV, TSV or plain lines, gzipped or not.

A row that cannot be used is a value like any other, with its line and what is wrong with it: the caller decides.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from umpteen.data.formats.reading import (
    BYTE_ORDER_MARK,
    Found,
    Record,
    field_of,
    kind_of,
    raw_lines,
    rows_of_json,
    rows_of_table,
    string,
)
from umpteen.data.prepared import Place
from umpteen.errors import BadFile, BadInput

KINDS = ("jsonl", "csv", "tsv", "txt")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Row(NamedTuple):
    """A text, where it stands, and what it is called there."""

    line: int
    text: str
    name: str | int | None


class BadRow(NamedTuple):
    """A row without a text."""

    line: int
    problem: str
    content: str


class InputRows:
    """Iterates over the rows of a file; `position` and `size` are in bytes.

    `digest` is of all lines up to the last one that is not blank: blank lines at the end may be read early or late.
    """

    def __init__(self, path: Path, *, field: str = "text", name_field: str | None = None) -> None:
        self.path = path
        self._kind = kind_of(path)
        if self._kind not in KINDS:
            names = ", ".join(f".{kind}" for kind in KINDS)
            raise BadInput(f"--input {path}: a file of texts ends in {names}, or in one of these and .gz")
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise BadFile(path, f"cannot be read: {error.strerror or error}") from error
        self.position = 0
        self._field = field
        self._name_field = None if self._kind == "txt" else name_field
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.copy().hexdigest()

    def __iter__(self) -> Iterator[Row | BadRow]:
        rows: Iterator[Found]
        if self._kind == "txt":
            plain = ((at, line.removesuffix("\n").removesuffix("\r")) for at, line in self._lines())
            rows = ((at, line, {self._field: line}) for at, line in plain)
        elif self._kind == "jsonl":
            rows = rows_of_json(self._lines())
        else:
            columns = [name for name in (self._field, self._name_field) if name is not None]
            rows = rows_of_table(self.path, self._lines(), columns)
        for at, content, record in rows:
            row: Row | BadRow
            try:
                row = self._row(record, content, at)
            except BadFile as bad:
                row = BadRow(at.line, bad.problem, content.rstrip("\r\n").encode(errors="replace").decode())
            yield row

    def _row(self, record: Record | BadFile, content: str, at: Place) -> Row:
        if isinstance(record, BadFile):
            raise record
        text = string(record, self._field, at)
        name = None if self._name_field is None else field_of(record, self._name_field, at)
        if isinstance(name, bool) or not isinstance(name, str | int | None):
            raise at.error(f"{self._name_field!r} is neither a string nor a whole number")
        if not text.strip():
            raise at.error("has an empty text")
        if any(map(_SURROGATE.search, (text, str(name), content if self._kind == "jsonl" else ""))):
            raise at.error("is not UTF-8, or holds half of a surrogate pair")
        return Row(at.line, text, name)

    def _lines(self) -> Iterator[tuple[Place, str]]:
        """Bytes that are no UTF-8 come out as halves of surrogate pairs."""
        blank_lines = 0  # that are not in the digest yet
        for number, (position, line) in enumerate(raw_lines(self.path), 1):
            self.position = position
            if line.isspace():
                blank_lines += 1
            else:
                self._digest.update(b"\n" * blank_lines + line)
                blank_lines = 0
            text = line.decode("utf-8", errors="surrogateescape")
            yield Place(self.path, number), text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
