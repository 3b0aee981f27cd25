"""Writes files and folders whole or not at all: a reader sees the old one or the new one, never a half.

Everything is written to a hidden sibling, flushed to the disk, and only then put in place.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from umpteen.errors import NotSaved, UmpteenError

# Libraries written in Rust (safetensors, tokenizers) report a full disk as a plain exception that ends so.
_RUST_OS_ERROR = re.compile(r"\(os error \d+\)")
_AT_CURRENT_FOLDER, _RENAME_EXCHANGE = -100, 2


def write_atomically(path: Path, data: bytes | str) -> None:
    """`path` holds `data`, or what it held before if writing fails."""
    with atomic_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """What the body writes into the file it is given replaces `path` when the body ends well, and only then."""
    target = Path(path).resolve()
    with _explained(target):
        sibling = hidden_sibling(target)
        try:
            with sibling.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            sibling.replace(target)
        except BaseException:
            sibling.unlink(missing_ok=True)
            raise
        flush_to_disk(target.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """What the body writes into the folder it is given replaces `path` when the body ends well, and only then."""
    target = Path(path).resolve()
    put_back(target)
    with _explained(target):
        sibling = hidden_sibling(target)
        try:
            sibling.mkdir()
            yield sibling
            for folder, _, files in os.walk(sibling):
                for name in [*files, "."]:
                    flush_to_disk(Path(folder, name))
            if target.exists():
                _exchange(sibling, target)
            else:
                sibling.replace(target)
            flush_to_disk(target.parent)
        finally:
            # After a success this is the old folder; after a failure the unfinished new one.
            shutil.rmtree(sibling, ignore_errors=True)


def can_hold(folder: Path, mark: str | None = None) -> bool:
    """Whether something whole may be put at this path: nothing is there, an empty folder, or one with this mark."""
    if not folder.exists():
        return True
    return folder.is_dir() and (not any(folder.iterdir()) or (mark is not None and (folder / mark).exists()))


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, read in blocks."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    """A failure of the disk becomes NotSaved, which names the path and the reason; other errors pass."""
    try:
        yield
    except UmpteenError:
        raise
    except Exception as error:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif _RUST_OS_ERROR.search(str(error)):
            reason = str(error)
        else:
            raise
        before = "what stood there before is untouched" if target.exists() else "nothing was left behind"
        raise NotSaved(f"{target}: could not be written: {reason}; {before}") from error


def is_unfinished(name: str) -> bool:
    """Whether a file or folder of this name is somebody's work on its way to its place, or what a kill left of it."""
    return name.startswith(".")


def hidden_sibling(target: Path) -> Path:
    """A fresh hidden name beside the target; siblings left by killed processes of this machine are removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.partial.{os.uname().nodename}."
    for other in target.parent.iterdir():
        if other.name.startswith(prefix) and not _alive(other.name.removeprefix(prefix).partition(".")[0]):
            shutil.rmtree(other, ignore_errors=True)
            with suppress(OSError):
                other.unlink()
    return target.with_name(f"{prefix}{os.getpid()}.{secrets.token_hex(4)}")


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OSError):
        return True
    return True


def unfinished_target(path: Path) -> str | None:
    """Of what a killed process of this machine left behind: the name of the file or folder it was to become."""
    name, partial, process = path.name[1:].partition(f".partial.{os.uname().nodename}.")
    return name if path.name.startswith(".") and partial and not _alive(process.partition(".")[0]) else None


def is_taken(lock: Path) -> bool:
    """Whether a process holds this lock file."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def put_back(path: Path) -> None:
    """Undoes half an exchange: what stood at `path` comes back if a kill left it aside."""
    target = Path(path).resolve()
    if not target.exists() and _aside(target).exists():
        _aside(target).replace(target)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


def _exchange(new: Path, old: Path) -> None:
    """The two folders swap names, in one step where the file system can, so that no kill leaves `old` missing."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = (_AT_CURRENT_FOLDER, os.fsencode(new), _AT_CURRENT_FOLDER, os.fsencode(old))
    if rename is not None and rename(*names, _RENAME_EXCHANGE) == 0:
        return
    aside = _aside(old)
    shutil.rmtree(aside, ignore_errors=True)  # `old` is there, so what lies aside is a leftover of a kill
    old.replace(aside)
    try:
        new.replace(old)
    except BaseException:
        aside.replace(old)
        raise
    aside.replace(new)


def flush_to_disk(path: Path) -> None:
    """A file's bytes, or the names in a folder, survive a power cut from here on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
