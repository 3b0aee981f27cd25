"""A FAISS index over labels that change: its candidates get exact scores from the labels' own vectors.

What was added or changed since it was built is searched exactly beside it, so a change is cheap and never missed;
removed and changed rows are hidden in it. Building it again takes them in.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.errors import BadInput, DamagedModel
from umpteen.retrieval.effort import Effort
from umpteen.retrieval.exact_index import changed_best, checked_queries, completed
from umpteen.retrieval.faiss_structures import Structure
from umpteen.retrieval.index import best_of
from umpteen.retrieval.live_vectors import LiveVectors, Rows
from umpteen.retrieval.ranking import NO_LABEL, Ranking
from umpteen.retrieval.rescoring import exact_scores

STRUCTURE = "index.faiss"
_AT_A_TIME = 65_536

Progress = Callable[[int, int], None]


class State(NamedTuple):
    """What one search sees, whatever is added or removed meanwhile."""

    labels: LiveVectors  # all there is to find, with exact vectors
    fresh: LiveVectors  # of these, what the structure does not hold as it is now
    visible: NDArray[np.bool_] | None  # [positions] of the structure that count; None: all


class FaissIndex:
    """The structure holds the labels as they were when it was built, in the order of their rows."""

    def __init__(self, structure: Structure, labels: LiveVectors, effort: Effort) -> None:
        rows = np.flatnonzero(labels.active)
        if len(structure) != len(rows):
            raise DamagedModel(
                f"the index holds {len(structure):,} vectors but there were {len(rows):,} labels; build it again"
            )
        self.kind = structure.kind
        self.effort = effort
        self._structure = structure
        self._rows = rows
        self._state = State(labels, LiveVectors(torch.empty(0, labels.dimension)), None)
        self._changing = Lock()
        self._position = np.full(len(labels), -1, dtype=np.int64)  # of each row
        self._position[rows] = np.arange(len(rows))

    @classmethod
    def build(cls, kind: str, labels: LiveVectors, effort: Effort, progress: Progress | None = None) -> "FaissIndex":
        """An index of this kind over the labels as they are now."""
        rows = np.flatnonzero(labels.active)

        def parts() -> Iterator[NDArray[np.float32]]:
            for start in range(0, len(rows), _AT_A_TIME):
                yield labels.of(rows[start : start + _AT_A_TIME]).numpy()

        structure = Structure.build(kind, parts, len(rows), labels.dimension, progress)
        return cls(structure, labels, effort)

    def search(self, queries: Tensor, k: int) -> Ranking:
        labels, fresh, visible = self._state
        queries = checked_queries(queries, labels.dimension, k)
        candidates = self.candidates(queries, self.effort.for_k(k), visible)
        scores = exact_scores(queries, candidates, labels)
        if len(fresh.changed):
            new, new_scores = changed_best(queries, fresh, k)
            candidates = np.concatenate([candidates, new], 1)
            scores = np.concatenate([scores, new_scores], 1)
        best = best_of(candidates, scores, k, len(labels))
        return completed(best, queries, labels)

    def candidates(self, queries: Tensor, effort: Effort, visible: NDArray[np.bool_] | None = None) -> Rows:
        """The rows that the structure finds for each query with this effort, best first; −1 where none is left."""
        positions = self._structure.search(queries.numpy(), effort, visible)
        return np.where(positions == NO_LABEL, NO_LABEL, self._rows[positions])

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        with self._changing:
            labels, fresh, visible = self._state
            labels.check(rows, vectors)
            differs = labels.differing(rows, vectors)
            rows, vectors = rows[differs], vectors[differs]
            fresh = fresh.with_rows(rows, vectors)
            self._state = State(labels.with_rows(rows, vectors), fresh, self._without(rows, visible))

    def remove(self, rows: NDArray[np.int64]) -> None:
        with self._changing:
            labels, fresh, visible = self._state
            fresh = fresh.without(rows[rows < len(fresh)])
            self._state = State(labels.without(rows), fresh, self._without(rows, visible))

    def close(self) -> None:
        """There is nothing to let go of."""

    def waiting(self) -> int:
        """How many rows are searched one by one until the index is built again."""
        return len(self._state.fresh.changed)

    @property
    def labels(self) -> LiveVectors:
        """All there is to find now."""
        return self._state.labels

    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first."""
        return self._structure.efforts(k)

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the index as it was built into a folder; returns what `open` has to be told."""
        if self.waiting() or self._state.visible is not None:
            raise BadInput("labels have changed since the index was built; build it again to save it")
        self._structure.save(folder / STRUCTURE)
        return {"kind": self.kind, "effort": self.effort.to_dict()}

    @classmethod
    def open(cls, folder: Path, labels: LiveVectors, settings: dict[str, Any]) -> "FaissIndex":
        """The index as it was saved of these labels."""
        return cls(Structure.load(settings["kind"], folder / STRUCTURE), labels, Effort.from_dict(settings["effort"]))

    def _without(self, rows: Rows, visible: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Which positions count once these rows count no more."""
        positions = self._position[rows[rows < len(self._position)]]
        positions = positions[positions >= 0]
        if len(positions) == 0:
            return visible
        visible = np.ones(len(self._rows), dtype=np.bool_) if visible is None else visible.copy()
        visible[positions] = False
        return visible
