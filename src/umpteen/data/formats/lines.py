"""Text files line by line: gzip or plain, UTF-8 or an error that names the byte, never a whole file in memory."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from umpteen.data.prepared import Place
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
