"""What one would build in an afternoon with scikit-learn and a pretrained encoder; runs in our own environment."""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from sklearn.svm import LinearSVC
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from umpteen.compare.methods import Outcome
from umpteen.data.dataset import Split
from umpteen.data.texts import Texts
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.frozen import FrozenEncoder
from umpteen.rerank.memory import Memory
from umpteen.search.ranking import NO_LABEL, Ranking, top_k

MINILM, LONGEST = "all-MiniLM-L6-v2", 256  # tokens
_TEXTS_AT_A_TIME = 512


def linear_svm(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    """One-vs-rest linear support vector machines on tf-idf of words and word pairs (liblinear)."""
    from joblib import Parallel, delayed
    from sklearn.feature_extraction.text import TfidfVectorizer

    began = time.monotonic()
    known = 2 if len(train) > 1000 else 1
    vectorizer = TfidfVectorizer(ngram_range=(1, settings["ngrams"]), sublinear_tf=True, min_df=known)
    features = vectorizer.fit_transform(list(train.texts))
    texts_of = csr_array(_positives(train).T.tocsr())
    found = Parallel(n_jobs=torch.get_num_threads())(
        delayed(_one_label)(features, some, settings["cost"])
        for some in np.split(texts_of.indices, texts_of.indptr[1:-1])
    )
    weights: csr_array = csr_array(vstack([w for w, _ in found], format="csr"))
    intercepts = np.array([b for _, b in found], dtype=np.float32)
    fitted = time.monotonic()
    queries = csr_array(vectorizer.transform(list(asked.texts)))
    parts = []
    for start in range(0, len(asked), _TEXTS_AT_A_TIME):
        some = slice(start, min(start + _TEXTS_AT_A_TIME, len(asked)))
        scores = (queries[some] @ weights.T).toarray() + intercepts
        parts.append(_best(scores, asked.filtered.matrix[some], k))
    return Outcome(_joined(parts), fitted - began, time.monotonic() - fitted, int(weights.nnz))


def _one_label(features: Any, positives: NDArray[np.int32], cost: float) -> tuple[csr_array, float]:
    if len(positives) == 0:
        return csr_array((1, features.shape[1]), dtype=np.float32), -1.0
    signs = np.full(features.shape[0], -1)
    signs[positives] = 1
    machine = LinearSVC(C=cost, dual=True, max_iter=100, tol=0.1, random_state=0).fit(features, signs)
    weights = np.where(np.abs(machine.coef_) < 0.01, 0, machine.coef_).astype(np.float32)
    return csr_array(weights), float(machine.intercept_[0])


def minilm_neighbours(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    """The labels of the nearest training texts by untrained MiniLM."""
    began = time.monotonic()
    known = _frozen(train.texts)
    memory = Memory(known, _positives(train), settings["neighbours"], settings["temperature"])
    fitted = time.monotonic()
    queries = _frozen(asked.texts)
    parts = []
    every = np.arange(train.relevance.labels, dtype=np.int32)
    for start in range(0, len(asked), _TEXTS_AT_A_TIME):
        some = queries[start : start + _TEXTS_AT_A_TIME]
        votes = memory.votes(memory.nearest(some), np.tile(every, (len(some), 1)))
        parts.append(_best(votes, asked.filtered.matrix[start : start + len(some)], k))
    return Outcome(_joined(parts), fitted - began, time.monotonic() - fitted, known.numel())


def linear_probe(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    """One logistic regression a label on untrained MiniLM's vectors, all of them at once (AdamW)."""
    began = time.monotonic()
    texts = _frozen(train.texts)
    relevant, labels = _positives(train), train.relevance.labels
    numbers = torch.Generator().manual_seed(0)
    weight = torch.zeros(labels, texts.shape[1], requires_grad=True)
    bias = torch.full((labels,), -6.0, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=settings["learning_rate"], weight_decay=0.0)
    for _ in range(settings["epochs"]):
        for rows in torch.split(torch.randperm(len(texts), generator=numbers), 256):
            truth = torch.from_numpy(relevant[rows.numpy()].toarray())
            loss = binary_cross_entropy_with_logits(texts[rows] @ weight.T + bias, truth, reduction="sum") / len(rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    fitted = time.monotonic()
    queries = _frozen(asked.texts)
    with torch.no_grad():
        ones = torch.ones(len(queries), 1)
        both = torch.cat([weight, bias[:, None]], 1)
        ranking = top_k(torch.cat([queries, ones], 1), both, k, excluding=asked.filtered.matrix)
    return Outcome(ranking, fitted - began, time.monotonic() - fitted, both.numel())


def _frozen(texts: Texts) -> Tensor:
    """MiniLM's vectors, encoded once into the cache."""
    encoder = FrozenEncoder.load(MINILM, {"max_length": LONGEST}).eval()
    return encode_tokens(encoder, encoder.tokenise(texts))


def _positives(train: Split) -> csr_array:
    matrix = train.relevance.without(train.filtered).matrix.astype(np.float32)
    matrix.eliminate_zeros()
    return csr_array((np.ones(matrix.nnz, dtype=np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


def _best(scores: NDArray[np.floating[Any]], excluded: csr_array, k: int) -> Ranking:
    """The k largest of each row of a dense matrix, pairs to ignore left out."""
    scores = np.array(scores, dtype=np.float32)
    ignored = csr_array(excluded)
    scores[np.repeat(np.arange(len(scores)), np.diff(ignored.indptr)), ignored.indices] = -np.inf
    rows = np.argpartition(-scores, min(k, scores.shape[1]) - 1, axis=1)[:, :k].astype(np.int32)
    found = np.take_along_axis(scores, rows, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    rows, found = np.take_along_axis(rows, order, 1), np.take_along_axis(found, order, 1)
    return Ranking(np.where(np.isfinite(found), rows, np.int32(NO_LABEL)), found, scores.shape[1])


def _joined(parts: list[Ranking]) -> Ranking:
    rows, scores = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "scores"))
    return Ranking(rows, scores, parts[0].labels)
