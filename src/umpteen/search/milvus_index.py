"""Milvus as an index: it finds candidates, which get exact scores from the labels' own vectors.

What has changed since the index was opened is searched exactly beside it, whether Milvus has heard of it or not; so a
change waits for nobody, and `catch_up` writes it there when Milvus can be reached. While it is away, search is exact.

Milvus compares by inner product. Where all vectors have length 1 it keeps a graph (HNSW); where lengths differ such a
graph would not reach all labels (milvus#51821), and it keeps lists (IVF_FLAT).
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.files.progress import Advance
from umpteen.search.engine import BOUND, LabelIndex, size_of
from umpteen.search.index import (
    Effort,
    Indexed,
    LiveVectors,
    Overlay,
    Rows,
    checked_queries,
    doubling,
    exact_search,
    lists_of,
    with_spare,
)
from umpteen.search.milvus import (
    AUTO,
    HNSW,
    IVF_FLAT,
    MOST_RESULTS,
    MilvusAway,
    MilvusCollection,
    MilvusConnection,
    is_embedded,
)
from umpteen.search.ranking import NO_LABEL, Ranking

ADDRESS = "UMPTEEN_MILVUS_URI"  # where the operator says that Milvus is
LIVING = "milvus"  # the embedded engine's folder in an index, which changes in use
INSIDE = f"{LIVING}/labels.db"  # the address of an engine that lies in the index folder and moves with it
_ALIKE = 1e-3  # lengths that differ from 1 by no more are all 1
_ROWS_AT_A_TIME = 16_384
_LISTS_EMBEDDED = 128  # nlist of milvus-lite
_STEPS = 2  # of a graph's search effort that are tried in a doubling
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds between attempts, doubling
_PATIENCE = 10.0  # seconds that closing waits for a write to end


class State(NamedTuple):
    """What one search sees, whatever is told meanwhile."""

    now: Indexed
    overlay: Overlay  # what has changed since the index was made is fresh
    waiting: Rows  # rows that Milvus has not heard of yet, sorted


class MilvusIndex(LabelIndex):
    """A collection in the embedded engine, which lies in the index folder or beside it, or in a cluster.

    Answers even when Milvus does not: by exact search, and `away` says why.

    From the first search on a thread of its own waits for Milvus with growing patience and tells it of changed labels.
    Who never searches never touches Milvus.
    """

    kind = "milvus"
    living = LIVING
    has_address = True
    updates = True

    def __init__(self, collection: MilvusCollection, now: Indexed, effort: Effort, changed: Rows) -> None:
        self.collection = collection
        self.effort = effort
        self.one_process = collection.connection.embedded
        self.labels = now.vectors
        self._state = State(now, Overlay.of(now.vectors, changed), changed)
        self._changing = Lock()
        self._keeper: Thread | None = None
        self._keeping = Lock()  # around its start and its end
        self._ending = Event()

    def search(self, queries: Tensor, k: int) -> Ranking:
        overlay, found = self._state.overlay, None
        queries = checked_queries(queries, overlay.labels.dimension, k)
        if self.away is None:
            try:
                found = overlay.best(queries, self._found(queries, self.effort.for_k(k), overlay.labels), k)
            except MilvusAway as away:
                self.away = self.stood_in = str(away)
        with self._keeping:
            if self._keeper is None and not self._ending.is_set():
                self._keeper = Thread(target=_look_after, args=(ref(self), self._ending), name="milvus", daemon=True)
                self._keeper.start()
        return exact_search(queries, overlay.labels, k) if found is None else found

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        return self._found(queries, effort, self.labels)

    def _found(self, queries: Tensor, effort: Effort, labels: LiveVectors) -> Rows:
        filtered = not labels.active.all()
        rows = self.collection.search(queries, effort.rescored, effort.breadth, filtered=filtered)
        # Milvus may know rows that this snapshot does not have yet, or has no more.
        known = (rows >= 0) & (rows < len(labels))
        known[known] = labels.active[rows[known]]
        return np.where(known, rows, NO_LABEL)

    def efforts(self, k: int) -> list[Effort]:
        few = with_spare(k)
        count = len(self.labels)
        if self.collection.structure == AUTO:
            return [Effort(k, 0, few)]
        if self.collection.structure == HNSW:
            return [Effort(k, width, few) for width in doubling(max(16, few), min(count, MOST_RESULTS), steps=_STEPS)]
        # The embedded engine does not hear how many lists are wanted; of those it makes, it cannot search too many.
        most = max(lists_of(count), _LISTS_EMBEDDED) if self.collection.connection.embedded else lists_of(count)
        return [Effort(k, lists, few) for lists in doubling(1, most)]

    def tell(self, now: Indexed, changed: Rows) -> None:
        with self._changing:
            _, overlay, waiting = self._state
            overlay = Overlay.of(now.vectors, np.union1d(overlay.changed, changed))
            self.labels = now.vectors
            self._state = State(now, overlay, np.union1d(waiting, changed))

    def waiting(self) -> int:
        """How many rows Milvus has not heard of yet."""
        return len(self._state.waiting)

    def catch_up(self) -> None:
        """Tells Milvus of everything that has changed; what it could not be told goes on waiting."""
        with self._changing:
            now, _, waiting = self._state
            self._state = self._state._replace(waiting=waiting[:0])
        try:
            self.collection.catch_up(now, waiting)
        except BaseException:
            with self._changing:  # more may have changed meanwhile
                self._state = self._state._replace(waiting=np.union1d(self._state.waiting, waiting))
            raise

    def close(self) -> None:
        self._ending.set()
        with self._keeping:
            keeper = self._keeper
        if keeper is not None:
            keeper.join(timeout=_PATIENCE)
        self.collection.connection.close()

    def save(self, folder: Path) -> dict[str, Any]:
        """Milvus holds all there is."""
        return {
            **super().save(folder),
            "collection": self.collection.name,
            "structure": self.collection.structure,
        }

    @classmethod
    def check(cls, uri: str | None) -> None:
        if uri is None or not is_embedded(uri):
            return
        if not uri.endswith(".db"):
            raise BadInput(
                f"{uri}: the embedded Milvus keeps its files in a folder whose name ends in .db; a cluster has "
                "an address that starts with http:// or https://"
            )
        if not Path(uri).resolve().parent.is_dir():
            raise BadInput(f"{uri}: there is no folder {Path(uri).resolve().parent}; make it, or give another --uri")

    @classmethod
    @contextmanager
    def build(
        cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance
    ) -> Iterator[tuple[LabelIndex, dict[str, Any]]]:
        where = INSIDE if uri is None else str(Path(uri).resolve()) if is_embedded(uri) else uri
        (folder / LIVING).mkdir()  # before the engine that may lie in it
        connection = MilvusConnection(str((folder / INSIDE).resolve()) if where == INSIDE else where)
        name = new_collection(now.model, secrets.token_hex(4))
        with closing(connection):
            connection.connect(attempts=4)
            try:
                made = filled(connection, name, now, progress)
                with closing(cls(made, now, Effort(1, 1, 1), np.empty(0, dtype=np.int64))) as index:
                    yield index, {"uri": where, BOUND: True}
            except BaseException:
                if where != INSIDE:  # it comes to nothing, and would stay there for ever
                    with suppress(BadInput), closing(MilvusConnection(where)) as again:
                        MilvusCollection(again, name, "").drop()
                raise

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> LabelIndex:
        return cls(collection_of(folder, about), now, Effort.from_dict(about["effort"]), changed)

    @classmethod
    def update(cls, folder: Path, about: dict[str, Any], now: Indexed, changed: Rows) -> None:
        collection = collection_of(folder, about)
        with closing(collection.connection) as connection:
            connection.connect(attempts=4)
            if collection.structure == HNSW and not all_of_length_1(now.vectors, changed[now.vectors.active[changed]]):
                raise BadInput(
                    f"{folder}: some labels now have vectors of other lengths than 1, for which the graph in "
                    "Milvus is not made; nothing was changed, build the index again"
                )
            collection.catch_up(now, changed, anyway=True)

    @classmethod
    def forget(cls, folder: Path, about: dict[str, Any]) -> str | None:
        if about.get("uri") == INSIDE:
            return None  # it goes with the folder
        name = str(about.get("collection"))
        if not re.fullmatch(new_collection("[0-9a-f]{8}", "[0-9a-f]{8}"), name):
            return f"the collection {name} is left alone: it is not one of umpteen's"
        try:
            collection = collection_of(folder, about)
            with closing(collection.connection):
                collection.drop()
        except (BadInput, KeyError) as reason:
            return f"the collection {name} may still be there: {reason}"
        return None

    @classmethod
    def size(cls, folder: Path, about: dict[str, Any]) -> int | None:
        uri = about.get("uri", INSIDE)
        if uri == INSIDE:
            return size_of(folder)
        return size_of(Path(uri)) if is_embedded(uri) else None


def all_of_length_1(labels: LiveVectors, rows: Rows) -> bool:
    """Whether these rows' vectors differ in nothing but their directions."""
    return all(
        bool(((labels.of(rows[start : start + _ROWS_AT_A_TIME]).norm(dim=1) - 1).abs() <= _ALIKE).all())
        for start in range(0, len(rows), _ROWS_AT_A_TIME)
    )


def filled(connection: MilvusConnection, name: str, now: Indexed, progress: Advance) -> MilvusCollection:
    """A new collection of this name that holds the labels."""
    labels = now.vectors
    structure = HNSW if all_of_length_1(labels, np.flatnonzero(labels.active)) else IVF_FLAT
    collection = MilvusCollection.create(connection, name, labels.dimension, structure, lists_of(len(labels)))
    collection.write(np.arange(len(labels)), now, progress)
    collection.mark(now)
    return collection


def collection_of(folder: Path, about: dict[str, Any]) -> MilvusCollection:
    """The labels of an index folder in Milvus. An address in it is believed only if the operator gives the same."""
    uri, refused = str(about["uri"]), None
    if uri == INSIDE:
        uri = str((folder / INSIDE).resolve())
    elif os.environ.get(ADDRESS) != uri:
        refused = (
            f"the model folder says that its labels are there, and is not believed: set {ADDRESS}={uri} if that "
            "is yours; until then search is exact"
        )
    return MilvusCollection(MilvusConnection(uri, refused=refused), about["collection"], about["structure"])


def new_collection(model: str, name: str) -> str:
    """What the labels of a model are called in Milvus."""
    return f"umpteen_{model}_{name}"


def _look_after(held: "ref[MilvusIndex]", ending: Event) -> None:
    """Until the index is closed, or nobody has it any more."""
    wait = _FIRST_WAIT  # the first time, too: changes come in bursts, and some processes end soon
    while not ending.wait(wait) and (index := held()) is not None:
        try:
            if index.away is not None or index.waiting():
                index.catch_up()
                index.away, wait = None, _FIRST_WAIT
        except Exception as error:  # whatever it is: answers stay exact, and Milvus gets another chance
            index.away = index.away or str(error)
            wait = min(2 * wait, _LONGEST_WAIT)
        del index
