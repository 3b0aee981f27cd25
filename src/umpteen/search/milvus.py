"""Labels in Milvus: it finds candidates, which get exact scores from the labels' own vectors.

What has changed since the index was opened is searched exactly beside it, whether Milvus has heard of it or not; so a
change waits for nobody, and `catch_up` writes it there when Milvus can be reached.

Milvus compares by inner product. Where all vectors have length 1 it keeps a graph (HNSW); where lengths differ such a
graph would not reach all labels (milvus#51821), and it keeps lists (IVF_FLAT).
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.files.progress import Advance
from umpteen.search.exact import changed_best, checked_queries, completed
from umpteen.search.index import Effort, LiveVectors, NamedRows, Rows, best_of, doubling, exact_scores, with_spare
from umpteen.search.milvus_connection import MilvusAway, MilvusConnection
from umpteen.search.ranking import NO_LABEL, Ranking

HNSW, IVF_FLAT, AUTO = "HNSW", "IVF_FLAT", "AUTOINDEX"
MARKER = -1
MOST_RESULTS = 16_384  # of a query: Milvus' own limit
WIDEST = 32_768  # search effort of its graph: its own limit, too
_NUMBERS_AT_A_TIME = 2**20  # of vectors in a message
_QUERIES_AT_A_TIME = 256


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
        try:
            return cls._create(connection, name, dimension, structure, lists)
        except MilvusAway:
            if not connection.embedded:
                raise
            return cls._create(connection, name, dimension, AUTO, lists)

    @classmethod
    def _create(
        cls, connection: MilvusConnection, name: str, dimension: int, structure: str, lists: int
    ) -> "MilvusCollection":
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field("key", DataType.VARCHAR, max_length=65_535)
        schema.add_field("version", DataType.INT64)
        schema.add_field("retired", DataType.BOOL)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        parameters = {HNSW: {"M": 32, "efConstruction": 200}, IVF_FLAT: {"nlist": lists}}.get(structure, {})
        index = MilvusClient.prepare_index_params()
        index.add_index("vector", index_type=structure, metric_type="IP", params=parameters)

        def make(client: Any) -> None:
            if client.has_collection(name):
                client.drop_collection(name)
            client.create_collection(name, schema=schema, index_params=index)

        connection.call(make)
        return cls(connection, name, structure)

    def write(self, rows: Rows, labels: LiveVectors, catalogue: NamedRows) -> None:
        """These rows as they are now; those that are there already are replaced."""
        step = max(1, _NUMBERS_AT_A_TIME // labels.dimension)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            active = labels.active[some]
            vectors = np.zeros((len(some), labels.dimension), dtype=np.float32)
            vectors[active] = labels.of(some[active]).numpy()
            self._upsert(
                {
                    "row": int(row),
                    "key": catalogue.keys[int(row)],
                    "version": catalogue.version,
                    "retired": not alive,
                    "vector": vector,
                }
                for row, alive, vector in zip(some, active, vectors, strict=True)
            )

    def mark(self, version: int, dimension: int) -> None:
        """The collection holds this version of the labels."""
        self.connection.call(lambda client: client.flush(self.name))
        vector = np.zeros(dimension, dtype=np.float32)
        self._upsert([{"row": MARKER, "key": "", "version": version, "retired": True, "vector": vector}])

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
            some = queries[start : start + _QUERIES_AT_A_TIME].numpy()
            found = self.connection.call(partial(self._search, some, count, asked, filtered))
            for place, hits in enumerate(found, start):
                rows[place, : len(hits)] = [hit["row"] for hit in hits]
        return rows

    def drop(self) -> None:
        """Deletes the collection."""
        self.connection.call(lambda client: client.drop_collection(self.name))

    def _search(
        self, queries: NDArray[np.float32], count: int, asked: dict[str, int], filtered: bool, client: Any
    ) -> Any:
        self._load(client)
        return client.search(
            self.name,
            data=list(queries),
            anns_field="vector",
            limit=count,
            filter="retired == false" if filtered else "",
            search_params={"metric_type": "IP", "params": asked},
            output_fields=["row"],
            timeout=self.connection.timeout,
        )

    def query(self, expression: str, fields: list[str]) -> Any:
        """These fields of the entities for which the expression holds, as they are after the last write."""
        # The embedded engine knows no other way, and does not know that it can be asked for.
        fresh = {} if self.connection.embedded else {"consistency_level": "Strong"}

        def ask(client: Any) -> Any:
            self._load(client)
            return client.query(
                self.name, filter=expression, output_fields=fields, timeout=self.connection.timeout, **fresh
            )

        return self.connection.call(ask)

    def _load(self, client: Any) -> None:
        """A collection can be searched once Milvus has it in memory; asking again costs little."""
        if self._loaded is not client:
            client.load_collection(self.name)
            self._loaded = client

    def _upsert(self, entities: Iterable[dict[str, Any]]) -> None:
        listed = list(entities)
        self.connection.call(lambda client: client.upsert(self.name, listed, timeout=10 * self.connection.timeout))


_ALIKE = 1e-3  # lengths that differ from 1 by no more are all 1
_ROWS_AT_A_TIME = 16_384
_LISTS_EMBEDDED = 128  # nlist of milvus-lite
_STEPS = 2  # of a graph's search effort that are tried in a doubling


class State(NamedTuple):
    """What one search sees, whatever is added or removed meanwhile."""

    labels: LiveVectors  # all there is to find, with exact vectors
    fresh: LiveVectors  # of these, what has changed since the index was opened
    waiting: Rows  # rows that Milvus has not heard of yet, sorted
    version: int  # of the catalogue: all of its changes are among these labels, perhaps some of the next version's, too


class MilvusIndex:
    """`catalogue` gives the labels as they are now: their keys and versions are kept in Milvus, too."""

    kind = "milvus"
    away = None

    def __init__(
        self,
        collection: MilvusCollection,
        labels: LiveVectors,
        effort: Effort,
        catalogue: Callable[[], NamedRows],
        version: int,
    ) -> None:
        self.collection = collection
        self.effort = effort
        self.one_process = collection.connection.embedded
        self._catalogue = catalogue
        self._state = State(labels, LiveVectors(torch.empty(0, labels.dimension)), np.empty(0, dtype=np.int64), version)
        self._changing = Lock()
        self._writing = Lock()

    @classmethod
    def build(
        cls,
        connection: MilvusConnection,
        name: str,
        labels: LiveVectors,
        catalogue: NamedRows,
        progress: Advance | None = None,
    ) -> "MilvusIndex":
        """A new collection with all labels as they are now."""
        structure = HNSW if all_of_length_1(labels, np.flatnonzero(labels.active)) else IVF_FLAT
        collection = MilvusCollection.create(connection, name, labels.dimension, structure, _lists(len(labels)))
        rows = np.arange(len(labels))
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            collection.write(rows[start : start + _ROWS_AT_A_TIME], labels, catalogue)
            if progress is not None:
                progress(min(start + _ROWS_AT_A_TIME, len(rows)), len(rows))
        collection.mark(catalogue.version, labels.dimension)
        return cls(collection, labels, Effort(1, 1, 1), lambda: catalogue, catalogue.version)

    @property
    def labels(self) -> LiveVectors:
        """All there is to find now."""
        return self._state.labels

    def search(self, queries: Tensor, k: int) -> Ranking:
        labels, fresh, _, _ = self._state
        queries = checked_queries(queries, labels.dimension, k)
        candidates = self._found(queries, self.effort.for_k(k), labels)
        if len(fresh.changed):  # Milvus may have them by now, but nobody is to be named twice
            candidates = np.where(np.isin(candidates, fresh.changed), NO_LABEL, candidates)
        scores = exact_scores(queries, candidates, labels)
        if len(fresh.changed):
            new, new_scores = changed_best(queries, fresh, k)
            candidates = np.concatenate([candidates, new], 1)
            scores = np.concatenate([scores, new_scores], 1)
        return completed(best_of(candidates, scores, k, len(labels)), queries, labels)

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        """The rows that Milvus finds for each query with this effort, best first; −1 where none is left."""
        return self._found(queries, effort, self._state.labels)

    def _found(self, queries: Tensor, effort: Effort, labels: LiveVectors) -> Rows:
        filtered = not labels.active.all()
        rows = self.collection.search(queries, effort.rescored, effort.breadth, filtered=filtered)
        # Milvus may know rows that this snapshot does not have yet, or has no more.
        known = (rows >= 0) & (rows < len(labels))
        known[known] = labels.active[rows[known]]
        return np.where(known, rows, NO_LABEL)

    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first: just one where the engine leaves no choice."""
        few = with_spare(k)
        count = len(self.labels)
        if self.collection.structure == AUTO:
            return [Effort(k, 0, few)]
        if self.collection.structure == HNSW:
            return [Effort(k, width, few) for width in doubling(max(16, few), min(count, MOST_RESULTS), steps=_STEPS)]
        # The embedded engine does not hear how many lists are wanted; of those it makes, it cannot search too many.
        most = max(_lists(count), _LISTS_EMBEDDED) if self.collection.connection.embedded else _lists(count)
        return [Effort(k, lists, few) for lists in doubling(1, most)]

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        with self._changing:
            labels, fresh, waiting, _ = self._state
            labels.check(rows, vectors)
            differs = labels.differing(rows, vectors)
            rows, vectors = rows[differs], vectors[differs]
            labels, fresh = labels.with_rows(rows, vectors), fresh.with_rows(rows, vectors)
            self._tell(labels, fresh, np.union1d(waiting, rows))

    def remove(self, rows: NDArray[np.int64]) -> None:
        with self._changing:
            labels, fresh, waiting, _ = self._state
            fresh = fresh.without(rows[rows < len(fresh)])
            self._tell(labels.without(rows), fresh, np.union1d(waiting, rows))

    def _tell(self, labels: LiveVectors, fresh: LiveVectors, waiting: Rows) -> None:
        """A version is told in up to two steps, its new vectors first: it is all here when the same rows are active."""
        catalogue = self._catalogue()
        whole = np.array_equal(labels.active, catalogue.active)
        self._state = State(labels, fresh, waiting, catalogue.version if whole else self._state.version)

    def waiting(self) -> int:
        """How many rows Milvus has not heard of yet."""
        return len(self._state.waiting)

    def catch_up(self, *, anyway: bool = False) -> None:
        """Tells Milvus of everything that has changed, its version last; safe to repeat after any interruption.

        Another process may have told it; that is taken on trust, unless it is to be told `anyway`. While the catalogue
        is ahead of what was told here, everything goes on waiting: the marker never names rows that are not there.
        """
        with self._writing:
            with self._changing:
                labels, _, waiting, version = self._state
                catalogue = self._catalogue()
                if catalogue.version == version:
                    self._state = self._state._replace(waiting=waiting[:0])
            try:
                held = self.collection.version()
                if catalogue.version == version and (anyway or held is None or held < version):
                    self.collection.write(np.arange(len(labels)) if held is None else waiting, labels, catalogue)
                    self.collection.mark(version, labels.dimension)
            except BaseException:
                with self._changing:
                    self._state = self._state._replace(waiting=np.union1d(self._state.waiting, waiting))
                raise

    def close(self) -> None:
        self.collection.connection.close()

    def save(self, folder: Path) -> dict[str, Any]:
        """Milvus holds all there is; returns what `open` has to be told."""
        return {
            "kind": self.kind,
            "effort": self.effort.to_dict(),
            "collection": self.collection.name,
            "structure": self.collection.structure,
        }

    @classmethod
    def open(
        cls,
        labels: LiveVectors,
        settings: dict[str, Any],
        connection: MilvusConnection,
        catalogue: Callable[[], NamedRows],
        version: int,
    ) -> "MilvusIndex":
        """The index that was made of these labels, of this version; Milvus is asked when something is searched for."""
        collection = MilvusCollection(connection, settings["collection"], settings["structure"])
        return cls(collection, labels, Effort.from_dict(settings["effort"]), catalogue, version)


def all_of_length_1(labels: LiveVectors, rows: Rows) -> bool:
    """Whether these rows' vectors differ in nothing but their directions."""
    return all(
        bool(((labels.of(rows[start : start + _ROWS_AT_A_TIME]).norm(dim=1) - 1).abs() <= _ALIKE).all())
        for start in range(0, len(rows), _ROWS_AT_A_TIME)
    )


def _lists(count: int) -> int:
    return max(1, min(int(4 * count**0.5), count // 32, 65_536))
