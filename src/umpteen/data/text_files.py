"""Rows of a file of texts, one at a time: JSON lines, CSV, TSV or plain lines, gzipped or not.

A row that cannot be used is a value like any other, with its line and what is wrong with it: the caller decides.
"""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from umpteen.data.texts import encode
from umpteen.errors import BadFile, BadInput

KINDS = ("jsonl", "csv", "tsv", "txt")
_BYTE_ORDER_MARK = "\ufeff"


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
        self.kind = kind_of(path)
        self.size = _size(path)
        self.position = 0
        self._field = field
        self._name_field = name_field
        self._digest = hashlib.sha256()
        self._line = 0
        self._blank_lines = 0  # that are not in the digest yet

    @property
    def digest(self) -> str:
        return self._digest.copy().hexdigest()

    def __iter__(self) -> Iterator[Row | BadRow]:
        if self.kind in ("csv", "tsv"):
            yield from self._table()
            return
        for line in self._lines():
            content = line.removesuffix("\n").removesuffix("\r")
            if self.kind == "txt":
                yield self._row(self._line, content, None, content)
            elif content.strip():
                yield self._object(content)

    def _object(self, content: str) -> Row | BadRow:
        if _is_not_utf8(content):
            return _bad(self._line, "is not UTF-8", content)
        try:
            record = json.loads(content)
        except (ValueError, RecursionError) as error:
            return _bad(self._line, f"is no valid JSON ({error})", content)
        if not isinstance(record, dict):
            return _bad(self._line, f"holds {type(record).__name__}, not an object", content)
        return self._record(self._line, record, content)

    def _table(self) -> Iterator[Row | BadRow]:
        rows = csv.reader(self._lines(), delimiter="\t" if self.kind == "tsv" else ",", strict=True)
        limit = csv.field_size_limit(2**31 - 1)  # a text may be longer than csv's 131,072 characters
        first = 1
        try:
            header = [name.strip() for name in next(rows, [])]
            for name in (self._field, self._name_field):
                if name is not None and header.count(name) != 1:
                    what = "names a column twice:" if name in header else "has no column"
                    raise BadFile(
                        self.path, f"{what} {name!r}; it has {', '.join(map(repr, header)) or 'none'}", line=1
                    )
            first = rows.line_num + 1
            for cells in rows:
                line, first = first, rows.line_num + 1
                if not cells:
                    continue
                content = cells[0] if len(cells) == 1 else json.dumps(cells, ensure_ascii=False)
                if len(cells) != len(header):
                    yield _bad(line, f"has {len(cells)} cells, but the header has {len(header)}", content)
                else:
                    yield self._record(line, dict(zip(header, cells, strict=True)), content)
        except csv.Error as error:  # where the next row begins is then unknown, so no row can be skipped
            problem = f"breaks the quoting rules ({error}); double the quotes inside cells"
            raise BadFile(self.path, problem, line=first) from None
        finally:
            csv.field_size_limit(limit)

    def _record(self, line: int, record: dict[str, Any], content: str) -> Row | BadRow:
        for name in (self._field, self._name_field):
            if name is not None and name not in record:
                there = ", ".join(map(repr, record)) or "no field at all"
                return _bad(line, f"has no {name!r}; it has {there}", content)
        text = record[self._field]
        if not isinstance(text, str):
            return _bad(line, f"{self._field!r} is {type(text).__name__}, not a string", content)
        name = None if self._name_field is None else record[self._name_field]
        if isinstance(name, bool) or not isinstance(name, str | int | None):
            return _bad(line, f"{self._name_field!r} is neither a string nor a whole number", content)
        return self._row(line, text, name, content)

    def _row(self, line: int, text: str, name: str | int | None, content: str) -> Row | BadRow:
        if not text.strip():
            return _bad(line, "has an empty text", content)
        if _is_not_utf8(text) or (isinstance(name, str) and _is_not_utf8(name)):
            return _bad(line, "is not UTF-8, or holds half of a surrogate pair", content)
        return Row(line, text, name)

    def _lines(self) -> Iterator[str]:
        """Only "\\n" ends a line. Bytes that are no UTF-8 come out as halves of surrogate pairs."""
        try:
            with self.path.open("rb") as file:
                for line in _unpacked(file, self.path):
                    self._line += 1
                    self._take_into_digest(line)
                    self.position = file.tell()
                    text = line.decode("utf-8", errors="surrogateescape")
                    yield text.removeprefix(_BYTE_ORDER_MARK) if self._line == 1 else text
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            problem = f"is no whole gzip file ({error}); fetch or pack it again"
            raise BadFile(self.path, problem, line=self._line + 1) from None
        except OSError as error:
            raise BadFile(self.path, f"cannot be read: {error.strerror or error}") from error

    def _take_into_digest(self, line: bytes) -> None:
        if line.isspace():
            self._blank_lines += 1
        else:
            self._digest.update(b"\n" * self._blank_lines + line)
            self._blank_lines = 0


def kind_of(path: Path) -> str:
    """What the file's name says it holds."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.removeprefix(".") not in KINDS:
        names = ", ".join(f".{kind}" for kind in KINDS)
        raise BadInput(f"--input {path}: a file of texts ends in {names}, or in one of these and .gz")
    return suffix.removeprefix(".")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from error


def _bad(line: int, problem: str, content: str) -> BadRow:
    return BadRow(line, problem, content.encode("utf-8", errors="replace").decode("utf-8"))


def _is_not_utf8(text: str) -> bool:
    try:
        encode(text)
    except BadInput:
        return True
    return False


def _unpacked(file: BinaryIO, path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return file
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 1 << 20))
