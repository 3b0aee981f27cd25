"""The embedded Milvus belongs to one process: the first one that opens it, as often as it likes.

Its lock lies beside its files, so it holds before the engine is started, and while its files are moved.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from umpteen.errors import InUse
from umpteen.storage import FileLock

_OWNED: dict[str, tuple[FileLock, int]] = {}  # by path: the locks that this process has, and how many hold them
_OWNING = Lock()


def is_embedded(uri: str) -> bool:
    """Whether this is the path of an embedded engine and not a cluster's address."""
    return "://" not in uri


def own(path: str) -> None:
    """Keeps other processes from the engine; each call needs a `release`."""
    with _OWNING:
        lock, users = _OWNED.get(path, (None, 0))
        if lock is None or not lock.is_in_place():
            old, lock = lock, _locked(path)
            if old is not None:  # of files that were replaced while this process had them open
                old.close()
        _OWNED[path] = lock, users + 1


def release(path: str) -> None:
    """The last one stops the engine and lets other processes have it."""
    with _OWNING:
        lock, users = _OWNED.pop(path)
        if users > 1:
            _OWNED[path] = lock, users - 1
        else:
            _stop(path)
            lock.close()


@contextmanager
def starting(path: str) -> Iterator[None]:
    """One at a time."""
    with _OWNING:
        yield


def _locked(path: str) -> FileLock:
    try:
        return FileLock(Path(f"{path}.lock"))
    except InUse:
        raise InUse(
            f"{path}: the embedded Milvus belongs to one process, and another one has it open; stop that one, "
            "run a single worker, or build the index with --uri and the address of a cluster"
        ) from None


def _stop(path: str) -> None:
    library = sys.modules.get("milvus_lite.server_manager")
    if library is not None:  # else it never was started
        library.server_manager_instance.release_server(path)
