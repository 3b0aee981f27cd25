"""Writes files and folders whole or not at all: a reader sees the old one or the new one, never a half.

Everything is written to a hidden sibling, flushed to the disk, and only then put in place. Long work is kept in a
workspace until it is whole, and a lock keeps two processes from doing it at once.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from umpteen.errors import BadInput, InUse, NotSaved, UmpteenError

# Libraries written in Rust (safetensors, tokenizers) report a full disk as a plain exception that ends so.
_RUST_OS_ERROR = re.compile(r"\(os error \d+\)")
_BETWEEN_TRIES = 0.02  # seconds
_PARTIAL = f".partial.{os.uname().nodename}."  # stands between a name and the process that is at work on it
_WORKSPACE = "umpteen-workspace"  # how the names of the files begin that make a folder a workspace


def write_atomically(path: Path, data: bytes | str) -> None:
    """`path` holds `data`, or what it held before if writing fails."""
    with atomic_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """What the body writes into the file it is given replaces `path` when the body ends well, and only then."""
    with _put_in_place(path) as sibling, sibling.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """What the body writes into the folder it is given is at `path` when the body ends well, and only then.

    Nothing is replaced but an empty folder: what has come to be at the path meanwhile stays, and this is NotSaved.
    """
    with _put_in_place(path) as sibling:
        sibling.mkdir()
        yield sibling
        for folder, _, files in os.walk(sibling):
            for name in [*files, "."]:
                flush_to_disk(Path(folder, name))


@contextmanager
def _put_in_place(path: Path) -> Iterator[Path]:
    """What the body makes at the hidden path it is given is at `path` when the body ends well, and else nowhere."""
    target = Path(path).resolve()
    with _explained(target):
        sibling = hidden_sibling(target)
        try:
            yield sibling
            sibling.replace(target)
            flush_to_disk(target.parent)
        finally:
            _remove(sibling)  # which is unfinished, if it is there


def can_hold(folder: Path, mark: str | None = None) -> bool:
    """Whether something whole may be put at this path: nothing is there, an empty folder, or one with this mark."""
    if not folder.exists():
        return True
    return folder.is_dir() and (not any(folder.iterdir()) or (mark is not None and (folder / mark).exists()))


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, read in blocks."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(content: Any) -> str:
    """The SHA-256 of any JSON in hexadecimal, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    """A failure of the disk becomes NotSaved, which names the path and the reason; other errors pass."""
    try:
        yield
    except Exception as error:
        is_of_the_disk = isinstance(error, OSError) or _RUST_OS_ERROR.search(str(error))
        if isinstance(error, UmpteenError) or not is_of_the_disk:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        before = "what stood there before is untouched" if target.exists() else "nothing was left behind"
        raise NotSaved(f"{target}: could not be written: {reason}; {before}") from error


def hidden_sibling(target: Path) -> Path:
    """A fresh hidden name beside the target; siblings left by killed processes of this machine are removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in target.parent.iterdir():
        if unfinished_target(other) == target.name:
            _remove(other)
    return target.with_name(f".{target.name}{_PARTIAL}{os.getpid()}.{secrets.token_hex(4)}")


def _remove(path: Path) -> None:
    """A file or a folder, as far as there is one that can be removed."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def unfinished_target(path: Path) -> str | None:
    """Of what a killed process of this machine left behind: the name of the file or folder it was to become."""
    name, partial, process = path.name[1:].partition(_PARTIAL)
    if path.name.startswith(".") and partial:
        try:
            os.kill(int(process.partition(".")[0]), 0)
        except ProcessLookupError:
            return name
        except (ValueError, OSError):
            pass  # it is alive, or nobody's
    return None


def is_taken(lock: Path) -> bool:
    """Whether a process holds this lock file."""
    try:
        FileLock(lock).close()
    except (UmpteenError, OSError) as problem:
        return isinstance(problem, InUse)
    return False


def flush_to_disk(path: Path) -> None:
    """A file's bytes, or the names in a folder, survive a power cut from here on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileLock:
    """A file that one process holds at a time; it is free again when that process ends, however it ends."""

    def __init__(self, path: Path, *, wait: float | None = 0.0, guards: Path | None = None) -> None:
        """Takes it, and waits so many seconds (None: for ever) for whoever has it; then InUse names what it guards."""
        self.path, self._holder = path, ""
        until = time.monotonic() + (float("inf") if wait is None else wait)
        while not self._take():
            if time.monotonic() >= until:
                raise InUse(f"another process{self._holder} is at work in {guards or path}; wait for it, or stop it")
            time.sleep(_BETWEEN_TRIES)

    def is_in_place(self) -> bool:
        """Whether the path still names the file that is held, which may have been moved or removed since."""
        try:
            return os.path.samestat(os.fstat(self._handle), self.path.lstat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Lets the next one have it."""
        os.close(self._handle)

    def _take(self) -> bool:
        if self.path.is_symlink():
            raise BadInput(f"{self.path} is a link, which is not followed; move it away")
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        said = os.pread(self._handle, 20, 0).strip()
        taken = False
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = self.is_in_place()
        except (BlockingIOError, PermissionError):
            self._holder = f" (pid {int(said)})" if said.isdigit() else ""
        finally:
            if not taken:
                self.close()
        if taken and (not said or said.isdigit()):  # else it is somebody's file: it can be locked, but is not ours
            os.pwrite(self._handle, f"{os.getpid():<19}\n".encode(), 0)
        return taken


def locked_file(path: Path, *, wait: float | None = 0.0) -> closing[FileLock]:
    """One process at a time is in the block; the others wait so many seconds (None: for ever), then get InUse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return closing(FileLock(path, wait=wait))


@dataclass(frozen=True)
class Workspace:
    """A folder that holds what is done of a long work; nobody else is in it while it is open."""

    folder: Path
    begun: bool  # before: there is something to go on with

    def remove(self) -> None:
        """The folder is gone in one step, so that no kill leaves half of it to go on with."""
        with _explained(self.folder):
            aside = hidden_sibling(self.folder)
            self.folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def open_workspace(folder: Path, kind: str, identity: Any = None, *, anew: bool = False) -> Iterator[Workspace]:
    """The workspace at this path, made or gone on with; it stays until it is removed, unless nothing was put in.

    What was begun with another identity (any JSON) is discarded, with `anew` whatever is there; a folder that is no
    workspace of this kind is refused and left alone. While another process is in it, InUse.
    """
    marker = {"kind": kind, "identity": digest_of(identity)}
    while True:
        _marker_of(folder, kind)  # refuses before anything is written
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{_WORKSPACE}.lock", guards=folder)
        with closing(lock):
            found = _marker_of(folder, kind)
            workspace = Workspace(folder, begun=found is not None)
            if found is None:
                write_atomically(folder / f"{_WORKSPACE}.json", json.dumps(marker))
            elif anew or found != marker:
                workspace.remove()
                continue
            try:
                yield workspace
            finally:
                if lock.is_in_place() and _is_unused(folder):
                    workspace.remove()
            return


def _marker_of(folder: Path, kind: str) -> Any:
    """What a workspace of this kind says of itself; None where nobody has put anything yet."""
    marker = None
    with suppress(OSError, ValueError):
        marker = json.loads((folder / f"{_WORKSPACE}.json").read_bytes())
    is_ours = marker.get("kind") == kind if isinstance(marker, dict) else _is_unused(folder)
    if folder.is_symlink() or not is_ours:
        problem = f"{kind} keeps its unfinished work there, but this is something else"
        raise BadInput(f"{folder} is in the way: {problem}; it was not touched, move it away")
    return marker


def _is_unused(folder: Path) -> bool:
    try:
        return all(path.name.lstrip(".").startswith(_WORKSPACE) for path in folder.iterdir())
    except OSError:
        return not folder.exists()
