"""A part of a dataset that is small enough to try things on, and still of its kind."""

import numpy as np
from numpy.typing import NDArray

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import LabelCatalogue, Relevance


def cut(dataset: Dataset, queries: int, labels: int, *, whole_test: bool = False) -> Dataset:
    """The most frequent labels, and queries drawn (always the same ones) among those that have one of them.

    `queries` is the number of training queries; the other splits keep their proportion to it, or all that test has.
    """
    counts = dataset.train.relevance.label_counts()
    kept = np.sort(np.argsort(-counts, kind="stable")[:labels])
    share = min(1.0, queries / len(dataset.train))
    keys = [dataset.labels.keys[row] for row in kept]
    return Dataset.of(
        dataset.name,
        LabelCatalogue(keys, [dataset.labels.texts[int(row)] for row in kept]),
        _cut(dataset.train, kept, share),
        _cut(dataset.validation, kept, share) if dataset.validation else None,
        _cut(dataset.test, kept, 1.0 if whole_test else share) if dataset.test else None,
    )


def _cut(split: Split, labels: NDArray[np.int64], share: float) -> Split:
    relevance, filtered = (with_labels(pairs, labels) for pairs in (split.relevance, split.filtered))
    answerable = np.flatnonzero(np.diff(relevance.matrix.indptr))
    count = min(len(answerable), max(1, round(share * len(split))))
    rows = np.sort(np.random.default_rng(0).choice(answerable, count, replace=False))
    texts = [split.texts[int(row)] for row in rows]
    return Split.of(texts, relevance.take(rows), filtered.take(rows))


def with_labels(pairs: Relevance, labels: NDArray[np.int64]) -> Relevance:
    """The pairs of these labels alone, renumbered in this order."""
    return Relevance(pairs.matrix[:, labels])
