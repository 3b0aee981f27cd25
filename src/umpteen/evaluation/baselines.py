"""What users would otherwise run: the most frequent labels, and the labels of the most similar training texts."""

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer

from umpteen.errors import BadInput
from umpteen.search.ranking import NO_LABEL, Ranking

# Chosen on a tenth of the training queries (seed 0, at most 1,500) of wordnet-nouns, eurlex-titles and debian-related,
# from 10 to 200 neighbours and cosines to the power 1 to 4: 50 and 2 are within about 2 points of the best P@1 and P@5
# and 3 of the best R@100 on all three; plain cosines lose 4.6 points of P@5 on eurlex-titles.
NEIGHBOURS = 50
_POWER = 2
_QUERIES_AT_A_TIME = 256


def popularity(train: csr_array, queries: int, k: int, *, excluding: csr_array | None = None) -> Ranking:
    """Every query gets the labels that are most frequent in training, but for those excluded for it."""
    labels = train.shape[1]
    _check_k(k, labels)
    counts = np.bincount(train.indices, minlength=labels)
    excluding = csr_array((queries, labels)) if excluding is None else excluding
    best = np.argsort(-counts, kind="stable")[: k + _most(excluding)].astype(np.int32)
    every = Ranking(np.tile(best, (queries, 1)), np.tile(counts[best].astype(np.float32), (queries, 1)), labels)
    return every.without(excluding).head(k)


class TfidfNeighbours:
    """Labels of the most similar training texts, each scored by the summed squared cosines of those that have it.

    Texts are tf-idf vectors of words and, with `ngrams` 2, word pairs, with logarithmic term frequency.
    """

    def __init__(self, texts: Iterable[str], relevance: csr_array, *, ngrams: int = 2) -> None:
        self._vectorizer = TfidfVectorizer(ngram_range=(1, ngrams), sublinear_tf=True, dtype=np.float32)
        try:
            self._known = csr_array(self._vectorizer.fit_transform(texts).T)  # [words, training texts]
        except ValueError as error:
            raise BadInput(f"the training texts hold no word of two characters to compare by: {error}") from error
        ones = np.ones(relevance.nnz, dtype=np.float32)
        self._relevant = csr_array((ones, relevance.indices, relevance.indptr), shape=relevance.shape)

    @property
    def parameters(self) -> int:
        """Numbers it keeps: the tf-idf weights of all training texts, and their labels."""
        return int(self._known.nnz + self._relevant.nnz)

    def rank(
        self, texts: Sequence[str], k: int, *, excluding: csr_array | None = None, neighbours: int = NEIGHBOURS
    ) -> Ranking:
        """The k best labels of each text, but for those excluded for it."""
        labels = self._relevant.shape[1]
        _check_k(k, labels)
        parts = []
        for start in range(0, len(texts), _QUERIES_AT_A_TIME):
            stop = min(start + _QUERIES_AT_A_TIME, len(texts))
            words = csr_array(self._vectorizer.transform([texts[row] for row in range(start, stop)]))
            nearest = Ranking.from_csr(csr_array(words @ self._known), neighbours).to_csr()
            nearest.data **= _POWER
            votes = csr_array(nearest @ self._relevant)
            excluded = csr_array((stop - start, labels)) if excluding is None else excluding[start:stop]
            parts.append(Ranking.from_csr(votes, k + _most(excluded)).without(excluded).head(k))
        rows = np.concatenate([part.rows for part in parts]) if parts else np.full((0, k), NO_LABEL, dtype=np.int32)
        scores = np.concatenate([part.scores for part in parts]) if parts else np.zeros((0, k), dtype=np.float32)
        return Ranking(rows, scores, labels)


def _most(excluding: csr_array) -> int:
    return int(np.diff(excluding.indptr).max(initial=0))


def _check_k(k: int, labels: int) -> None:
    if not 1 <= k <= labels:
        raise BadInput(f"k is {k:,}; ask for 1 to {labels:,}, as many labels as there are")
