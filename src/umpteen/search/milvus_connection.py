"""The way to Milvus: a cluster's address, or a folder for the engine that is embedded in this process.

Every failure is a MilvusAway, which names the address, the reason and the next step. The token of a cluster comes from
the environment and is written nowhere.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from umpteen.errors import BadInput, InUse
from umpteen.files.storage import FileLock

_OWNED: dict[str, tuple[FileLock, int]] = {}  # by path: the locks that this process has, and how many hold them
_OWNING = Lock()


# The embedded Milvus belongs to one process: the first one that opens it, as often as it likes.
#
# Its lock lies beside its files, so it holds before the engine is started, and while its files are moved.
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


TOKEN = "UMPTEEN_MILVUS_TOKEN"  # user:password, or an API key
_WAITS = (0.5, 1.0, 2.0)  # seconds between attempts to connect

Result = TypeVar("Result")


class MilvusAway(BadInput):
    """Milvus cannot be reached, or refuses what it is asked for."""


class MilvusConnection:
    """Connects when it is first used, and again after it was lost. Threads share it: their calls run side by side."""

    def __init__(self, uri: str, *, timeout: float = 5.0, refused: str | None = None) -> None:
        self.uri = uri
        self._refused = refused  # why it is not to be connected to
        self.timeout = timeout
        self.embedded = is_embedded(uri)
        self._client: Any = None
        self._owns_files = False
        self._closed = False
        self._opening = Lock()  # around coming and going, never around a call

    def connect(self, attempts: int = 1) -> None:
        """Makes sure of the connection, with back-off between several attempts."""
        for wait in (*_WAITS[: attempts - 1], None):
            try:
                self.call(lambda client: client.list_collections(timeout=self.timeout))
            except MilvusAway:
                if wait is None:
                    raise
                time.sleep(wait)
            else:
                return

    def call(self, work: Callable[[Any], Result]) -> Result:
        """What the work gives with the client of pymilvus; a failed call closes the connection."""
        if self._refused is not None:
            raise MilvusAway(f"Milvus at {self.uri}: {self._refused}")
        _library()
        from grpc import FutureTimeoutError, RpcError  # type: ignore[import-untyped]
        from pymilvus.exceptions import MilvusException

        client = None
        try:
            client = self._connected()
            return work(client)
        except (MilvusException, RpcError, FutureTimeoutError, ValueError, OSError) as error:
            self._drop(client)
            raise self._away(error) from error

    def own(self) -> None:
        """Keeps other processes from the embedded engine, without opening it."""
        if self._refused is not None:
            raise MilvusAway(f"Milvus at {self.uri}: {self._refused}")
        with self._opening:
            self._own()

    def close(self) -> None:
        """Lets go of the connection, and of the embedded engine's files, for good."""
        with self._opening:
            self._closed = True
            owned, self._owns_files = self._owns_files, False
        self._drop(self._client)
        if owned:
            release(self.uri)

    def _connected(self) -> Any:
        with self._opening:
            if self._closed:  # a thread that was still at work
                raise OSError("the connection is closed")
            if self._client is None:
                self._client = self._open()
            return self._client

    def _drop(self, client: Any) -> None:
        """Closes this client; one that another thread has opened since then stays."""
        with self._opening:
            if client is None or self._client is not client:
                return
            self._client = None
        try:
            client.close()
        except Exception:  # it is broken, or closed already
            logging.getLogger(__name__).debug("closing the connection to Milvus failed", exc_info=True)

    def _own(self) -> None:
        if not self._owns_files:
            try:
                own(self.uri)
            except OSError as error:
                raise self._away(error) from error
            self._owns_files = True

    def _open(self) -> Any:
        library = _library()
        # Its errors come as exceptions, which are told by those who can do something about them.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if self.embedded:
            self._own()
            with starting(self.uri):
                return library.MilvusClient(self.uri)
        return library.MilvusClient(self.uri, token=os.environ.get(TOKEN, ""), timeout=self.timeout)

    def _away(self, error: Exception) -> MilvusAway:
        reason = getattr(error, "message", None) or str(error)
        if self.embedded:
            advice = "`umpteen index build` makes the index again, `umpteen index remove` goes back to exact search"
        else:
            advice = f"is it running, and is its token in {TOKEN}? `umpteen index remove` goes back to exact search"
        return MilvusAway(f"Milvus at {self.uri}: {reason}; {advice}")


def _library() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise BadInput("Milvus' client is not installed; `pip install umpteen[milvus]`") from None
    return pymilvus
