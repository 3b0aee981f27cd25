"""Labels in Milvus: it finds candidates, which get exact scores from the labels' own vectors.

What has changed since the index was opened is searched exactly beside it, whether Milvus has heard of it or not; so a
change waits for nobody, and `catch_up` writes it there when Milvus can be reached.

Milvus compares by inner product. Where all vectors have length 1 it keeps a graph (HNSW); where lengths differ such a
graph would not reach all labels (milvus#51821), and it keeps lists (IVF_FLAT).
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.retrieval.effort import Effort, doubling, with_spare
from umpteen.retrieval.exact_index import changed_best, checked_queries, completed
from umpteen.retrieval.index import best_of
from umpteen.retrieval.live_vectors import LiveVectors, Rows
from umpteen.retrieval.milvus_collection import AUTO, HNSW, IVF_FLAT, MOST_RESULTS, MilvusCollection, NamedRows
from umpteen.retrieval.milvus_connection import MilvusConnection
from umpteen.retrieval.ranking import NO_LABEL, Ranking
from umpteen.retrieval.rescoring import exact_scores

_ALIKE = 1e-3  # lengths that differ from 1 by no more are all 1
_ROWS_AT_A_TIME = 16_384
_LISTS_EMBEDDED = 128  # nlist of milvus-lite
_STEPS = 2  # of a graph's search effort that are tried in a doubling

Progress = Callable[[int, int], None]


class State(NamedTuple):
    """What one search sees, whatever is added or removed meanwhile."""

    labels: LiveVectors  # all there is to find, with exact vectors
    fresh: LiveVectors  # of these, what has changed since the index was opened
    waiting: Rows  # rows that Milvus has not heard of yet, sorted
    version: int  # of the catalogue: all of its changes are among these labels, perhaps some of the next version's, too


class MilvusIndex:
    """`catalogue` gives the labels as they are now: their keys and versions are kept in Milvus, too."""

    kind = "milvus"

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
        progress: Progress | None = None,
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
