"""Texts that vote: those the model was trained on for the labels they have, corrected ones for and against labels.

memory.safetensors: the texts' vectors in half precision, and their labels. texts.*: the texts themselves, which only
explanations read. index.faiss, memory_index.json: an index over many vectors, and how much it finds.
N texts, E corrected texts, n queries, L labels, d: dimension.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from scipy.sparse import csr_array, vstack

from umpteen.data.texts import Texts, TextsWriter
from umpteen.encoders.folder import map_arrays
from umpteen.errors import BadInput, DamagedModel
from umpteen.files.progress import Advance, silent
from umpteen.search.index import Effort, Indexed, LabelIndex, LiveVectors, exact_search, product, search_many
from umpteen.search.ranking import NO_LABEL, Ranking, Vectors, as_floats, of_length_1, values_at

MEMORY_FILE, TEXTS, INDEX_FILE = "memory.safetensors", "texts", "memory_index.json"
KIND, RECALL = "faiss-ivfpq", 0.98  # of an index, and what it is to find
QUERIES = 500  # by which that is judged
TEMPERATURE, WEIGHT = 0.07, 4.0  # chosen on validation of wordnet-nouns (docs/results/notebook.md)
LEAST = 0.02  # what is further away has no say at all: unrelated texts are answered as ever, to the bit
PAIRS_AT_A_TIME = 2**24  # of queries and examples


def weigh(nearest: Ranking, temperature: float) -> NDArray[np.float32]:
    """How much the vote of each of these neighbours counts, by a softmax over similarities: a query's add up to 1."""
    peak = np.maximum(nearest.scores[:, :1], np.float32(-1e30))  # −∞ where there is no neighbour at all
    weights: NDArray[np.float32] = np.exp((nearest.scores - peak) / np.float32(temperature))
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-9)
    return weights


@dataclass(frozen=True)
class Memory:
    """Vectors of texts, and which labels each of them has."""

    vectors: NDArray[np.float16]  # [N, d], of the query tower: mapped, if they were read from a folder
    labels: csr_array  # [N, L], 1 where a text has a label
    texts: Texts | None = None  # [N], if they may be shown
    index: LabelIndex | None = None  # over the vectors
    measured: dict[str, Any] | None = None  # how much the index finds of what exact search finds

    @classmethod
    def of(cls, vectors: Vectors, relevant: csr_array, texts: Texts | None = None) -> "Memory":
        stored = relevant.copy()  # the dataset's own is not ours to change
        stored.data = (stored.data > 0).astype(np.float32)
        stored.eliminate_zeros()
        return cls(as_floats(vectors).astype(np.float16), stored, texts)

    def nearest(self, queries: Vectors, count: int, excluding: csr_array | None = None) -> Ranking:
        """The nearest texts of each query; pairs of a query and a text that are stored in `excluding` are left out."""
        count = min(count, len(self.vectors))
        if excluding is not None:
            return search_many(queries, self.vectors, count, excluding=excluding)
        if self.index is not None:
            return self.index.search(queries, count)
        return exact_search(queries, LiveVectors(self.vectors), count)

    def with_index(self, count: int, progress: Advance = silent) -> "Memory":
        """The memory with an index that finds nearly all of the `count` nearest texts; itself where there can be none.

        It is judged by remembered texts, none of which counts among its own neighbours.
        """
        import torch

        from umpteen.search.certificate import interval, tune
        from umpteen.search.faiss import FaissIndex

        some = as_floats(self.vectors[:: -(-len(self.vectors) // QUERIES)])
        try:
            index = FaissIndex.over(KIND, LiveVectors(self.vectors), Effort(1, 1, 1), progress)
            found = tune(index, torch.from_numpy(some), count + 1, RECALL).recalls
        except BadInput:  # FAISS is not installed, or misses too many
            return self
        found = np.maximum(0, (found * (count + 1) - 1) / count)
        about = {"recall": float(found.mean()), "recall_interval": [*interval(found)]}
        return replace(self, index=index, measured={**about, "neighbours": count, "queries": len(found)})

    def same(self, texts: Sequence[str]) -> csr_array:
        """Which of these texts are among the remembered ones."""  # [n, N]
        if self.texts is None:
            advice = "judge it by other texts, leave it out (--no-ranker), or fit it with keep_texts=true"
            raise BadInput(f"the ranker keeps no texts, so training texts would vote for themselves; {advice}")
        places: dict[str, list[int]] = {text: [] for text in texts}
        for row, text in enumerate(self.texts):
            if text in places:
                places[text].append(row)
        rows = [places[text] for text in texts]
        starts = np.cumsum([0, *map(len, rows)])
        found = np.ones(starts[-1]), np.fromiter(chain.from_iterable(rows), np.int32, starts[-1]), starts
        return csr_array(found, shape=(len(rows), len(self.texts)))

    def votes(self, nearest: Ranking, rows: NDArray[np.int32], temperature: float) -> NDArray[np.float32]:
        """For the labels rows[i] of each query i, the share of its neighbours' votes: between 0 and 1."""
        voters, starts = np.maximum(nearest.rows, 0).ravel(), np.arange(len(nearest) + 1) * nearest.width
        shape = len(nearest), len(self.vectors)
        weights = csr_array((weigh(nearest, temperature).ravel(), voters, starts), shape=shape)
        return values_at(csr_array(weights @ self.labels), rows)

    def texts_with(self, label: int, count: int) -> list[str]:
        """The first texts that have a label; none if texts are not kept."""
        if self.texts is None:
            return []
        found = np.flatnonzero(self.labels.indices == label)[:count]
        return [self.texts[row] for row in (np.searchsorted(self.labels.indptr, found, "right") - 1).tolist()]

    def with_labels(self, count: int) -> "Memory":
        """The memory for so many labels, none of whose new ones any text has."""
        if count == self.labels.shape[1]:
            return self
        known = self.labels
        return replace(self, labels=csr_array((known.data, known.indices, known.indptr), (known.shape[0], count)))

    def require(self, dimension: int) -> None:
        """Refuses a memory that no vector of this size can be compared with."""
        if len(self.vectors) == 0 or self.vectors.shape[1] != dimension:
            both = f"{tuple(self.vectors.shape)} numbers, but the encoder's vectors have {dimension} each"
            raise DamagedModel(f"the ranker remembers {both}; fit it again: `umpteen rerank fit`")

    def save(self, folder: Path) -> None:
        vectors, starts = np.ascontiguousarray(self.vectors), self.labels.indptr.astype(np.int64)
        rows = self.labels.indices.astype(np.int32)
        save_file({"vectors": vectors, "starts": starts, "labels": rows}, folder / MEMORY_FILE)
        if self.index is not None:
            about = {**self.index.save(folder), "measured": self.measured}
            (folder / INDEX_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if self.texts is not None:
            with TextsWriter(folder, TEXTS) as kept:
                for text in self.texts:
                    kept.append(text)

    @classmethod
    def load(cls, folder: Path, labels: int) -> "Memory":
        """What `save` wrote, for so many labels; without its index where FAISS is not installed."""
        arrays = map_arrays(folder / MEMORY_FILE)
        vectors, starts, rows = (arrays[name] for name in ("vectors", "starts", "labels"))
        if vectors.ndim != 2 or len(starts) != len(vectors) + 1:
            raise ValueError(f"{tuple(vectors.shape)} vectors do not fit {len(starts):,} places")
        known = csr_array((np.ones(len(rows), np.float32), rows, starts), shape=(len(vectors), labels))
        known.check_format()
        texts = Texts.open(folder, TEXTS) if (folder / f"{TEXTS}.sha256").exists() else None
        if texts is not None and (len(texts) != len(vectors) or (texts.byte_lengths() < 0).any()):
            raise ValueError(f"{len(texts):,} texts are kept of {len(vectors):,} that are remembered, or end early")
        if not (folder / INDEX_FILE).exists():
            return cls(vectors, known, texts)
        from umpteen.search.faiss import FaissIndex

        about = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        now, held = Indexed("", 0, (), LiveVectors(vectors)), np.arange(len(vectors))
        try:
            index = FaissIndex.open(folder, about, now, held, held[:0])
        except BadInput:  # FAISS is not installed
            return cls(vectors, known, texts)
        return cls(vectors, known, texts, index, about["measured"])


@dataclass(frozen=True)
class Corrections:
    """Vectors of corrected texts, and what was said of their labels."""

    vectors: NDArray[np.float32]  # [E, d], of the query tower, of length 1
    said: csr_array  # [E, L], 1 where a label is right, −1 where it is wrong
    temperature: float = TEMPERATURE
    weight: float = WEIGHT

    @classmethod
    def of(cls, vectors: Vectors, said: csr_array) -> "Corrections":
        return cls(of_length_1(as_floats(vectors)), said)

    def votes(self, queries: Vectors, excluding: csr_array | None = None) -> csr_array:
        """weight · Σ exp((cosine − 1) / temperature) · said over the examples, cut to [−1, 1]; nothing for pairs stored
        in `excluding`."""  # [n, L]
        step, queries = max(1, PAIRS_AT_A_TIME // len(self.vectors)), as_floats(queries)
        blocks = (of_length_1(queries[start : start + step]) for start in range(0, max(1, len(queries)), step))
        near = (np.exp((product(block, self.vectors.T) - 1) / np.float32(self.temperature)) for block in blocks)
        found = csr_array(vstack([csr_array(np.where(some >= LEAST, some, 0)) @ self.said for some in near]))
        found.data = np.clip(self.weight * found.data, -1, 1).astype(np.float32)
        if excluding is not None:
            stored = csr_array((np.ones(excluding.nnz, np.float32), excluding.indices, excluding.indptr), found.shape)
            found = csr_array(found - found.multiply(stored))
        found.eliminate_zeros()
        return found


def shifts(ranking: Ranking, votes: csr_array) -> NDArray[np.float32]:
    """What the votes add to each score of a ranking; a whole vote carries a label to the end of its text's range.

    That is: up to 1, or the best score if it is more; down to 0, or the least score if it is less.
    """  # [n, k]
    share, scores = values_at(votes, ranking.rows), np.where(ranking.rows == NO_LABEL, 0, ranking.scores)
    top, bottom = scores.max(1, keepdims=True, initial=1), scores.min(1, keepdims=True, initial=0)
    return np.asarray(np.where(share > 0, share * (top - scores), share * (scores - bottom)), dtype=np.float32)


def corrected(ranking: Ranking, votes: csr_array, score: Callable[[NDArray[np.int32]], NDArray[np.float32]]) -> Ranking:
    """The ranking with its votes counted; of equal scores, the label with more of them comes first.

    Labels that are voted for and not in the ranking join it, with the scores that `score` gives for rows [n, …] of
    labels, −1 where there is none.
    """
    wanted = votes.maximum(0)
    joining = Ranking.from_csr(wanted, max(1, int(np.diff(wanted.indptr).max(initial=0)))).without(ranking.to_csr())
    rows = np.concatenate([ranking.rows, joining.rows], 1)
    wide = Ranking(rows, np.concatenate([ranking.scores, score(joining.rows)], 1), ranking.labels)
    scores = wide.scores + shifts(wide, votes)
    return Ranking(rows, scores, ranking.labels).in_order(np.lexsort((-values_at(votes, rows), -scores)))
