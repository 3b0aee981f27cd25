"""What one would build in an afternoon with scikit-learn and a pretrained encoder; runs in our own environment."""

import time
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from umpteen.compare.methods import Outcome
from umpteen.data.dataset import Split
from umpteen.data.texts import Texts
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.frozen import FrozenEncoder, FrozenReader
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.evaluation.baselines import LinearOneVsRest
from umpteen.rerank.memory import Memory
from umpteen.search.exact import top_k
from umpteen.search.index import best_of_each
from umpteen.search.ranking import Ranking

MINILM, LONGEST = "all-MiniLM-L6-v2", 256  # tokens
_TEXTS_AT_A_TIME = 512


def linear_svm(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    """One-vs-rest linear support vector machines on tf-idf of words and word pairs (liblinear)."""
    began = time.monotonic()
    jobs = torch.get_num_threads()
    known = LinearOneVsRest(train, cost=settings["cost"], ngrams=settings["ngrams"], jobs=jobs)
    fitted = time.monotonic()
    ranking = known.rank(asked, k)
    return Outcome(ranking, fitted - began, time.monotonic() - fitted, known.parameters)


def minilm_neighbours(train: Split, asked: Split, settings: dict[str, Any], k: int) -> Outcome:
    """The labels of the nearest training texts by untrained MiniLM."""
    began = time.monotonic()
    known = _frozen(train.texts)
    memory = Memory(known.numpy(), _positives(train))
    fitted = time.monotonic()
    queries = _frozen(asked.texts)
    parts = []
    every = np.arange(train.relevance.labels, dtype=np.int32)
    for start in range(0, len(asked), _TEXTS_AT_A_TIME):
        some = queries[start : start + _TEXTS_AT_A_TIME]
        nearest = memory.nearest(some, settings["neighbours"])
        votes = memory.votes(nearest, np.tile(every, (len(some), 1)), settings["temperature"])
        ignored = csr_array(asked.filtered.matrix[start : start + len(some)])
        votes[np.repeat(np.arange(len(some)), np.diff(ignored.indptr)), ignored.indices] = -np.inf
        rows, scores = best_of_each(votes, k)
        parts.append(Ranking(rows.astype(np.int32), scores, len(every)))
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
    encoder = FrozenEncoder(FrozenReader(TransformerEncoder.load(MINILM, max_length=LONGEST))).eval()
    return encode_tokens(encoder, encoder.tokenise(texts))


def _positives(train: Split) -> csr_array:
    matrix = train.relevance.without(train.filtered).matrix.astype(np.float32)
    matrix.eliminate_zeros()
    return csr_array((np.ones(matrix.nnz, dtype=np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


def _joined(parts: list[Ranking]) -> Ranking:
    rows, scores = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "scores"))
    return Ranking(rows, scores, parts[0].labels)
