"""Training texts that vote: the labels of a text's nearest neighbours among those the model was trained on.

memory.safetensors: the texts' vectors in half precision, and their labels. N texts, n queries, L labels, d: dimension.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.errors import DamagedModel
from umpteen.search.ranking import Ranking, top_k, values_at

MEMORY_FILE = "memory.safetensors"


@dataclass(frozen=True)
class Memory:
    """Vectors of texts, and which labels each of them has."""

    vectors: Tensor  # [N, d], of the query tower
    labels: csr_array  # [N, L], 1 where a text has a label
    neighbours: int = 20  # that vote
    temperature: float = 0.05  # of the softmax over their similarities, which weighs the votes

    @classmethod
    def of(cls, vectors: Tensor, relevant: csr_array) -> "Memory":
        """The memory of these texts; it has the vectors at the precision in which it is kept."""
        stored = relevant.copy()  # the dataset's own is not ours to change
        stored.data = (stored.data > 0).astype(np.float32)
        stored.eliminate_zeros()
        return cls(vectors.half().float(), stored)

    def nearest(self, queries: Tensor, own: NDArray[np.int64] | None = None) -> Ranking:
        """The nearest texts of each query; of queries that are themselves remembered, `own` says where, or −1."""
        excluding = None
        if own is not None:
            known = np.flatnonzero(own >= 0)
            pairs = np.ones(len(known), np.float32), (known, own[known])
            excluding = csr_array(pairs, shape=(len(own), len(self.vectors)))
        return top_k(queries, self.vectors, min(self.neighbours, len(self.vectors)), excluding=excluding)

    def votes(self, nearest: Ranking, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """For the labels rows[i] of each query i, the share of its neighbours' votes: between 0 and 1."""
        head = nearest.head(min(self.neighbours, nearest.width))
        peak = np.maximum(head.scores[:, :1], np.float32(-1e30))  # −∞ where there is no neighbour at all
        weights = np.exp((head.scores - peak) / self.temperature)
        weights /= np.maximum(weights.sum(1, keepdims=True), 1e-9)
        starts = np.arange(len(head) + 1) * head.width
        voters = csr_array(
            (weights.ravel().astype(np.float32), np.maximum(head.rows, 0).ravel(), starts),
            shape=(len(head), len(self.vectors)),
        )
        return values_at(csr_array(voters @ self.labels), rows)

    def with_labels(self, count: int) -> "Memory":
        """The memory for so many labels, none of whose new ones any text has."""
        if count == self.labels.shape[1]:
            return self
        known = self.labels
        return replace(self, labels=csr_array((known.data, known.indices, known.indptr), (known.shape[0], count)))

    def require(self, dimension: int) -> None:
        """Refuses a memory that no vector of this size can be compared with."""
        if len(self.vectors) == 0 or self.vectors.shape[1] != dimension:
            raise DamagedModel(
                f"the ranker remembers {tuple(self.vectors.shape)} numbers, but the encoder's vectors have {dimension} "
                "each; fit it again: `umpteen rerank fit`"
            )

    def save(self, folder: Path) -> None:
        tensors = {
            "vectors": self.vectors.half().contiguous(),
            "starts": torch.from_numpy(self.labels.indptr.astype(np.int64)),
            "labels": torch.from_numpy(self.labels.indices.astype(np.int32)),
        }
        save_file(tensors, folder / MEMORY_FILE)

    @classmethod
    def load(cls, folder: Path, labels: int, neighbours: int, temperature: float) -> "Memory":
        """What `save` wrote, for so many labels."""
        with safe_open(folder / MEMORY_FILE, framework="pt") as file:
            vectors, starts, rows = (file.get_tensor(name) for name in ("vectors", "starts", "labels"))
        if vectors.ndim != 2 or len(starts) != len(vectors) + 1:
            raise ValueError(f"{tuple(vectors.shape)} vectors do not fit {len(starts):,} places")
        known = csr_array((np.ones(len(rows), np.float32), rows.numpy(), starts.numpy()), shape=(len(vectors), labels))
        known.check_format()
        return cls(vectors.float(), known, neighbours, temperature)
