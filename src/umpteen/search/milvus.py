"""Milvus as an index: it finds candidates, which get exact scores from the labels' own vectors.

In its collection each row is an entity with its key, its vector, whether it is retired, and since which version.
Writing rows again changes nothing, so whatever was interrupted is done again. What has changed since the index was
built, or last brought up to date, is searched exactly beside it, so a change waits for nobody.

Milvus compares by inner product. Where all vectors have length 1 it keeps a graph (HNSW); where lengths differ such a
graph would not reach all labels (milvus#51821), and it keeps lists (IVF_FLAT).
"""

import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from umpteen.errors import BadInput, InUse, installed
from umpteen.files.progress import Advance, silent
from umpteen.files.storage import FileLock
from umpteen.search.index import BOUND, Built, Effort, Indexed, LabelIndex, LiveVectors, Overlay, Rows, exact_search
from umpteen.search.ranking import NO_LABEL, Ranking, Vectors, as_floats

TOKEN = "UMPTEEN_MILVUS_TOKEN"  # user:password, or an API key
Result = TypeVar("Result")
_OWNED: dict[str, tuple[FileLock, int]] = {}  # by path: the locks that this process has, and how many hold them
_OWNING = Lock()
ADDRESS = "UMPTEEN_MILVUS_URI"  # where the operator says that Milvus is
LIVING = "milvus"  # the embedded engine's folder in an index, which changes in use
INSIDE = f"{LIVING}/labels.db"  # the address of an engine that lies in the index folder and moves with it
HNSW, IVF_FLAT = "HNSW", "IVF_FLAT"
_FIRST_KEYS = 16
_MOST_RESULTS = 16_384  # of a query: Milvus' own limit
_WIDEST = 32_768  # search effort of its graph: its own limit, too
_NUMBERS_AT_A_TIME = 2**20  # of vectors in a message
_QUERIES_AT_A_TIME = 256
_ALIKE = 1e-3  # lengths that differ from 1 by no more are all 1
_ROWS_AT_A_TIME = 16_384
_LISTS_EMBEDDED = 128  # nlist of milvus-lite
_STEPS = 2  # of a graph's search effort that are tried in a doubling
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds between attempts, doubling
_PATIENCE = 10.0  # seconds that closing waits for an attempt to end


# The way to it: a cluster's address, or a folder for the engine embedded in this process. pymilvus itself tries again
# until its time is over. The token of a cluster comes from the environment and is written nowhere.
class MilvusAway(BadInput):
    """Milvus cannot be reached, or refuses what it is asked for; names the address, the reason and the next step."""


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
        library = installed("pymilvus", "Milvus' client is not installed; `pip install umpteen[milvus]`")
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


class MilvusIndex(LabelIndex):
    """A collection in the embedded engine, which lies in the index folder or beside it, or in a cluster.

    Answers even when Milvus does not: by exact search, and `away` says why, while a thread of its own waits for Milvus
    with growing patience. Who never searches never touches Milvus.
    """

    kind = "milvus"
    living = LIVING
    has_address = True
    updates = True

    def __init__(
        self, connection: MilvusConnection, name: str, structure: str, now: Indexed, effort: Effort, changed: Rows
    ) -> None:
        self.connection = connection
        self.one_process = connection.embedded
        self.name, self.effort = name, effort
        self.structure = structure  # the kind of index that Milvus keeps over the vectors
        self.labels, self._keys = now.vectors, now.keys
        self._overlay = Overlay(now.vectors, changed)  # what one search sees, whatever is told meanwhile
        self._loaded: Any = None  # the client that knows that the collection is in Milvus' memory
        self._leaving = Lock()  # around going away and coming back
        self._keeper: Thread | None = None  # while it is away
        self._ending = Event()

    @classmethod
    def over(cls, connection: MilvusConnection, name: str, now: Indexed, progress: Advance) -> "MilvusIndex":
        """A new collection of this name that holds the labels."""
        structure = HNSW if _all_of_length_1(now.vectors, np.flatnonzero(now.vectors.active)) else IVF_FLAT
        connection.call(lambda client: _create(client, name, now.vectors, structure))
        made = cls(connection, name, structure, now, Effort(1, 1, 1), np.empty(0, dtype=np.int64))
        made.write(np.arange(len(now.vectors)), now, progress)
        return made

    def search(self, queries: Vectors, k: int) -> Ranking:
        overlay = self._overlay
        queries = overlay.labels.asked(queries, k)
        if self.away is None:
            try:
                return overlay.best(queries, self.candidates(queries, self.effort.for_k(k), overlay.labels), k)
            except MilvusAway as away:
                self._wait_for_it(str(away))
        return exact_search(queries, overlay.labels, k)

    def _wait_for_it(self, why: str) -> None:
        with self._leaving:
            self.away = self.stood_in = why
            if self._keeper is None and not self._ending.is_set():
                self._keeper = Thread(target=_until_back, args=(ref(self), self._ending), name="milvus", daemon=True)
                self._keeper.start()

    def candidates(self, queries: Vectors, effort: Effort, labels: LiveVectors | None = None) -> Rows:
        labels = self.labels if labels is None else labels
        count = min(effort.rescored, _MOST_RESULTS)
        graph = {"ef": min(max(effort.breadth, count), _WIDEST)}
        asked = {"metric_type": "IP", "params": graph if self.structure == HNSW else {"nprobe": effort.breadth}}
        there = "" if labels.active.all() else "retired == false"
        rows = np.full((len(queries), count), NO_LABEL, dtype=np.int64)
        for start in range(0, len(queries), _QUERIES_AT_A_TIME):
            some = list(as_floats(queries[start : start + _QUERIES_AT_A_TIME]))
            how = {"anns_field": "vector", "search_params": asked, "output_fields": ["row"]}
            for place, hits in enumerate(self._ask("search", data=some, limit=count, filter=there, **how), start):
                rows[place, : len(hits)] = [hit["row"] for hit in hits]
        # Milvus may know rows that this snapshot does not have yet, or has no more.
        known = (rows >= 0) & (rows < len(labels))
        known[known] = labels.active[rows[known]]
        return np.where(known, rows, NO_LABEL)

    def efforts(self, k: int) -> list[Effort]:
        few, count = Effort.with_spare(k), len(self.labels)
        if self.structure == HNSW:
            widths = Effort.doubling(max(16, few), min(count, _MOST_RESULTS), steps=_STEPS)
            return [Effort(k, width, few) for width in widths]
        # The embedded engine does not hear how many lists are wanted; of those it makes, it cannot search too many.
        most = max(Effort.lists_of(count), _LISTS_EMBEDDED) if self.connection.embedded else Effort.lists_of(count)
        return [Effort(k, lists, few) for lists in Effort.doubling(1, most)]

    def tell(self, now: Indexed, changed: Rows) -> None:
        super().tell(now, changed)
        self._overlay = Overlay(now.vectors, np.union1d(self._overlay.changed, changed))

    def write(self, rows: Rows, now: Indexed, progress: Advance = silent) -> None:
        """These rows as they are now; those that are there already are replaced."""
        step, active = max(1, _NUMBERS_AT_A_TIME // now.vectors.dimension), now.vectors.active
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            entities = [
                {"row": row, "key": now.keys[row], "version": now.version, "retired": not active[row], "vector": vector}
                for row, vector in zip(some.tolist(), now.vectors.of(some), strict=True)
            ]
            self._upsert(entities)
            progress(start + len(some), len(rows))
        self.connection.call(lambda client: client.flush(self.name))

    def require_own(self) -> None:
        """Refuses a collection whose first keys, which never change, are others: it is another model's."""
        rows = list(range(min(_FIRST_KEYS, len(self._keys))))
        if any(one["key"] != self._keys[one["row"]] for one in self.query(f"row in {rows}", ["row", "key"])):
            raise BadInput(f"the collection {self.name} holds another model's labels; build the index again")

    def query(self, expression: str, fields: list[str]) -> Any:
        """These fields of the entities for which the expression holds, as they are after the last write."""
        # The embedded engine knows no other way, and does not know that it can be asked for.
        fresh = {} if self.connection.embedded else {"consistency_level": "Strong"}
        return self._ask("query", filter=expression, output_fields=fields, **fresh)

    def _ask(self, what: str, **asked: Any) -> Any:
        """A collection can be searched once Milvus has it in memory; asking again costs little."""

        def ask(client: Any) -> Any:
            if self._loaded is not client:
                client.load_collection(self.name)
                self._loaded = client
            return getattr(client, what)(self.name, timeout=self.connection.timeout, **asked)

        return self.connection.call(ask)

    def _upsert(self, entities: list[dict[str, Any]]) -> None:
        self.connection.call(lambda client: client.upsert(self.name, entities, timeout=10 * self.connection.timeout))

    def close(self) -> None:
        self._ending.set()
        with self._leaving:
            keeper = self._keeper
        if keeper is not None:
            keeper.join(timeout=_PATIENCE)
        self.connection.close()

    def save(self, folder: Path) -> dict[str, Any]:
        """Milvus holds all there is."""
        return {**super().save(folder), "collection": self.name, "structure": self.structure}

    @classmethod
    def check(cls, uri: str | None) -> None:
        if uri is None or not is_embedded(uri):
            return
        if not uri.endswith(".db"):
            advice = "a cluster has an address that starts with http:// or https://"
            raise BadInput(f"{uri}: the embedded Milvus keeps its files in a folder whose name ends in .db; {advice}")
        if not Path(uri).resolve().parent.is_dir():
            raise BadInput(f"{uri}: there is no folder {Path(uri).resolve().parent}; make it, or give another --uri")

    @classmethod
    @contextmanager
    def build(cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance) -> Iterator[Built]:
        where = INSIDE if uri is None else str(Path(uri).resolve()) if is_embedded(uri) else uri
        (folder / LIVING).mkdir()  # before the engine that may lie in it
        address = str((folder / INSIDE).resolve()) if where == INSIDE else where
        name = f"umpteen_{now.model}_{secrets.token_hex(4)}"
        with closing(MilvusConnection(address)) as connection:
            connection.call(lambda client: client.list_collections())
            try:
                with closing(cls.over(connection, name, now, progress)) as index:
                    yield index, {"uri": where, BOUND: True}
            except BaseException:
                if where != INSIDE:  # it comes to nothing, and would stay there for ever
                    with suppress(BadInput), closing(MilvusConnection(address)) as again:
                        again.call(lambda client: client.drop_collection(name))
                raise

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> "MilvusIndex":
        effort, name = Effort(**about["effort"]), str(about["collection"])
        if not _is_ours(name):
            raise ValueError(f"the collection {name} is not one of umpteen's")
        return cls(_connection(folder, about), name, about["structure"], now, effort, changed)

    @classmethod
    def update(cls, folder: Path, about: dict[str, Any], now: Indexed, changed: Rows) -> None:
        with closing(cls.open(folder, about, now, changed, changed)) as index:
            if index.structure == HNSW and not _all_of_length_1(now.vectors, changed[now.vectors.active[changed]]):
                others = "of other lengths than 1, for which the graph in Milvus is not made; nothing was changed"
                raise BadInput(f"{folder}: some labels now have vectors {others}, build the index again")
            index.require_own()
            index.write(changed, now)

    @classmethod
    def forget(cls, folder: Path, about: dict[str, Any]) -> str | None:
        if about.get("uri") == INSIDE:
            return None  # it goes with the folder
        name = str(about.get("collection"))
        if not _is_ours(name):
            return f"the collection {name} is left alone: it is not one of umpteen's"
        try:
            with closing(_connection(folder, about)) as connection:
                connection.call(lambda client: client.drop_collection(name))
        except (BadInput, KeyError) as reason:
            return f"the collection {name} may still be there: {reason}"
        return None

    @classmethod
    def size(cls, folder: Path, about: dict[str, Any]) -> int | None:
        uri = about.get("uri", INSIDE)
        return super().size(folder if uri == INSIDE else Path(uri), about) if is_embedded(uri) else None


def _create(client: Any, name: str, labels: LiveVectors, structure: str) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("row", DataType.INT64, is_primary=True)
    schema.add_field("key", DataType.VARCHAR, max_length=65_535)
    schema.add_field("version", DataType.INT64)
    schema.add_field("retired", DataType.BOOL)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=labels.dimension)
    parameters = {HNSW: {"M": 32, "efConstruction": 200}, IVF_FLAT: {"nlist": Effort.lists_of(len(labels))}}
    index = client.prepare_index_params()
    index.add_index("vector", index_type=structure, metric_type="IP", params=parameters[structure])
    client.create_collection(name, schema=schema, index_params=index)


def _all_of_length_1(labels: LiveVectors, rows: Rows) -> bool:
    """Whether these rows' vectors differ in nothing but their directions."""
    parts = (labels.of(rows[start : start + _ROWS_AT_A_TIME]) for start in range(0, len(rows), _ROWS_AT_A_TIME))
    return all((abs(np.linalg.norm(part, axis=1) - 1) <= _ALIKE).all() for part in parts)


def _connection(folder: Path, about: dict[str, Any]) -> MilvusConnection:
    """The way to the labels of an index folder. An address in it is believed only if the operator gives the same."""
    uri, refused = str(about["uri"]), None
    if uri == INSIDE:
        uri = str((folder / INSIDE).resolve())
    elif os.environ.get(ADDRESS) != uri:
        advice = f"set {ADDRESS}={uri} if that is yours; until then search is exact"
        refused = f"the model folder says that its labels are there, and is not believed: {advice}"
    return MilvusConnection(uri, refused=refused)


def _is_ours(name: str) -> bool:
    return re.fullmatch("umpteen_[0-9a-f]{8}_[0-9a-f]{8}", name) is not None


def _until_back(held: "ref[MilvusIndex]", ending: Event) -> None:
    """Asks whether Milvus is back until it is, or the index is closed, or nobody has it any more."""
    wait = _FIRST_WAIT
    while not ending.wait(wait) and (index := held()) is not None:
        try:
            index.require_own()
        except Exception:  # whatever it is: answers stay exact, and Milvus gets another chance
            wait = min(2 * wait, _LONGEST_WAIT)
        else:
            with index._leaving:  # it is searched again
                index.away = index._keeper = None
            break
        del index
