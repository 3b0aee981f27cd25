"""What users would otherwise run: the most frequent labels, those of similar training texts, linear weights a label."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from sklearn.feature_extraction.text import TfidfVectorizer

from umpteen.data.labels import Split
from umpteen.errors import BadInput
from umpteen.search.index import best_of_each
from umpteen.search.ranking import Ranking

# Chosen on a tenth of the training queries (seed 0, at most 1,500) of wordnet-nouns, eurlex-titles and debian-related,
# from 10 to 200 neighbours and cosines to the power 1 to 4: 50 and 2 are within about 2 points of the best P@1 and P@5
# and 3 of the best R@100 on all three; plain cosines lose 4.6 points of P@5 on eurlex-titles.
NEIGHBOURS = 50
_POWER = 2
_QUERIES_AT_A_TIME = 256


def popularity(train: Split, asked: Split, k: int) -> Ranking:
    """Every query gets the labels that are most frequent in training, but for those filtered for it."""
    counts, excluded = train.relevance.without(train.filtered).label_counts(), asked.filtered.matrix
    best = np.argsort(-counts, kind="stable")[: k + _most(excluded)].astype(np.int32)
    rows, scores = np.tile(best, (len(asked), 1)), np.tile(counts[best].astype(np.float32), (len(asked), 1))
    return Ranking(rows, scores, len(counts)).without(excluded).head(k)


class _Baseline(ABC):
    """Ranks texts block by block."""

    labels: int

    def rank(self, asked: Split, k: int) -> Ranking:
        """The k best labels of each text, but for those filtered for it."""
        parts = [Ranking(np.empty((0, k), np.int32), np.empty((0, k), np.float32), self.labels)]
        for start in range(0, len(asked), _QUERIES_AT_A_TIME):
            some = slice(start, start + _QUERIES_AT_A_TIME)
            parts.append(self._rank(asked.texts[some], k, asked.filtered.matrix[some]))
        rows, scores = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "scores"))
        return Ranking(rows, scores, self.labels)

    @abstractmethod
    def _rank(self, texts: Iterable[str], k: int, excluded: csr_array) -> Ranking: ...


class TfidfNeighbours(_Baseline):
    """Labels of the most similar training texts, each scored by the summed squared cosines of those that have it.

    Texts are tf-idf vectors of words and, with `ngrams` 2, word pairs, with logarithmic term frequency.
    """

    def __init__(self, train: Split, *, ngrams: int = 2, neighbours: int = NEIGHBOURS) -> None:
        self.labels, self._neighbours = train.relevance.labels, neighbours
        self._vectorizer = TfidfVectorizer(ngram_range=(1, ngrams), sublinear_tf=True, dtype=np.float32)
        try:
            self._known = csr_array(self._vectorizer.fit_transform(train.texts).T)  # [words, training texts]
        except ValueError as error:
            raise BadInput(f"the training texts hold no word of two characters to compare by: {error}") from error
        relevance = train.relevance.without(train.filtered).matrix
        ones = np.ones(relevance.nnz, dtype=np.float32)
        self._relevant = csr_array((ones, relevance.indices, relevance.indptr), shape=relevance.shape)

    @property
    def parameters(self) -> int:
        """Numbers it keeps: the tf-idf weights of all training texts, and their labels."""
        return int(self._known.nnz + self._relevant.nnz)

    def _rank(self, texts: Iterable[str], k: int, excluded: csr_array) -> Ranking:
        cosines = csr_array(self._vectorizer.transform(texts) @ self._known)
        nearest = Ranking.from_csr(cosines, self._neighbours).to_csr()
        nearest.data **= _POWER
        return Ranking.from_csr(csr_array(nearest @ self._relevant), k + _most(excluded)).without(excluded).head(k)


class LinearOneVsRest(_Baseline):
    """One linear support vector machine a label, of all training texts that have it against all others (liblinear).

    Texts are tf-idf vectors of words and, with `ngrams` 2, word pairs that occur more than once.
    """

    def __init__(self, train: Split, *, cost: float = 1.0, ngrams: int = 2, jobs: int = 1) -> None:
        from joblib import Parallel, delayed

        self.labels, least = train.relevance.labels, 2 if len(train) > 1000 else 1
        self._vectorizer = TfidfVectorizer(ngram_range=(1, ngrams), sublinear_tf=True, min_df=least)
        features = self._vectorizer.fit_transform(train.texts)
        texts_of = csr_array(train.relevance.without(train.filtered).matrix.T.tocsr())
        rows = np.split(texts_of.indices, texts_of.indptr[1:-1])
        found = Parallel(n_jobs=jobs)(delayed(_one_label)(features, some, cost) for some in rows)
        self._weights: csr_array = csr_array(vstack([weights for weights, _ in found], format="csr").T)
        self._intercepts = np.array([intercept for _, intercept in found], dtype=np.float32)

    @property
    def parameters(self) -> int:
        """Weights that pruning left."""
        return int(self._weights.nnz)

    def _rank(self, texts: Iterable[str], k: int, excluded: csr_array) -> Ranking:
        scores = (self._vectorizer.transform(texts) @ self._weights).toarray().astype(np.float32) + self._intercepts
        scores[np.repeat(np.arange(len(scores)), np.diff(excluded.indptr)), excluded.indices] = -np.inf
        rows, found = best_of_each(scores, k)
        return Ranking(rows.astype(np.int32), found, self.labels)


def _one_label(features: Any, positives: NDArray[np.int32], cost: float) -> tuple[csr_array, float]:
    from sklearn.svm import LinearSVC

    if len(positives) in (0, features.shape[0]):  # nothing to tell it apart by
        return csr_array((1, features.shape[1]), dtype=np.float32), 1.0 if len(positives) else -1.0
    signs = np.full(features.shape[0], -1)
    signs[positives] = 1
    machine = LinearSVC(C=cost, dual=True, max_iter=100, tol=0.1, random_state=0).fit(features, signs)
    weights = np.where(np.abs(machine.coef_) < 0.01, 0, machine.coef_).astype(np.float32)
    return csr_array(weights), float(machine.intercept_[0])


def _most(excluding: csr_array) -> int:
    return int(np.diff(excluding.indptr).max(initial=0))
