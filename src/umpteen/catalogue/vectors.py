"""Every vector a label ever had since the model was written: the mapped ones, and those of each version since."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows = NDArray[np.int64]


class Given(NamedTuple):
    """The vectors that a version gave to rows."""

    version: int
    rows: Rows  # [n]
    vectors: Tensor  # [n, d]


class VectorHistory:
    """The first vectors never change; later versions lie over them, the newest on top."""

    def __init__(self, first: Tensor) -> None:
        self.first = first  # [L, d]
        self._given: list[Given] = []
        self._all: Tensor | None = None

    def give(self, version: int, rows: Rows, vectors: Tensor) -> None:
        """These rows have these vectors from this version on."""
        if len(rows):
            self._given.append(Given(version, rows, vectors))
            self._all = None

    def of(self, rows: Rows, version: int | None = None) -> Tensor:
        """The vectors of rows as of a version, by default now."""  # [n, d]
        found = torch.zeros(len(rows), self.first.shape[1])
        missing = np.ones(len(rows), dtype=np.bool_)
        for given in reversed(self._given):
            if version is not None and given.version > version:
                continue
            if not missing.any():
                break
            order = np.argsort(given.rows)
            place = np.minimum(np.searchsorted(given.rows, rows, sorter=order), len(order) - 1)
            here = missing & (given.rows[order[place]] == rows)
            found[torch.from_numpy(here)] = given.vectors[torch.from_numpy(order[place[here]])]
            missing &= ~here
        missing &= rows < len(self.first)
        found[torch.from_numpy(missing)] = self.first[torch.from_numpy(rows[missing])].float()
        return found

    def all(self, count: int) -> Tensor:
        """The vectors of all rows, now: the first ones themselves if there are no others."""  # [count, d]
        if not self._given:
            return self.first
        if self._all is None or len(self._all) != count:
            self._all = torch.zeros(count, self.first.shape[1])
            self._all[: len(self.first)] = self.first
            for given in self._given:
                self._all[torch.from_numpy(given.rows)] = given.vectors
        return self._all
