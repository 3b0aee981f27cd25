"""The labels in Milvus: one entity a row, with its key, its vector, whether it is retired, and since which version.

Row −1 says which version of the labels the collection holds. It is written last; writing rows again changes nothing,
so whatever was interrupted is done again from there.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from umpteen.retrieval.live_vectors import LiveVectors, Rows
from umpteen.retrieval.milvus_connection import MilvusAway, MilvusConnection
from umpteen.retrieval.ranking import NO_LABEL

HNSW, IVF_FLAT, AUTO = "HNSW", "IVF_FLAT", "AUTOINDEX"
MARKER = -1
MOST_RESULTS = 16_384  # of a query: Milvus' own limit
WIDEST = 32_768  # search effort of its graph: its own limit, too
_NUMBERS_AT_A_TIME = 2**20  # of vectors in a message
_QUERIES_AT_A_TIME = 256


class NamedRows(Protocol):
    """The labels' catalogue, as far as Milvus is to know it."""

    @property
    def version(self) -> int: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def active(self) -> NDArray[np.bool_]: ...


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
