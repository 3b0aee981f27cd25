"""What readers share: lines that are UTF-8 or an error, rows of JSON lines and tables, files of filtered pairs."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Collection, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

from umpteen.data.prepared import Builder, Place
from umpteen.errors import BadFile

A = TypeVar("A")
B = TypeVar("B")

BYTE_ORDER_MARK = "\ufeff"
ENDINGS = (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz", ".parquet")  # of files of records
LINES_BETWEEN_REPORTS = 1024
Record = dict[str, Any]
Found = tuple[Place, str, Record | BadFile]  # where a row stands, as it is written, and what it says, if anything


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line of a file, packed or not, and how many bytes of the file have been read. Only "\\n" ends a line."""
    number = 0
    try:
        with path.open("rb") as file:
            is_packed = path.suffix == ".gz"
            for line in io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20) if is_packed else file:
                number += 1
                yield file.tell(), line
    except FileNotFoundError:
        raise BadFile(path, "is missing; without it the dataset is not complete") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(path, f"is no whole gzip file ({error}); fetch or pack it again", line=number + 1) from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from error


def read_lines(
    path: Path, advance: Callable[[int], None], *, keep_ends: bool = False, may_be_empty: bool = False
) -> Iterator[tuple[Place, str]]:
    """Each line and its place. Only "\\n" and "\\r\\n" end a line: texts may hold any other separator.

    `advance` hears how many more bytes of the file have been read.
    """
    number = offset = position = reported = 0  # offset: bytes of the (unpacked) text before this line
    for number, (position, line) in enumerate(raw_lines(path), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(
                path,
                f"byte 0x{line[error.start]:02x} at offset {offset + error.start:,} is not UTF-8; "
                "convert the file, for example with iconv -f LATIN1 -t UTF-8",
                line=number,
            ) from None
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


def read_records(path: Path, advance: Callable[[int], None] = lambda size: None) -> Iterator[tuple[Place, Record]]:
    """The rows of a file of JSON lines, CSV, TSV or Parquet; the first that says nothing is an error."""
    if kind_of(path) == "parquet":
        yield from _rows_of_parquet(path, advance)
        return
    lines = read_lines(path, advance, keep_ends=True)
    for at, _, record in rows_of_table(path, lines) if is_table(path) else rows_of_json(lines):
        if isinstance(record, BadFile):
            raise record
        yield at, record


def _rows_of_parquet(path: Path, advance: Callable[[int], None]) -> Iterator[tuple[Place, Record]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadFile(path, "needs pyarrow to be read: pip install pyarrow; or write it as .csv or .jsonl") from None
    number, size = 0, path.stat().st_size
    try:
        with ParquetFile(path) as file:
            share = size / max(1, file.metadata.num_rows)
            for batch in file.iter_batches(LINES_BETWEEN_REPORTS):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number), record
                advance(round(share * batch.num_rows))
    except (ArrowException, OSError) as error:
        raise BadFile(path, f"is no whole Parquet file ({error}); write it again", line=number + 1) from None


def kind_of(path: Path) -> str:
    """What the name says the file holds, packed or not: jsonl, csv, …."""
    return (Path(path.stem) if path.suffix == ".gz" else path).suffix.removeprefix(".")


def is_table(path: Path) -> bool:
    """Whether it holds cells under a header, rather than JSON lines."""
    return kind_of(path) in ("csv", "tsv")


def rows_of_json(lines: Iterator[tuple[Place, str]]) -> Iterator[Found]:
    """One JSON object per line; blank lines are passed over."""
    for at, line in lines:
        if line.strip():
            yield at, line, _object(line, at)


def _object(line: str, at: Place) -> Record | BadFile:
    try:
        record = json.loads(line.rstrip("\r\n"))
    except (ValueError, RecursionError) as error:
        return at.error(f"is no valid JSON ({error}); each line must hold one whole object")
    if not isinstance(record, dict):
        return at.error(f'holds {_shown(record)}, not an object such as {{"text": "…"}}')
    return record


def rows_of_table(path: Path, lines: Iterator[tuple[Place, str]], columns: Collection[str] = ()) -> Iterator[Found]:
    """The rows of a CSV or TSV file under its header; quoted cells may hold the delimiter and line ends.

    The columns, if any are named, must be there once; else no column may be there twice.
    """
    delimiter = "\t" if kind_of(path) == "tsv" else ","
    rows = csv.reader((line for _, line in lines), delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # a document may be longer than csv's 131,072 characters
    first = 1
    try:
        header = [name.strip() for name in next(rows, [])]
        if len(header) == 1 and ";" in header[0]:
            raise BadFile(path, f"{header[0]!r} looks like several columns; separate cells by {delimiter!r}", line=1)
        for name in columns or header:
            if header.count(name) != 1:
                what = "names a column twice:" if name in header else "has no column"
                raise BadFile(path, f"{what} {name!r}; it has {', '.join(map(repr, header)) or 'none'}", line=1)
        first = rows.line_num + 1
        for cells in rows:
            at, first = Place(path, first), rows.line_num + 1
            if not cells:
                continue
            content = cells[0] if len(cells) == 1 else json.dumps(cells, ensure_ascii=False)
            if len(cells) == len(header):
                yield at, content, dict(zip(header, cells, strict=True))
            else:
                problem = (
                    f"has {len(cells)} cells but the header has {len(header)}; quote cells that hold {delimiter!r}"
                )
                yield at, content, at.error(problem)
    except csv.Error as error:  # where the next row begins is then unknown, so no row can be skipped
        raise BadFile(path, f"breaks the quoting rules ({error}); double the quotes inside cells", line=first) from None
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


KINDS: dict[str, tuple[type, ...]] = {"strings": (str,), "whole numbers": (int,), "numbers": (int, float)}


def list_of(kind: str, record: Record, field: str, at: Place) -> list[Any]:
    """A field that must be a list of strings, whole numbers or numbers."""
    if field not in record:
        raise at.error(f"has no {field!r}; give a list, an empty one if there are none")
    values = record[field]
    if not isinstance(values, list):
        raise at.error(f"{field!r} is {_shown(values)}, not a list; wrap it in one: [{_shown(values)}]")
    for value in values:
        if not isinstance(value, KINDS[kind]) or isinstance(value, bool):
            raise at.error(f"{field!r} must be a list of {kind} but holds {_shown(value)}")
    return values


def _shown(value: object) -> str:
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 60 else written[:60] + "…"


def in_step(
    first_path: Path, first: Iterator[A], second_path: Path, second: Iterator[B], what: str
) -> Iterator[tuple[A, B]]:
    """Pairs of two files' rows; they must end together, and if they don't, the error gives both counts."""
    missing = object()
    pairs = zip_longest(first, second, fillvalue=missing)
    for count, (one, other) in enumerate(pairs):
        if one is missing or other is missing:
            longer = count + 1 + sum(1 for _ in pairs)
            first_count, second_count = (count, longer) if one is missing else (longer, count)
            problem = f"has {first_count:,} {what} but {second_path} has {second_count:,}; was one of them cut short?"
            raise BadFile(first_path, problem)
        yield cast(A, one), cast(B, other)


def first_existing(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


# Renee turns the name round. Tools of the field ask for an empty file where there is nothing to filter.
NAMES = {
    "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
    "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}


def filter_files(folder: Path, split: str) -> list[Path]:
    return [folder / name for name in NAMES[split] if (folder / name).is_file()]


def read_filter(folder: Path, split: str, into: Builder) -> None:
    """Adds the split's pairs, if it has a filter file; its queries must have been added."""
    paths = filter_files(folder, split)
    if len(paths) > 1:
        raise BadFile(paths[1], f"stands beside {paths[0].name}, which means the same; remove one of them")
    for path in paths:
        for at, line in read_lines(path, into.advance, may_be_empty=True):
            if line.strip():
                into.ignore(*_pair(line, at), at)


def _pair(line: str, at: Place) -> tuple[int, int]:
    try:
        query, label = map(int, line.split())
    except ValueError:
        raise at.error(f'{line.strip()[:60]!r} is not "query_row label_row", two whole numbers') from None
    return query, label
