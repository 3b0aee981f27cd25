"""Scores of texts the model was not fitted on, and which of them belong to right labels: what calibration learns from.

N texts, k labels each, best first.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import BadInput
from umpteen.retrieval.ranking import Ranking, contains
from umpteen.storage import write_atomically


@dataclass(frozen=True)
class HeldOut:
    """A text's labels beyond the first k are known by number only: those that are right were not found."""

    scores: NDArray[np.float32]  # [N, k]; −inf where a text has fewer labels
    right: NDArray[np.bool_]  # [N, k]
    positives: NDArray[np.int64]  # [N], right labels, found or not

    @classmethod
    def of(cls, ranking: Ranking, truth: csr_array) -> HeldOut:
        """A ranking against the truth; pairs to ignore must be in neither."""
        right = contains(truth, ranking.rows)
        return cls(ranking.scores, right, np.diff(truth.indptr).astype(np.int64))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def real(self) -> NDArray[np.bool_]:
        """Where there is a label."""  # [N, k]
        return np.isfinite(self.scores)

    def take(self, texts: NDArray[np.bool_] | NDArray[np.int64]) -> HeldOut:
        return HeldOut(self.scores[texts], self.right[texts], self.positives[texts])

    def head(self, k: int) -> HeldOut:
        """The best k labels of each text."""
        return HeldOut(self.scores[:, :k], self.right[:, :k], self.positives)

    def join(self, other: HeldOut) -> HeldOut:
        """These texts, then the other's."""
        return HeldOut(
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.right, other.right]),
            np.concatenate([self.positives, other.positives]),
        )

    def folds(self, count: int, seed: int = 0) -> NDArray[np.int64]:
        """The fold of each text, by chance and of equal sizes; a text's labels stay together."""  # [N]
        folds = np.arange(len(self)) % count
        return np.random.default_rng(seed).permutation(folds)

    def require_enough(self) -> None:
        """Refuses what nothing can be learnt from."""
        pairs, right = int(self.real.sum()), int(self.right.sum())
        if len(self) < 2 or right in (0, pairs):
            raise BadInput(
                f"{len(self):,} held-out texts, for which {right:,} of {pairs:,} labels found are right, are too few "
                "to calibrate on: right and wrong ones are needed; hold out more"
            )

    def save(self, path: Path) -> None:
        """One .npz without pickle, written whole or not at all."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, scores=self.scores, right=self.right, positives=self.positives)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["scores"], arrays["right"], arrays["positives"])
