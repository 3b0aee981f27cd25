"""Every objective as its formula reads: all scores at once, one query after the other, in one graph.

Slow, and shares no code with the fast step but the towers and the draw of positives: the two have to agree.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from umpteen.config.settings import ObjectiveConfig, SoftTopK
from umpteen.data.batches import draw_positives
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.towers import Towers
from umpteen.training.inputs import TrainingData

BISECTIONS = 200


class Query(NamedTuple):
    """One query of the batch among the labels in play: those that are not filtered."""

    scores: Tensor  # [n]
    relevant: Tensor  # bool [n]
    pulled: Tensor  # int64 [p], places among the n
    weights: Tensor  # [p]
    scale: float  # positives ÷ positives pulled


def naive_loss(towers: Towers, data: TrainingData, objective: ObjectiveConfig, rng: np.random.Generator) -> Tensor:
    """The loss of all queries of the data as one batch, with a graph down to the weights."""
    queries, labels = encode(towers.query, data.queries), encode(towers.label, data.labels)
    scores = queries @ labels.T / objective.temperature  # [B, L]
    total = scores.new_zeros(())
    for query in _queries(scores, data, objective.positives_per_query, rng):
        total = total + _of_one(query, objective)
    return total / len(scores)


def encode(encoder: Encoder, table: TokenTable) -> Tensor:
    """Texts of one length at a time, so that nothing is padded."""
    groups = [np.flatnonzero(table.lengths == length) for length in np.unique(table.lengths)]
    vectors = torch.cat([encoder(*table.batch(rows)) for rows in groups])
    return vectors[torch.from_numpy(np.argsort(np.concatenate(groups)))]


def _queries(scores: Tensor, data: TrainingData, limit: int | None, rng: np.random.Generator) -> Iterator[Query]:
    owner, label, weight = draw_positives(data.relevance, np.arange(len(scores)), limit, rng)
    every = np.arange(scores.shape[1])
    for row in range(len(scores)):
        in_play = every[~np.isin(every, data.filtered.of(row))]
        pulled, weights = label[owner == row], weight[owner == row]
        positives = int((data.relevance.weights_of(row) > 0).sum())
        yield Query(
            scores=scores[row, torch.from_numpy(in_play)],
            relevant=torch.from_numpy(np.isin(in_play, data.relevance.of(row))),
            pulled=torch.from_numpy(np.searchsorted(in_play, pulled)),
            weights=torch.from_numpy(weights).to(scores),
            scale=positives / max(len(pulled), 1),
        )


def _of_one(query: Query, objective: ObjectiveConfig) -> Tensor:
    if objective.name == "one_vs_all":
        return one_vs_all(query)
    if isinstance(objective, SoftTopK):
        terms = soft_top_k(query, objective.k, objective.alpha)
    else:
        terms = softmax(query) if objective.name == "softmax" else decoupled_softmax(query)
    total = (query.weights * terms).sum()
    if objective.over_positives() == "sum":
        return total * query.scale
    return total / query.weights.sum() if len(terms) else total


def softmax(query: Query) -> Tensor:
    """−log(e^s / Σ_j e^s_j), j over all labels in play [p]."""
    return query.scores.logsumexp(0) - query.scores[query.pulled]


def decoupled_softmax(query: Query) -> Tensor:
    """−log(e^s / (e^s + Σ_j e^s_j)), j over the labels in play that are not relevant [p]."""
    positives = query.scores[query.pulled]
    rivals = query.scores[~query.relevant]
    fields = torch.cat([positives[:, None], rivals.expand(len(positives), -1)], dim=1)
    return fields.logsumexp(1) - positives


def soft_top_k(query: Query, k: int | Literal["positives"], alpha: float) -> Tensor:
    """−log σ(alpha · (s − t)), t being the threshold that k labels softly exceed [p]."""
    size = int(query.relevant.sum()) if k == "positives" else k
    positives = query.scores[query.pulled]
    if not 0 < size < len(query.scores):  # no threshold keeps out what does not exist
        return torch.zeros_like(positives)
    return softplus(alpha * (_threshold(query.scores, size, alpha) - positives))


def _threshold(scores: Tensor, k: int, alpha: float) -> Tensor:
    """The t with Σ_j σ(alpha · (s_j − t)) = k, by bisection; then a step of Newton's, whose gradient is t's own."""
    fixed = scores.detach()
    low, high = fixed.min() - 50 / alpha, fixed.max() + 50 / alpha
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        passing = torch.sigmoid(alpha * (fixed - middle)).sum() > k
        low, high = (middle, high) if passing else (low, middle)
    above = torch.sigmoid(alpha * (fixed - low))
    slope = alpha * (above * (1 - above)).sum()
    return low + (torch.sigmoid(alpha * (scores - low)).sum() - k) / slope


def one_vs_all(query: Query) -> Tensor:
    """Yes-or-no cross-entropy of every pulled pair and of every pair in play that is not relevant."""
    raised = (query.weights * softplus(-query.scores[query.pulled])).sum() * query.scale
    return raised + softplus(query.scores[~query.relevant]).sum()


def softplus(value: Tensor) -> Tensor:
    """log(1 + e^value) to the last digit; torch's own gives up at 20."""
    return -logsigmoid(-value)
