"""The way to Milvus, and the labels in it: a cluster's address, or a folder for the engine embedded in this process.

Every failure is a MilvusAway, which names the address, the reason and the next step. The token of a cluster comes from
the environment and is written nowhere.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from umpteen.errors import BadInput, InUse
from umpteen.files.progress import Advance
from umpteen.files.storage import FileLock
from umpteen.search.index import Indexed, Rows
from umpteen.search.ranking import NO_LABEL

HNSW, IVF_FLAT, AUTO = "HNSW", "IVF_FLAT", "AUTOINDEX"
MARKER = -1
MOST_RESULTS = 16_384  # of a query: Milvus' own limit
WIDEST = 32_768  # search effort of its graph: its own limit, too
TOKEN = "UMPTEEN_MILVUS_TOKEN"  # user:password, or an API key
_NUMBERS_AT_A_TIME = 2**20  # of vectors in a message
_QUERIES_AT_A_TIME = 256
_WAITS = (0.5, 1.0, 2.0)  # seconds between attempts to connect
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
            return
        library = sys.modules.get("milvus_lite.server_manager")
        if library is not None:  # else it never was started
            library.server_manager_instance.release_server(path)
        lock.close()


def _locked(path: str) -> FileLock:
    try:
        return FileLock(Path(f"{path}.lock"))
    except InUse:
        raise InUse(
            f"{path}: the embedded Milvus belongs to one process, and another one has it open; stop that one, "
            "run a single worker, or build the index with --uri and the address of a cluster. Nothing was changed"
        ) from None


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

    def _open(self) -> Any:
        library = _library()
        # Its errors come as exceptions, which are told by those who can do something about them.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if not self.embedded:
            return library.MilvusClient(self.uri, token=os.environ.get(TOKEN, ""), timeout=self.timeout)
        if not self._owns_files:
            own(self.uri)
            self._owns_files = True
        with _OWNING:  # one at a time
            return library.MilvusClient(self.uri)

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


# The labels in Milvus: one entity a row, with its key, its vector, whether it is retired, and since which version.
#
# Row −1 says which version of the labels the collection holds. It is written last; writing rows again changes nothing,
# so whatever was interrupted is done again from there.
class MilvusCollection:
    """One collection; `structure` is the kind of index Milvus keeps over its vectors."""

    def __init__(self, connection: MilvusConnection, name: str, structure: str) -> None:
        self.connection = connection
        self.name = name
        self.structure = structure
        self._loaded: Any = None  # the client that knows it is in Milvus' memory

    @classmethod
    def create(
        cls, connection: MilvusConnection, name: str, dimension: int, structure: str, lists: int
    ) -> "MilvusCollection":
        """A new, empty collection; an embedded engine that does not have the structure takes what it has."""
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field("key", DataType.VARCHAR, max_length=65_535)
        schema.add_field("version", DataType.INT64)
        schema.add_field("retired", DataType.BOOL)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        parameters = {HNSW: {"M": 32, "efConstruction": 200}, IVF_FLAT: {"nlist": lists}, AUTO: {}}

        def made_of(structure: str) -> "MilvusCollection":
            index = MilvusClient.prepare_index_params()
            index.add_index("vector", index_type=structure, metric_type="IP", params=parameters[structure])

            def make(client: Any) -> None:
                if client.has_collection(name):  # without an index, which it could not have
                    client.drop_collection(name)
                client.create_collection(name, schema=schema, index_params=index)

            connection.call(make)
            return cls(connection, name, structure)

        try:
            return made_of(structure)
        except MilvusAway:
            if not connection.embedded:
                raise
            return made_of(AUTO)

    def catch_up(self, now: Indexed, changed: Rows, *, anyway: bool = False) -> None:
        """Holds this version of the labels, of which these rows have changed; safe to repeat after any interruption.

        Another process may have told it; that is taken on trust, unless it is to be told `anyway`.
        """
        held = self.version()
        if anyway or held is None or held < now.labels.version:
            self.write(np.arange(len(now.vectors)) if held is None else changed, now)
            self.mark(now)

    def write(self, rows: Rows, now: Indexed, progress: Advance = lambda done, total: None) -> None:
        """These rows as they are now; those that are there already are replaced."""
        step = max(1, _NUMBERS_AT_A_TIME // now.vectors.dimension)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            self._upsert(
                {
                    "row": row,
                    "key": now.labels.keys[row],
                    "version": now.labels.version,
                    "retired": not now.vectors.active[row],
                    "vector": vector,
                }
                for row, vector in zip(some.tolist(), now.vectors.of(some).numpy(), strict=True)
            )
            progress(start + len(some), len(rows))

    def mark(self, now: Indexed) -> None:
        """The collection holds this version of the labels."""
        self.connection.call(lambda client: client.flush(self.name))
        vector = np.zeros(now.vectors.dimension, dtype=np.float32)
        self._upsert([{"row": MARKER, "key": "", "version": now.labels.version, "retired": True, "vector": vector}])

    def version(self) -> int | None:
        """The version of the labels that the collection holds; None if it never was complete."""
        found = self.query(f"row == {MARKER}", ["version"])
        return int(found[0]["version"]) if found else None

    def search(self, queries: Tensor, count: int, breadth: int, *, filtered: bool) -> Rows:
        """The rows of the best entities of each query, −1 where there are fewer; without retired ones if filtered."""
        count = min(count + 1, MOST_RESULTS)  # the marker may be among them
        asked: dict[str, int] = {}
        if self.structure != AUTO:
            asked = {"ef": min(max(breadth, count), WIDEST)} if self.structure == HNSW else {"nprobe": breadth}
        rows = np.full((len(queries), count), NO_LABEL, dtype=np.int64)
        for start in range(0, len(queries), _QUERIES_AT_A_TIME):
            found = self._ask(
                "search",
                data=list(queries[start : start + _QUERIES_AT_A_TIME].numpy()),
                anns_field="vector",
                limit=count,
                filter="retired == false" if filtered else "",
                search_params={"metric_type": "IP", "params": asked},
                output_fields=["row"],
            )
            for place, hits in enumerate(found, start):
                rows[place, : len(hits)] = [hit["row"] for hit in hits]
        return rows

    def query(self, expression: str, fields: list[str]) -> Any:
        """These fields of the entities for which the expression holds, as they are after the last write."""
        # The embedded engine knows no other way, and does not know that it can be asked for.
        fresh = {} if self.connection.embedded else {"consistency_level": "Strong"}
        return self._ask("query", filter=expression, output_fields=fields, **fresh)

    def drop(self) -> None:
        self.connection.call(lambda client: client.drop_collection(self.name))

    def _ask(self, what: str, **asked: Any) -> Any:
        """A collection can be searched once Milvus has it in memory; asking again costs little."""

        def ask(client: Any) -> Any:
            if self._loaded is not client:
                client.load_collection(self.name)
                self._loaded = client
            return getattr(client, what)(self.name, timeout=self.connection.timeout, **asked)

        return self.connection.call(ask)

    def _upsert(self, entities: Iterable[dict[str, Any]]) -> None:
        listed = list(entities)
        self.connection.call(lambda client: client.upsert(self.name, listed, timeout=10 * self.connection.timeout))
