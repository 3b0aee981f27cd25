"""Label vectors that are hard on an index, what a full sort finds, and changes that every index must survive."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.search.index import Indexed, LabelIndex, LiveVectors
from umpteen.search.ranking import NO_LABEL, Ranking

DIMENSION = 24


@dataclass
class Keys:
    """A catalogue: more keys than rows do no harm."""

    version: int = 3
    keys: list[str] = field(default_factory=lambda: [f"key-{row}" for row in range(1200)])


def over(vectors: LiveVectors, labels: Keys | None = None) -> Indexed:
    labels = labels or Keys()
    return Indexed("0123abcd", labels.version, labels.keys, vectors)


def clustered(count: int, seed: int, *, lengths: float = 0.0) -> Tensor:
    """Unit vectors around a few centres; with `lengths` each is stretched by e^(lengths · a Gaussian)."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(12, DIMENSION))
    vectors = centres[rng.integers(12, size=count)] + rng.normal(size=(count, DIMENSION))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors *= np.exp(lengths * rng.normal(size=(count, 1)))
    return torch.from_numpy(vectors.astype(np.float32))


def with_twins(vectors: Tensor) -> Tensor:
    """Every fifth vector is the one before it."""
    vectors = vectors.clone()
    vectors[5::5] = vectors[4:-1:5]
    return vectors


class Truth:
    """What there is to find, kept the plainest way: a dictionary, searched by sorting everything."""

    def __init__(self, base: Tensor) -> None:
        self.vectors = dict(enumerate(base.numpy()))
        self.rows = len(base)

    def put(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.vectors |= dict(zip(rows.tolist(), vectors, strict=True))
        self.rows = max(self.rows, *map(int, rows + 1))

    def drop(self, rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            del self.vectors[row]

    def search(self, queries: Tensor, k: int) -> list[list[int]]:
        found = []
        rows = sorted(self.vectors)
        matrix = np.stack([self.vectors[row] for row in rows])
        for query in queries.numpy():
            scores = matrix @ query
            order = np.argsort(-scores, kind="stable")[:k]
            found.append([rows[place] for place in order] + [NO_LABEL] * (k - len(order)))
        return found


def changed(labels: LiveVectors, rows: NDArray[np.int64], vectors: Tensor) -> LiveVectors:
    """These rows, each named once, have these vectors from now on, new rows and known ones."""
    active = np.zeros(max(len(labels), int(rows.max(initial=-1)) + 1), dtype=np.bool_)
    active[: len(labels)] = labels.active
    active[rows] = True
    now = dict(zip(labels.changed.tolist(), labels.vectors, strict=True))
    now |= dict(zip(rows.tolist(), vectors, strict=True))
    return LiveVectors(labels.base, active, np.array(sorted(now)), np.stack([now[row] for row in sorted(now)]))


def add(
    side: LabelIndex | Truth, rows: NDArray[np.int64], vectors: NDArray[np.float32], labels: Keys | None = None
) -> None:
    """New rows, or new vectors for known ones."""
    if isinstance(side, Truth):
        side.put(rows, vectors)
    else:
        side.tell(over(changed(side.labels, rows, torch.from_numpy(vectors)), labels), rows)


def remove(side: LabelIndex | Truth, rows: NDArray[np.int64], labels: Keys | None = None) -> None:
    if isinstance(side, Truth):
        side.drop(rows)
    else:
        active = np.where(np.isin(np.arange(len(side.labels)), rows), False, side.labels.active)
        now = LiveVectors(side.labels.base, active, side.labels.changed, side.labels.vectors)
        side.tell(over(now, labels), rows)


def recall(found: Ranking, queries: Tensor, truth: Truth) -> float:
    """The share of places with a label that is as good as the k-th best; twins are equally right."""
    hits = []
    for query, rows, right in zip(queries.numpy(), found.rows, truth.search(queries, found.width), strict=True):
        bar = float(truth.vectors[right[-1]] @ query)
        hits += [float(truth.vectors[row] @ query) >= bar - 1e-5 * (1 + abs(bar)) for row in rows.tolist()]
        assert len(set(rows.tolist())) == len(rows)
    return float(np.mean(hits))


def change(index: LabelIndex, truth: Truth, seed: int = 5, *, lengths: float = 0.0, labels: Keys | None = None) -> None:
    """New rows, new vectors for old ones (among them by far the longest of all), removed rows, and some taken back."""
    rng = np.random.default_rng(seed)
    old = rng.choice(truth.rows, 40, replace=False)
    new = np.arange(truth.rows, truth.rows + 30)
    renamed, removed, revived = old[:15], old[10:30], old[25:35]
    steps = [(np.concatenate([renamed, new]), 1), (revived, 3)]
    vectors = clustered(100, seed, lengths=lengths).numpy()
    vectors[3] *= 5
    for rows, factor in steps:
        given, vectors = vectors[: len(rows)] * np.float32(factor), vectors[len(rows) :]
        for side in (index, truth):
            add(side, rows, given, labels)
        if factor == 1:
            for side in (index, truth):
                remove(side, removed, labels)


def scores_are_inner_products(found: Ranking, queries: Tensor, truth: Truth) -> None:
    for query, rows, scores in zip(queries.numpy(), found.rows, found.scores, strict=True):
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            if row == NO_LABEL:
                assert score == -np.inf
            else:
                assert abs(score - float(truth.vectors[row] @ query)) <= 1e-5 * (1 + abs(score))
        assert np.all(np.diff(scores[rows != NO_LABEL]) <= 0)
