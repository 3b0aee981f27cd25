"""What readers share: lines that are UTF-8 or an error, rows with checked fields, files of filtered pairs."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from umpteen.data.prepared import Builder, Place
from umpteen.errors import BadFile

A = TypeVar("A")
B = TypeVar("B")

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINES_BETWEEN_REPORTS = 1024


def read_lines(
    path: Path, advance: Callable[[int], None], *, keep_ends: bool = False, may_be_empty: bool = False
) -> Iterator[tuple[Place, str]]:
    """Each line and its place. Only "\\n" and "\\r\\n" end a line: texts may hold any other separator.

    `advance` hears how many more bytes of the file have been read.
    """
    number = offset = reported = 0  # offset: bytes of the (unpacked) text before this line
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_unpacked(file, path), start=1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise BadFile(
                        path,
                        f"byte 0x{line[error.start]:02x} at offset {offset + error.start:,} is not UTF-8; "
                        "convert the file, for example with iconv -f LATIN1 -t UTF-8",
                        line=number,
                    ) from None
                if number == 1 and line.startswith(BYTE_ORDER_MARK):
                    text = text[1:]
                offset += len(line)
                if number % LINES_BETWEEN_REPORTS == 0:
                    advance(file.tell() - reported)
                    reported = file.tell()
                yield Place(path, number), text if keep_ends else text.removesuffix("\n").removesuffix("\r")
            advance(file.tell() - reported)
    except FileNotFoundError:
        raise BadFile(path, "is missing; without it the dataset is not complete") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(path, f"is no whole gzip file ({error}); fetch or pack it again", line=number + 1) from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from error
    if number == 0 and not may_be_empty:
        raise BadFile(path, "is empty; was it cut short?")


def in_step(
    first_path: Path, first: Iterator[A], second_path: Path, second: Iterator[B], what: str
) -> Iterator[tuple[A, B]]:
    """Pairs of two files' rows; they must end together, and if they don't, the error gives both counts."""
    missing = object()
    pairs = zip_longest(first, second, fillvalue=missing)
    for count, (one, other) in enumerate(pairs):
        if one is missing or other is missing:
            longer = count + 1 + sum(1 for _ in pairs)
            counts = (count, longer) if one is missing else (longer, count)
            raise mismatch(first_path, counts[0], second_path, counts[1], what)
        yield cast(A, one), cast(B, other)


def mismatch(first_path: Path, first: int, second_path: Path, second: int, what: str) -> BadFile:
    """Two files that must agree on a number do not."""
    return BadFile(first_path, f"has {first:,} {what} but {second_path} has {second:,}; was one of them cut short?")


def first_existing(folder: Path, *names: str) -> Path | None:
    """The first of these files that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _unpacked(file: BinaryIO, path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return file
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 1 << 20))


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
