"""The way to Milvus: a cluster's address, or a folder for the engine that is embedded in this process.

Every failure is a MilvusAway, which names the address, the reason and the next step. The token of a cluster comes from
the environment and is written nowhere.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import IO, Any, TypeVar

from umpteen.errors import BadInput

TOKEN = "UMPTEEN_MILVUS_TOKEN"  # user:password, or an API key
_WAITS = (0.5, 1.0, 2.0)  # seconds between attempts to connect

Result = TypeVar("Result")

_OWNED: dict[str, tuple[IO[str], int]] = {}  # engines open in this process: their locks, and how many use them
_OWNING = Lock()


class MilvusAway(BadInput):
    """Milvus cannot be reached, or refuses what it is asked for."""


class InUse(BadInput):
    """Another process has opened the embedded engine."""


class MilvusConnection:
    """Connects when it is first used, and again after it was lost."""

    def __init__(self, uri: str, *, timeout: float = 5.0) -> None:
        self.uri = uri
        self.timeout = timeout
        self.embedded = is_embedded(uri)
        self._client: Any = None
        self._owns_files = False

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
        from pymilvus.exceptions import MilvusException

        try:
            if self._client is None:
                self._client = self._open()
            return work(self._client)
        except (MilvusException, ValueError, OSError) as error:
            reason = getattr(error, "message", None) or str(error)
            self.drop()
            raise MilvusAway(f"Milvus at {self.uri}: {reason}; {self._advice()}") from error

    def own(self) -> None:
        """Keeps other processes from the embedded engine, without opening it."""
        if not self._owns_files:
            _own(self.uri)
            self._owns_files = True

    def drop(self) -> None:
        """Forgets the connection; the next call makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Exception:  # it is broken, or closed already
                logging.getLogger(__name__).debug("closing the connection to Milvus failed", exc_info=True)

    def close(self) -> None:
        """Lets go of the connection, and of the embedded engine's files."""
        self.drop()
        if self._owns_files:
            self._owns_files = False
            _release(self.uri)

    def _open(self) -> Any:
        library = _library()
        # Its errors come as exceptions, which are told by those who can do something about them.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if self.embedded:
            self.own()
            return library.MilvusClient(self.uri)
        return library.MilvusClient(self.uri, token=os.environ.get(TOKEN, ""), timeout=self.timeout)

    def _advice(self) -> str:
        if self.embedded:
            return "`umpteen index build` makes the index again, `umpteen index remove` goes back to exact search"
        return f"is it running, and is its token in {TOKEN}? `umpteen index remove` goes back to exact search"


def _own(uri: str) -> None:
    """The embedded engine belongs to one process: the first one that opens it, as often as it likes."""
    with _OWNING:
        lock, users = _OWNED.get(uri, (None, 0))
        if lock is None:
            lock = Path(f"{uri}.lock").open("w")  # noqa: SIM115 - open as long as the engine is
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                raise InUse(
                    f"{uri}: the embedded Milvus belongs to one process, and another one has it open; stop that one, "
                    "run a single worker, or build the index with --uri and the address of a cluster"
                ) from None
        _OWNED[uri] = lock, users + 1


def _release(uri: str) -> None:
    from milvus_lite.server_manager import server_manager_instance

    with _OWNING:
        lock, users = _OWNED.pop(uri)
        if users > 1:
            _OWNED[uri] = lock, users - 1
        else:
            server_manager_instance.release_server(uri)
            lock.close()


def is_embedded(uri: str) -> bool:
    """Whether this is the path of an embedded engine and not a cluster's address."""
    return "://" not in uri


def _library() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise BadInput("Milvus' client is not installed; `pip install umpteen[milvus]`") from None
    return pymilvus
