"""A slice of the user's own data, small enough to compute a step of it in every way there is."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umpteen.data.batches import EpochSampler
from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import Relevance
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encode import label_tokens
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.training.inputs import TrainingData

QUERIES, LABELS = 32, 500
TOKENS = 1024  # of queries and labels together, for a transformer: its whole graph in float64 takes seconds and memory
STATIC_TOKENS = 16 * TOKENS


@dataclass(frozen=True)
class Sample:
    data: TrainingData
    label_texts: list[str]
    catalogue: int  # labels of the dataset, most of them not in the sample

    @property
    def queries(self) -> int:
        return len(self.data.queries)

    @property
    def labels(self) -> int:
        return len(self.data.labels)

    @property
    def tokens(self) -> int:
        return int(self.data.queries.lengths.sum() + self.data.labels.lengths.sum())


def draw_sample(dataset: Dataset, towers: Towers, *, seed: int, at_least: int) -> Sample:
    """Some queries with their positives and filtered labels, and others as negatives; fewer where texts are long.

    At least so many labels, if the dataset has them, however long they are.
    """
    rng = np.random.default_rng(seed)
    static = isinstance(towers.query, StaticEncoder) and isinstance(towers.label, StaticEncoder)
    tokens = STATIC_TOKENS if static else TOKENS
    split, texts = dataset.train, dataset.labels.texts
    rows = EpochSampler(split.relevance.without(split.filtered), QUERIES, seed=seed).rows(0, 0)
    queries = _tokens(towers.query, [split.texts[row] for row in rows])
    kept = max(1, _fitting(queries, tokens // 2))
    queries, some = queries.take(np.arange(kept)), split.take(rows[:kept])

    candidates = _candidates(some, max(LABELS, at_least), rng)
    labels = label_tokens(towers.label, Texts.of(texts[row] for row in candidates), candidates)
    count = max(at_least, _fitting(labels, tokens - int(queries.lengths.sum())))
    order = np.argsort(candidates[:count])
    chosen = candidates[:count][order]
    data = TrainingData(
        queries,
        labels.take(order),
        Relevance(some.relevance.matrix[:, chosen]),
        Relevance(some.filtered.matrix[:, chosen]),
    )
    return Sample(data, [texts[row] for row in chosen], len(texts))


def _candidates(split: Split, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Label rows, the most wanted first: a positive of each query, a filtered one, the next ones, then any others."""
    places, labels = [], []
    for relevance in (split.relevance, split.filtered):
        matrix = relevance.matrix
        places.append(np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr)))  # in its query
        labels.append(matrix.indices)
    wanted = np.concatenate(labels)[np.argsort(np.concatenate(places), kind="stable")]
    others = rng.choice(split.relevance.labels, min(split.relevance.labels, count), replace=False)
    distinct, first = np.unique(np.concatenate([wanted, others]), return_index=True)
    return np.asarray(distinct[np.argsort(first)][:count], dtype=np.int64)


def _tokens(encoder: Encoder, texts: list[str]) -> TokenTable:
    return TokenTable.of(encoder.tokenizer(texts), encoder.tokenizer.vocabulary_size)


def _fitting(table: TokenTable, tokens: int) -> int:
    """How many of the first rows have no more tokens than that together."""
    return int(np.searchsorted(np.cumsum(table.lengths), tokens, side="right"))
