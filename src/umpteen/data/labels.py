"""The label catalogue, queries with those of its labels that are right, and the batches training draws of them.

What is right is a sparse matrix in one canonical form; batches follow from seeds alone.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, eye_array, vstack

from umpteen.data.texts import Texts
from umpteen.errors import BadInput

Rows = NDArray[np.integer]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]  # queries, label rows, weights


class UniqueKeys:
    """The rows of keys, of which no two may be the same, in whatever Unicode form."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._decomposed: dict[str, int] = {}  # rows of keys that are not in NFC, by their NFC

    def add(self, key: str) -> int:
        """The row of the key: the next one, or that of an earlier key which is the same."""
        form = unicodedata.normalize("NFC", key)
        first = self.rows.get(key, self.rows.get(form, self._decomposed.get(form)))
        if first is not None:
            return first
        if form != key:
            self._decomposed[form] = len(self.rows)
        self.rows[key] = len(self.rows)
        return len(self.rows) - 1


class LabelCatalogue:
    """Keys are unique and texts are not empty; two labels may share a text, never a key."""

    def __init__(self, keys: Iterable[str], texts: Iterable[str]) -> None:
        self.keys: list[str] = list(keys)
        self.texts = texts if isinstance(texts, Texts) else Texts.of(texts)
        if len(self.keys) != len(self.texts):
            raise BadInput(f"{len(self.keys):,} label keys but {len(self.texts):,} label texts; each label needs both")
        unique = UniqueKeys()
        self._rows = unique.rows
        for row, (key, text) in enumerate(zip(self.keys, self.texts, strict=True)):
            first = unique.add(key)
            if first != row:
                rows = f"rows {first:,} and {row:,}" + ("" if self.keys[first] == key else ", in two Unicode forms")
                raise BadInput(f"label key {key!r} stands twice, in {rows}; keys must be unique")
            if not key.strip():
                raise BadInput(f"the label in row {row:,} (text {text!r}) has an empty key; give it one")
            if not text.strip():
                raise BadInput(f"label {key!r} in row {row:,} has an empty text; give it one or leave the label out")

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelCatalogue) and self.keys == other.keys and self.texts == other.texts

    def __repr__(self) -> str:
        return f"<{len(self):,} labels>"

    def row(self, key: str) -> int:
        """The label's position in every matrix."""
        if key not in self._rows:
            raise BadInput(f"there is no label with the key {key!r}")
        return self._rows[key]

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def find(self, key: str) -> int | None:
        """The label's row, or None if there is no such key."""
        return self._rows.get(key)


@dataclass(frozen=True, eq=False)
class Relevance:
    """Weights are float32 and ≥ 0, label rows are sorted and never repeat within a query.

    A stored weight of 0 means: relevant, so never pushed down, but not pulled up either.
    A pair given twice counts once, with its greater weight.
    """

    matrix: csr_array

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _canonical(self.matrix))

    @classmethod
    def from_lists(
        cls, rows: Sequence[Sequence[int]], labels: int, weights: Sequence[Sequence[float]] | None = None
    ) -> Relevance:
        """One list of label rows for each query, with weights of the same shape or 1 everywhere."""
        counts = [len(row) for row in rows]
        if weights is not None and [len(row) for row in weights] != counts:
            raise BadInput("weights and label rows differ in shape; give each pair exactly one weight")
        found = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
        values = np.ones(len(found)) if weights is None else np.fromiter(chain.from_iterable(weights), dtype=np.float32)
        return cls.from_pairs(np.repeat(np.arange(len(rows)), counts), found, values, (len(rows), labels))

    @classmethod
    def from_pairs(cls, queries: Rows, rows: Rows, weights: NDArray[Any], shape: tuple[int, int]) -> Relevance:
        """Pairs of a query and a label row with their weights, in any order."""
        if (np.diff(queries) < 0).any():
            order = np.argsort(queries, kind="stable")
            queries, rows, weights = queries[order], rows[order], weights[order]
        starts = np.searchsorted(queries, np.arange(shape[0] + 1))
        return cls(cast(csr_array, csr_array((weights, rows, starts), shape=shape)))

    def of_labels(self, at_least: float) -> Relevance:
        """Each label as a query: relevant are labels that at least this share of its own queries have, by that share.

        Gandalf's augmentation (Kharbanda et al., 2024); a label without queries has itself alone.
        """
        has = csr_array((self.matrix > 0).astype(np.float32))
        together = csr_array(has.T @ has)
        together.data /= np.repeat(np.maximum(1, together.diagonal()), np.diff(together.indptr))
        together.data[together.data < at_least] = 0
        together.eliminate_zeros()
        return Relevance(csr_array(together.maximum(eye_array(self.labels, format="csr"))))

    @classmethod
    def empty(cls, queries: int, labels: int) -> Relevance:
        return cls(csr_array((queries, labels)))

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relevance) and self.fingerprint() == other.fingerprint()

    def __repr__(self) -> str:
        return f"<{self.pairs:,} pairs of {len(self):,} queries and {self.labels:,} labels>"

    @property
    def labels(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def pairs(self) -> int:
        return int(self.matrix.indptr[-1])

    @property
    def graded(self) -> bool:
        """Whether any weight differs from 1."""
        return bool((self.matrix.data != 1).any())

    def of(self, query: int) -> NDArray[np.int32]:
        """The label rows of one query, ascending."""
        return np.asarray(self.matrix.indices[self.matrix.indptr[query] : self.matrix.indptr[query + 1]])

    def weights_of(self, query: int) -> NDArray[np.float32]:
        """The weights of one query's labels, in the order of `of`."""
        return np.asarray(self.matrix.data[self.matrix.indptr[query] : self.matrix.indptr[query + 1]])

    def take(self, rows: ArrayLike) -> Relevance:
        """These queries in this order."""
        return Relevance(self.matrix[np.asarray(rows)])

    def moved(self, rows: Rows, labels: int) -> Relevance:
        """The same pairs with label j in row rows[j] of so many; those in row -1 are left out."""
        moved = rows[self.matrix.indices]
        kept = moved >= 0
        starts = np.concatenate([[0], np.cumsum(kept)])[self.matrix.indptr]
        return Relevance(csr_array((self.matrix.data[kept], moved[kept], starts), shape=(len(self), labels)))

    def without(self, other: Relevance) -> Relevance:
        """The pairs that are not stored in the other, whatever their weights."""
        if self.matrix.shape != other.matrix.shape:
            both = f"{other.matrix.shape} cannot be taken from pairs over {self.matrix.shape}"
            raise BadInput(f"pairs over {both}; are they of the same split?")
        if other.pairs == 0:
            return self
        query, gone = _queries_of(self.matrix), _queries_of(other.matrix)
        kept = ~np.isin(query * self.labels + self.matrix.indices, gone * self.labels + other.matrix.indices)
        return Relevance.from_pairs(query[kept], self.matrix.indices[kept], self.matrix.data[kept], self.matrix.shape)

    def either(self, other: Relevance) -> Relevance:
        """Every pair that is stored here or in the other, at weight 1."""
        queries = np.concatenate([_queries_of(self.matrix), _queries_of(other.matrix)])
        rows = np.concatenate([self.matrix.indices, other.matrix.indices])
        return Relevance.from_pairs(queries, rows, np.ones(len(rows)), self.matrix.shape)

    def stack(self, other: Relevance) -> Relevance:
        """These queries, then the other's."""
        if self.labels != other.labels:
            raise BadInput(f"cannot join relevance over {self.labels:,} and over {other.labels:,} labels")
        return Relevance(vstack([self.matrix, other.matrix], format="csr"))

    def label_counts(self) -> NDArray[np.int64]:
        """How many queries each label is relevant for."""
        return np.bincount(self.matrix.indices, minlength=self.labels).astype(np.int64)

    def fingerprint(self) -> str:
        """A sha256 of shape, rows and weights."""
        digest = hashlib.sha256(f"{len(self)}×{self.labels}".encode())
        for values, kind in ((self.matrix.indptr, "<i8"), (self.matrix.indices, "<i4"), (self.matrix.data, "<f4")):
            digest.update(np.ascontiguousarray(values, dtype=kind).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Split:
    """Queries with the labels that are right for them, and the pairs that neither training nor scoring may see."""

    texts: Texts
    relevance: Relevance
    filtered: Relevance

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.relevance) == len(self.filtered):
            pairs = f"{len(self.relevance):,} rows of relevance and {len(self.filtered):,} rows of filtered pairs"
            raise BadInput(f"{len(self.texts):,} query texts, {pairs}; the three must agree")

    @classmethod
    def of(cls, texts: list[str], relevance: Relevance, filtered: Relevance | None = None) -> Split:
        """A split held in memory; nothing is filtered unless said."""
        return cls(Texts.of(texts), relevance, filtered or Relevance.empty(len(texts), relevance.labels))

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: ArrayLike) -> Split:
        """These queries in this order."""
        return Split(self.texts.take(rows), self.relevance.take(rows), self.filtered.take(rows))

    def moved(self, rows: Rows, labels: int) -> Split:
        """The same queries, label j in row rows[j] of so many; labels in row -1 are left out."""
        return Split(self.texts, self.relevance.moved(rows, labels), self.filtered.moved(rows, labels))

    def join(self, other: Split) -> Split:
        """Both splits' queries: in file order when they were read together, else one after the other."""
        texts = self.texts.followed_by(other.texts)
        both = Split(texts, self.relevance.stack(other.relevance), self.filtered.stack(other.filtered))
        return both.take(np.argsort(texts.rows, kind="stable"))


def _canonical(matrix: csr_array) -> csr_array:
    matrix = csr_array(matrix)
    data = matrix.data.astype(np.float32, copy=False)  # the matrix's own astype would add up pairs given twice
    matrix = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    labels, rows = matrix.shape[1], matrix.indices
    if len(rows) and (rows.min() < 0 or rows.max() >= labels):
        wrong = rows.max() if rows.max() >= labels else rows.min()
        raise BadInput(f"label row {wrong:,} is out of range: there are {labels:,} labels, rows 0 to {labels - 1:,}")
    impossible = np.flatnonzero(~(np.isfinite(matrix.data) & (matrix.data >= 0)))
    if len(impossible):
        query, row, weight = (values[impossible[0]] for values in (_queries_of(matrix), rows, matrix.data))
        raise BadInput(f"query {query:,}, label row {row:,}: weight {weight} must be a finite number, 0 or greater")
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    if matrix.has_canonical_format:
        return matrix
    queries = _queries_of(matrix)
    order = np.lexsort((matrix.data, matrix.indices, queries))
    queries, rows, weights = queries[order], matrix.indices[order], matrix.data[order]
    last = np.append((queries[1:] != queries[:-1]) | (rows[1:] != rows[:-1]), True)  # of equal pairs: the greatest
    return Relevance.from_pairs(queries[last], rows[last], weights[last], matrix.shape).matrix


def _queries_of(matrix: csr_array) -> NDArray[np.int64]:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


class EpochSampler:
    """Every query once an epoch, in an order that follows from (seed, epoch); the last batch may be smaller.

    Any batch can be asked for at any time, so a resumed run needs no state but its step number.
    Queries without a label to pull teach nothing and are left out, unless `keep_unlabelled`.
    """

    def __init__(self, relevance: Relevance, batch_size: int, *, seed: int, keep_unlabelled: bool = False) -> None:
        pulled = _queries_of(relevance.matrix)[relevance.matrix.data > 0]
        self._queries = np.arange(len(relevance)) if keep_unlabelled else np.unique(pulled)
        if len(self._queries) == 0:
            every = f"the {len(relevance):,} training queries"
            raise BadInput(f"none of {every} has a label to pull; is this the right file?")
        self._batch_size, self._seed = batch_size, seed
        self._shuffled: tuple[int, NDArray[np.int64]] | None = None

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self._queries) // self._batch_size)

    def rows(self, epoch: int, index: int) -> NDArray[np.int64]:
        if self._shuffled is None or self._shuffled[0] != epoch:
            self._shuffled = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._queries)
        start = index * self._batch_size
        return self._shuffled[1][start : start + self._batch_size].copy()


def draw_positives(relevance: Relevance, rows: Rows, limit: int | None, rng: np.random.Generator) -> Pairs:
    """The pairs to pull: positions in `rows`, label rows and weights, in the order of positions, then labels.

    All pairs of weight > 0, or per query at most `limit` of them, drawn uniformly without replacement.
    """
    matrix = relevance.take(rows).matrix
    query, pulled = _queries_of(matrix), np.flatnonzero(matrix.data > 0)
    if limit is not None:
        groups = query[pulled]
        order = np.lexsort((rng.random(len(groups)), groups))
        rank = np.arange(len(groups)) - np.searchsorted(groups, groups)
        pulled = pulled[np.sort(order[rank < limit])]
    return query[pulled], matrix.indices[pulled].astype(np.int64), matrix.data[pulled]
