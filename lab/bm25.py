"""BM25 over label texts: what finds a new label by its words alone.

Written out because the formula is one line of sparse arithmetic on scikit-learn's counts, which is here anyway; the
libraries for it (rank-bm25, bm25s) would be a dependency for a single baseline.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array, diags_array
from sklearn.feature_extraction.text import CountVectorizer

from umpteen.errors import BadInput
from umpteen.search.ranking import Ranking

SATURATION, LENGTH = 1.2, 0.75  # k1 and b, the usual values
_QUERIES_AT_A_TIME = 1024


def bm25(labels: Sequence[str], queries: Sequence[str], k: int, excluding: csr_array) -> Ranking:
    """The k best labels of each query: Σ idf(w) · tf(w) (k1 + 1) / (tf(w) + k1 (1 − b + b · length / mean length)).

    The idf is log(1 + (N − n + ½)/(n + ½)), which is never negative; a word counts as often as the query has it.
    Pairs stored in `excluding` are left out; a query that shares no word with more labels ends in −1.
    """
    vectorizer = CountVectorizer(token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    try:
        counts = csr_array(vectorizer.fit_transform(labels))  # [labels, words]
    except ValueError as error:
        raise BadInput(f"the label texts hold no word to search by: {error}") from error
    lengths = np.asarray(counts.sum(1)).ravel()
    holding = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log1p((len(labels) - holding + 0.5) / (holding + 0.5)).astype(np.float32)
    label = np.repeat(np.arange(len(labels)), np.diff(counts.indptr))
    damped = counts.data + SATURATION * (1 - LENGTH + LENGTH * lengths[label] / lengths.mean())
    counts.data = (counts.data * (SATURATION + 1) / damped).astype(np.float32)
    index = csr_array((counts @ diags_array(idf)).T)  # [words, labels]
    spare = int(np.diff(excluding.indptr).max(initial=0))
    parts = []
    for start in range(0, len(queries), _QUERIES_AT_A_TIME):
        stop = min(start + _QUERIES_AT_A_TIME, len(queries))
        words = csr_array(vectorizer.transform([queries[row] for row in range(start, stop)]))
        found = Ranking.from_csr(csr_array(words @ index), k + spare)
        parts.append(found.without(excluding[start:stop]).head(k))
    return Ranking(
        np.concatenate([part.rows for part in parts]), np.concatenate([part.scores for part in parts]), len(labels)
    )
