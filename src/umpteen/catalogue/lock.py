"""One process at a time changes a model folder's labels, whatever program it runs; readers need no lock."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from umpteen.errors import NotSaved
from umpteen.manifest import CATALOGUE, MANIFEST
from umpteen.storage import flush_to_disk

LOCK = "lock"
PATIENCE = 120.0  # seconds; whoever holds the lock writes files, and encodes no texts
_BETWEEN_TRIES = 0.005
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_patience: ContextVar[float | None] = ContextVar("patience", default=None)  # None: PATIENCE


class Locked(NotSaved):
    """Another process changes the labels, and waiting for its end took too long; nothing was changed."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Who needs a lock in here, however deep, waits for it no longer than this: for those who keep others waiting."""
    before = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(before)


def is_locked(model: Path) -> bool:
    """Whether somebody changes the labels of this model folder right now: one look, no wait."""
    try:
        handle = os.open(model / CATALOGUE / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # nobody ever did, or nobody can: who tries is told
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(handle)
    return False


@contextmanager
def locked(model: Path) -> Iterator[None]:
    """Nobody else changes the labels of this model folder meanwhile; a process that dies lets go of the lock."""
    own = _patience.get()
    seconds = PATIENCE if own is None else own
    until = time.monotonic() + seconds
    while True:
        handle = _opened(model)
        try:
            _wait(handle, model, until, seconds)
            if _is_still(handle, model / CATALOGUE / LOCK):
                yield
                return
        finally:
            os.close(handle)
        # The whole folder was replaced while we waited: the lock of the new one counts.


def _opened(model: Path) -> int:
    folder = model / CATALOGUE
    try:
        while True:
            if not folder.is_dir():
                if not (model / MANIFEST).is_file():
                    raise NotSaved(f"{model}: is no model folder any more; nothing was changed")
                folder.mkdir(exist_ok=True)
                flush_to_disk(model)
            with suppress(FileNotFoundError):  # the model was replaced since the look; the new one may have no folder
                return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NotSaved(
            f"{folder}: cannot be written ({error.strerror}), so labels cannot be changed here; "
            "nothing was changed. Copy the model folder to a place you may write to"
        ) from error


def _wait(handle: int, model: Path, until: float, seconds: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise NotSaved(f"{model / CATALOGUE / LOCK}: cannot be locked ({error.strerror})") from error
            if time.monotonic() > until:
                raise Locked(
                    f"{model}: another process has been changing its labels for {seconds:g} s; nothing was changed, "
                    "try again later"
                ) from None
        time.sleep(_BETWEEN_TRIES)


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
