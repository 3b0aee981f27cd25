"""What readers share: lines that are UTF-8 or an error, rows of JSON lines, tables and plain texts.

Of a dataset, a row that cannot be used ends the reading. Of a file of texts it is a value like any other, with its line
and what is wrong with it: the caller decides.
"""

import codecs
import csv
import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from umpteen.data.formats.columns import text_columns
from umpteen.data.prepared import Place
from umpteen.errors import BadFile, BadInput

BYTE_ORDER_MARK = "\ufeff"
UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
ENDINGS = (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz", ".parquet")  # of files of records
TEXT_KINDS = ("jsonl", "csv", "tsv", "txt")  # of files of texts
LINES_BETWEEN_REPORTS = 1024
LIST_KINDS: dict[str, tuple[type, ...]] = {"strings": (str,), "whole numbers": (int,), "numbers": (int, float)}
_SURROGATE = re.compile("[\ud800-\udfff]")
Record = dict[str, Any]
Heard = Callable[[int], None]  # how many more bytes have been read
Line = tuple[Place, str]
Placed = tuple[Place, Record]
Found = tuple[Place, str, Record | BadFile]  # where a row stands, as it is written, and what it says, if anything


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line of a file, packed or not, and how many bytes of the file have been read. Only "\\n" ends a line."""
    number = 0
    try:
        with path.open("rb") as file:
            for line in io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20) if path.suffix == ".gz" else file:
                number += 1
                yield file.tell(), line
    except FileNotFoundError:
        raise BadFile(path, "is missing; without it the dataset is not complete") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(path, f"is no whole gzip file ({error}); fetch or pack it again", line=number + 1) from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from error


def read_lines(path: Path, advance: Heard, *, keep_ends: bool = False, may_be_empty: bool = False) -> Iterator[Line]:
    """Each line and its place. Only "\\n" and "\\r\\n" end a line: texts may hold any other separator."""
    number = offset = position = reported = 0  # offset: bytes of the (unpacked) text before this line
    for number, (position, line) in enumerate(raw_lines(path), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"byte 0x{line[error.start]:02x} at offset {offset + error.start:,} is not UTF-8"
            kind = "UTF-16" if number == 1 and line[:2] in UTF_16 else "WINDOWS-1252"
            advice = f"convert the file, for example with iconv -f {kind} -t UTF-8"
            raise BadFile(path, f"{problem}; {advice}", line=number) from None
        if number == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        offset += len(line)
        if number % LINES_BETWEEN_REPORTS == 0:
            advance(position - reported)
            reported = position
        yield Place(path, number), text if keep_ends else text.removesuffix("\n").removesuffix("\r")
    advance(position - reported)
    if number == 0 and not may_be_empty:
        raise BadFile(path, "is empty; was it cut short?")


def read_records(path: Path, advance: Heard = lambda size: None) -> Iterator[Placed]:
    """The rows of a file of JSON lines, CSV, TSV or Parquet; the first that says nothing is an error."""
    if kind_of(path) == "parquet":
        yield from rows_of_arrow(path, advance)
        return
    lines = read_lines(path, advance, keep_ends=True)
    for at, _, record in rows_of_table(path, lines) if is_table(path) else rows_of_json(lines):
        if isinstance(record, BadFile):
            raise record
        yield at, record


def rows_of_arrow(path: Path, advance: Heard) -> Iterator[Placed]:
    """The rows of a Parquet file, or of a stream as Arrow writes it."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadFile(path, "needs pyarrow to be read: pip install pyarrow; or write it as .csv or .jsonl") from None
    kind, number = "Parquet" if kind_of(path) == "parquet" else "Arrow", 0
    try:
        with ParquetFile(path) if kind == "Parquet" else pa.ipc.open_stream(pa.memory_map(str(path))) as file:
            rows = file.metadata.num_rows if kind == "Parquet" else 0
            for batch in file.iter_batches(LINES_BETWEEN_REPORTS) if kind == "Parquet" else file:
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number), record
                advance(path.stat().st_size * batch.num_rows // rows if rows else batch.nbytes)
    except (pa.ArrowException, OSError) as error:
        raise BadFile(path, f"is no whole {kind} file ({error}); write it again", line=number + 1) from None


def kind_of(path: Path) -> str:
    """What the name says the file holds, packed or not: jsonl, csv, …."""
    return (Path(path.stem) if path.suffix == ".gz" else path).suffix.removeprefix(".")


def is_table(path: Path) -> bool:
    """Whether it holds cells under a header, rather than JSON lines."""
    return kind_of(path) in ("csv", "tsv")


def rows_of_json(lines: Iterator[Line]) -> Iterator[Found]:
    """One JSON object per line; blank lines are passed over."""
    for at, line in lines:
        if not line.strip():
            continue
        record: Record | BadFile
        try:
            record = json.loads(line.rstrip("\r\n"))
            if not isinstance(record, dict):
                record = at.error(f'holds {_shown(record)}, not an object such as {{"text": "…"}}')
        except (ValueError, RecursionError) as error:
            record = at.error(f"is no valid JSON ({error}); each line must hold one whole object")
        yield at, line, record


def rows_of_table(path: Path, lines: Iterator[Line], columns: Collection[str] = ()) -> Iterator[Found]:
    """The rows of a CSV or TSV file under its header; quoted cells may hold the delimiter and line ends.

    The columns, if any are named, must be there once; else no column may be there twice. One without a name, as pandas
    writes for its index, is passed over. A CSV file may have tabs or semicolons where its header has no comma.
    """
    at, header_line = next(lines, (None, ""))
    marks = "\t" if kind_of(path) == "tsv" else ",\t;"
    delimiter = next((mark for mark in marks if mark in header_line), marks[0])
    unread = chain([(at, header_line)] if at else [], lines)
    rows = csv.reader((line for _, line in unread), delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # a document may be longer than csv's 131,072 characters
    first = 1
    try:
        header = [name.strip() for name in next(rows, [])]
        for name in columns or header:
            if name and header.count(name) != 1:
                what = "names a column twice:" if name in header else "has no column"
                raise BadFile(path, f"{what} {name!r}; it has {', '.join(map(repr, header)) or 'none'}", line=1)
        first = rows.line_num + 1
        for cells in rows:
            at, first = Place(path, first), rows.line_num + 1
            if not cells:
                continue
            content = cells[0] if len(cells) == 1 else json.dumps(cells, ensure_ascii=False)
            if len(cells) == len(header):
                yield at, content, {name: cell for name, cell in zip(header, cells, strict=True) if name}
            else:
                both = f"has {len(cells)} cells but the header has {len(header)}"
                yield at, content, at.error(f"{both}; quote cells that hold {delimiter!r}")
    except csv.Error as error:  # where the next row begins is then unknown, so no row can be skipped
        advice = r"lines end in \r alone; make it \n" if "new-line" in str(error) else "double the quotes inside cells"
        raise BadFile(path, f"breaks the quoting rules ({error}); {advice}", line=first) from None
    finally:
        csv.field_size_limit(limit)


def field_of(record: Record, field: str, at: Place) -> Any:
    if field not in record:
        raise at.error(f"has no {field!r}; it has {', '.join(map(repr, record)) or 'no field at all'}")
    return record[field]


def string(record: Record, field: str, at: Place) -> str:
    """A field that must be there and be a string."""
    value = field_of(record, field, at)
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
    for value in values:
        if not isinstance(value, LIST_KINDS[kind]) or isinstance(value, bool):
            raise at.error(f"{field!r} must be a list of {kind} but holds {_shown(value)}")
    return values


def _shown(value: object) -> str:
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 60 else written[:60] + "…"


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
    """Iterates over the rows of a file, once; `position` and `size` are in bytes, `offset` in bytes of it unpacked.

    `digest` is of all lines up to the last one that is not blank: blank lines at the end may be read early or late.
    """

    def __init__(self, path: Path, *, field: str | None = None, name_field: str | None = None) -> None:
        self.path, self._kind = path, kind_of(path)
        if self._kind not in TEXT_KINDS:
            names = ", ".join(f".{kind}" for kind in TEXT_KINDS)
            raise BadInput(f"--input {path}: a file of texts ends in {names}, or in one of these and .gz")
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise BadFile(path, f"cannot be read: {error.strerror or error}") from error
        self.position = self.offset = 0
        self._fields = tuple(field.split("+")) if field else self._usual_fields()  # joined by blanks
        self._name_field = None if self._kind == "txt" else name_field
        self._digest = hashlib.sha256()
        self._unread = self._lines()

    def _usual_fields(self) -> tuple[str, ...]:
        """What the names of the first row say, as of a file to fit on."""
        with suppress(BadFile):
            for _, record in read_records(self.path) if self._kind != "txt" else ():
                return text_columns(record) or ("text",)
        return ("text",)

    def pass_over(self, unread: Iterator[Row | BadRow], rows: int, size: float = math.inf) -> int:
        """Reads `unread` on over so many rows, or bytes of them, parsed only in tables; how many rows these were."""
        start, passed = self.offset, 0
        lines = (self._kind == "txt" or bool(line.strip()) for _, line in self._unread)
        are_rows = lines if self._kind in ("jsonl", "txt") else (True for _ in unread)
        while passed < rows and self.offset - start < size and any(are_rows):
            passed += 1
        return passed

    @property
    def digest(self) -> str:
        return self._digest.copy().hexdigest()

    def __iter__(self) -> Iterator[Row | BadRow]:
        rows: Iterator[Found]
        if self._kind == "txt":
            plain = ((at, line.removesuffix("\n").removesuffix("\r")) for at, line in self._unread)
            rows = ((at, line, {self._fields[0]: line}) for at, line in plain)
        elif self._kind == "jsonl":
            rows = rows_of_json(self._unread)
        else:
            columns = [name for name in (*self._fields, self._name_field) if name is not None]
            rows = rows_of_table(self.path, self._unread, columns)
        for at, content, record in rows:
            try:
                yield self._row(record, content, at)
            except BadFile as bad:
                yield BadRow(at.line, bad.problem, content.rstrip("\r\n").encode(errors="replace").decode())

    def _row(self, record: Record | BadFile, content: str, at: Place) -> Row:
        if isinstance(record, BadFile):
            raise record
        given = [field for field in self._fields if record.get(field) is not None] or self._fields
        text = " ".join(string(record, field, at) for field in given)
        name = None if self._name_field is None else field_of(record, self._name_field, at)
        if isinstance(name, bool) or not isinstance(name, str | int | None):
            raise at.error(f"{self._name_field!r} is neither a string nor a whole number")
        if not text.strip():
            raise at.error("has an empty text")
        if any(map(_SURROGATE.search, (text, str(name), content if self._kind == "jsonl" else ""))):
            raise at.error("is not UTF-8, or holds half of a surrogate pair")
        return Row(at.line, text, name)

    def _lines(self) -> Iterator[Line]:
        """Bytes that are no UTF-8 come out as halves of surrogate pairs."""
        blank_lines = 0  # that are not in the digest yet
        for number, (position, line) in enumerate(raw_lines(self.path), 1):
            self.position, self.offset = position, self.offset + len(line)
            if line.isspace():
                blank_lines += 1
            else:
                self._digest.update(b"\n" * blank_lines + line)
                blank_lines = 0
            text = line.decode("utf-8", errors="surrogateescape")
            yield Place(self.path, number), text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
