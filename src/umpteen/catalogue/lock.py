"""One process at a time changes a model folder's labels, whatever program it runs; readers need no lock."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from umpteen.errors import NotSaved
from umpteen.manifest import CATALOGUE, MANIFEST

LOCK = "lock"
PATIENCE = 120.0  # seconds; whoever holds the lock writes files, and encodes no texts
_BETWEEN_TRIES = 0.005


@contextmanager
def locked(model: Path) -> Iterator[None]:
    """Nobody else changes the labels of this model folder meanwhile; a process that dies lets go of the lock."""
    until = time.monotonic() + PATIENCE
    while True:
        handle = _opened(model)
        try:
            _wait(handle, model, until)
            if _is_still(handle, model / CATALOGUE / LOCK):
                yield
                return
        finally:
            os.close(handle)
        # The whole folder was replaced while we waited: the lock of the new one counts.


def _opened(model: Path) -> int:
    folder = model / CATALOGUE
    try:
        if not folder.is_dir():
            if not (model / MANIFEST).is_file():
                raise NotSaved(f"{model}: is no model folder any more; nothing was changed")
            folder.mkdir(exist_ok=True)
            flush_to_disk(model)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NotSaved(
            f"{folder}: cannot be written ({error.strerror}), so labels cannot be changed here; "
            "nothing was changed. Copy the model folder to a place you may write to"
        ) from error


def _wait(handle: int, model: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise NotSaved(f"{model / CATALOGUE / LOCK}: cannot be locked ({error.strerror})") from error
            if time.monotonic() > until:
                raise NotSaved(
                    f"{model}: another process has been changing its labels for {PATIENCE:.0f} s; nothing was changed, "
                    "try again later"
                ) from None
        time.sleep(_BETWEEN_TRIES)


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def flush_to_disk(folder: Path) -> None:
    """The names in a folder survive a power cut from here on."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
