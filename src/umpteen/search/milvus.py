"""The way to Milvus: a cluster's address, or a folder for the engine embedded in this process.

Every failure is a MilvusAway, which names the address, the reason and the next step; pymilvus itself tries again until
its time is over. The token of a cluster comes from the environment and is written nowhere.
"""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from umpteen.errors import BadInput, InUse
from umpteen.files.storage import FileLock

TOKEN = "UMPTEEN_MILVUS_TOKEN"  # user:password, or an API key
Result = TypeVar("Result")
_OWNED: dict[str, tuple[FileLock, int]] = {}  # by path: the locks that this process has, and how many hold them
_OWNING = Lock()


class MilvusAway(BadInput):
    """Milvus cannot be reached, or refuses what it is asked for."""


def is_embedded(uri: str) -> bool:
    """Whether this is the path of an embedded engine and not a cluster's address."""
    return "://" not in uri


# The embedded Milvus belongs to one process: the first one that opens it, as often as it likes.
# Its lock lies beside its files, so it holds before the engine is started, and while its files are moved.
def own(path: str) -> None:
    """Keeps other processes from the engine; each call needs a `release`."""
    with _OWNING:
        lock, users = _OWNED.get(path, (None, 0))
        if lock is None or not lock.is_in_place():
            try:
                new = FileLock(Path(f"{path}.lock"))
            except InUse:
                problem = "the embedded Milvus belongs to one process, and another one has it open; stop that one"
                advice = "run a single worker, or build the index with --uri and the address of a cluster"
                raise InUse(f"{path}: {problem}, {advice}. Nothing was changed") from None
            if lock is not None:  # of files that were replaced while this process had them open
                lock.close()
            lock = new
        _OWNED[path] = lock, users + 1


def release(path: str) -> None:
    """The last one stops the engine and lets other processes have it."""
    with _OWNING:
        lock, users = _OWNED.pop(path)
        if users > 1:
            _OWNED[path] = lock, users - 1
            return
        library = sys.modules.get("milvus_lite.server_manager")
        if library is not None:  # else it never was started
            library.server_manager_instance.release_server(path)
        lock.close()


class MilvusConnection:
    """Connects when it is first used, and again after it was lost. Threads share it: their calls run side by side."""

    def __init__(self, uri: str, *, timeout: float = 5.0, refused: str | None = None) -> None:
        self.uri, self.timeout, self.embedded = uri, timeout, is_embedded(uri)
        self._refused = refused  # why it is not to be connected to
        self._client: Any = None
        self._owns_files = self._closed = False
        self._opening = Lock()  # around coming and going, never around a call

    def call(self, work: Callable[[Any], Result]) -> Result:
        """What the work gives with the client of pymilvus; a failed call closes the connection."""
        if self._refused is not None:
            raise MilvusAway(f"Milvus at {self.uri}: {self._refused}")
        library = _library()
        from grpc import FutureTimeoutError, RpcError  # type: ignore[import-untyped]
        from pymilvus.exceptions import MilvusException

        client = None
        try:
            with self._opening:
                if self._client is None:
                    self._client = self._open(library)
                client = self._client
            return work(client)
        except (MilvusException, RpcError, FutureTimeoutError, ValueError, OSError) as error:
            self._drop(client)
            reason = getattr(error, "message", None) or str(error)
            again = "`umpteen index build` makes the index again"
            advice = again if self.embedded else f"is it running, and is its token in {TOKEN}?"
            advice += "; `umpteen index remove` goes back to exact search"
            raise MilvusAway(f"Milvus at {self.uri}: {reason}; {advice}") from error

    def close(self) -> None:
        """Lets go of the connection, and of the embedded engine's files, for good."""
        with self._opening:
            self._closed = True
            owned, self._owns_files = self._owns_files, False
        self._drop(self._client)
        if owned:
            release(self.uri)

    def _open(self, library: Any) -> Any:
        if self._closed:  # a thread that was still at work
            raise OSError("the connection is closed")
        # Its errors come as exceptions, which are told by those who can do something about them.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if not self.embedded:
            return library.MilvusClient(self.uri, token=os.environ.get(TOKEN, ""), timeout=self.timeout)
        if not self._owns_files:
            own(self.uri)
            self._owns_files = True
        with _OWNING:  # one at a time
            return library.MilvusClient(self.uri)

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


def _library() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise BadInput("Milvus' client is not installed; `pip install umpteen[milvus]`") from None
    return pymilvus
