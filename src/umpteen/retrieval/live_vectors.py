"""Each label's current vector: a mapped base that never changes, and an overlay of rows added or changed since.

A snapshot: changing rows gives a new one that shares the base, so whoever searches the old one is not disturbed.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.retrieval.exact import require_finite

Rows = NDArray[np.int64]


class LiveVectors:
    """Rows never shift. A removed row keeps its place and is in nobody's way; given a vector again, it is back."""

    def __init__(
        self,
        base: Tensor,
        active: NDArray[np.bool_] | None = None,
        changed: Rows | None = None,
        vectors: Tensor | None = None,
    ) -> None:
        self.base = base  # [L, d]
        self.active = np.ones(len(base), dtype=np.bool_) if active is None else active  # [rows], rows ≥ L
        self.changed = np.empty(0, dtype=np.int64) if changed is None else changed  # [C], sorted, all active
        self.vectors = torch.empty(0, base.shape[1]) if vectors is None else vectors  # [C, d]
        out = ~self.active[: len(base)]
        out[self.changed[: np.searchsorted(self.changed, len(base))]] = True
        self.hidden: Rows = np.flatnonzero(out)  # base rows whose base vector counts for nobody

    def __len__(self) -> int:
        """How many rows there are, removed ones included."""
        return len(self.active)

    @property
    def dimension(self) -> int:
        return int(self.base.shape[1])

    def count(self) -> int:
        """How many rows can be found."""
        return int(np.count_nonzero(self.active))

    def of(self, rows: Rows) -> Tensor:
        """The current vectors of these rows, in their order, as float32."""  # [n, d]
        if len(self.changed) == 0:
            return self.base[torch.from_numpy(rows)].float()
        place = np.minimum(np.searchsorted(self.changed, rows), len(self.changed) - 1)
        new = self.changed[place] == rows
        found = torch.empty(len(rows), self.dimension)
        found[torch.from_numpy(~new)] = self.base[torch.from_numpy(rows[~new])].float()
        found[torch.from_numpy(new)] = self.vectors[torch.from_numpy(place[new])]
        return found

    def with_rows(self, rows: Rows, vectors: NDArray[np.float32]) -> "LiveVectors":
        """These rows have these vectors from now on, new rows and known ones."""
        self.check(rows, vectors)
        given = torch.from_numpy(np.array(vectors, dtype=np.float32))  # a copy: the caller's may change
        order = np.argsort(rows)
        rows, given = rows[order], given[torch.from_numpy(order)]
        active = self.active
        if len(rows) and rows[-1] >= len(active):
            active = np.concatenate([active, np.zeros(int(rows[-1]) + 1 - len(active), dtype=np.bool_)])
        active = active.copy()
        active[rows] = True
        # A row that takes its base vector back needs no place in the overlay.
        old = np.flatnonzero(rows < len(self.base))
        back = np.zeros(len(rows), dtype=np.bool_)
        back[old] = (self.base[torch.from_numpy(rows[old])].float() == given[torch.from_numpy(old)]).all(1).numpy()
        keep = ~np.isin(self.changed, rows)
        changed = np.concatenate([self.changed[keep], rows[~back]])
        everything = torch.cat([self.vectors[torch.from_numpy(keep)], given[torch.from_numpy(~back)]])
        order = np.argsort(changed)
        return LiveVectors(self.base, active, changed[order], everything[torch.from_numpy(order)])

    def without(self, rows: Rows) -> "LiveVectors":
        """These rows are found no more; one that was never here came and went meanwhile, and takes its place."""
        if len(rows) and rows.min() < 0:
            raise BadInput(f"row {int(rows.min())} is to be removed; rows count from 0")
        missing = max(0, int(rows.max()) + 1 - len(self)) if len(rows) else 0
        active = np.concatenate([self.active, np.zeros(missing, dtype=np.bool_)])
        active[rows] = False
        keep = active[self.changed]
        return LiveVectors(self.base, active, self.changed[keep], self.vectors[torch.from_numpy(keep)])

    def differing(self, rows: Rows, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which of these rows are not here with exactly these vectors."""
        differs = np.ones(len(rows), dtype=np.bool_)
        known = np.flatnonzero(rows < len(self))
        known = known[self.active[rows[known]]]
        differs[known] = (self.of(rows[known]).numpy() != vectors[known]).any(1)
        return differs

    def save(self, path: Path) -> None:
        """Writes what differs from the base."""
        removed, rows = np.flatnonzero(~self.active), np.array([len(self)])
        tensors = {"changed": self.changed, "removed": removed, "rows": rows, "vectors": self.vectors.numpy()}
        path.write_bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))

    @classmethod
    def open(cls, path: Path, base: Tensor) -> "LiveVectors":
        """What was saved, over the same base."""
        found = load_file(path)
        rows, changed, removed = int(found["rows"][0]), found["changed"], found["removed"]
        # A row beyond the base has a vector of its own, or was removed.
        if not len(base) <= rows <= len(base) + len(changed) + len(removed):
            raise BadInput(f"{path}: knows {rows:,} of {len(base):,} labels; build the index again")
        for some in (changed, removed):
            if len(some) and not (some.min() >= 0 and some.max() < rows):
                raise BadInput(f"{path}: names row {int(some.max()):,} of {rows:,}; build the index again")
        if found["vectors"].shape != (len(changed), base.shape[1]):
            raise BadInput(
                f"{path}: has {found['vectors'].shape} vectors of {len(changed):,} rows; build the index again"
            )
        active = np.ones(rows, dtype=np.bool_)
        active[removed] = False
        return cls(base, active, changed, torch.from_numpy(found["vectors"]))

    def check(self, rows: Rows, vectors: NDArray[np.float32]) -> None:
        """Refuses what cannot be rows and their vectors."""
        if vectors.shape != (len(rows), self.dimension):
            raise BadInput(
                f"{len(rows):,} rows in {self.dimension} dimensions need as many vectors, "
                f"but these have the shape {vectors.shape}"
            )
        if len(rows) and rows.min() < 0:
            raise BadInput(f"row {int(rows.min())} is no row; rows count from 0")
        if len(np.unique(rows)) != len(rows):
            raise BadInput("a row is given twice in one change; give each once")
        require_finite("label", torch.from_numpy(vectors))
