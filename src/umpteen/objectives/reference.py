"""Every objective as its formula reads: dense, slow, and differentiated by autograd alone.

Judges the fast path and shares no code with it: of targets, only the data is used. B queries, L labels, p pairs.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from umpteen.objectives.targets import Pairs, Targets

BISECTIONS = 80


class _Posed(NamedTuple):
    """The targets over a matrix of scores, after the filtered pairs have left."""

    filtered: Tensor  # bool [B, L]
    relevant: Tensor  # bool [B, L]
    query: Tensor  # int64 [p]
    positive: Tensor  # [p] the scores of the pulled pairs
    weights: Tensor  # [p]
    scale: Tensor  # [p]


def softmax(scores: Tensor, targets: Targets, filtered: Pairs | None = None) -> Tensor:
    """−log(e^s / Σ_j e^s_j), j over all labels in play."""
    posed = _pose(scores, targets, filtered)
    bar = scores.masked_fill(posed.filtered, -torch.inf).logsumexp(1)
    return _reduced(bar[posed.query] - posed.positive, posed, targets)


def decoupled_softmax(scores: Tensor, targets: Targets, filtered: Pairs | None = None) -> Tensor:
    """−log(e^s / (e^s + Σ_j e^s_j)), j over the labels in play that are not relevant."""
    posed = _pose(scores, targets, filtered)
    bar = scores.masked_fill(posed.filtered | posed.relevant, -torch.inf).logsumexp(1)
    return _reduced(softplus(bar[posed.query] - posed.positive), posed, targets)


def soft_top_k(
    scores: Tensor,
    targets: Targets,
    filtered: Pairs | None = None,
    *,
    k: int | Tensor | Literal["positives"],
    alpha: float,
    mask_unsampled: bool = False,
) -> Tensor:
    """−log σ(alpha · (s − t)), t being the threshold that k of the query's labels in play softly exceed.

    With `mask_unsampled`, as published, its relevant labels that are not pulled are not in play. A query with no more
    labels than k, or a k of 0, has no threshold and contributes nothing.
    """
    posed = _pose(scores, targets, filtered)
    sizes = posed.relevant.sum(1) if isinstance(k, str) else torch.as_tensor(k).expand(len(scores))
    out = posed.filtered
    if mask_unsampled:
        unpulled = posed.relevant.clone()
        unpulled[targets.pulled.query, targets.pulled.label] = False
        out = out | unpulled
    thresholds = [scores.new_tensor(-torch.inf)] * len(scores)
    for query, size in enumerate(sizes.tolist()):
        in_play = scores[query, ~out[query]]
        if 0 < size < len(in_play):
            thresholds[query] = soft_threshold(in_play, size, alpha)
    bar = torch.stack(thresholds)
    return _reduced(softplus(alpha * (bar[posed.query] - posed.positive)), posed, targets)


def one_vs_all(
    scores: Tensor, targets: Targets, filtered: Pairs | None = None, *, logit_bias: float | None = None
) -> Tensor:
    """Yes-or-no cross-entropy of every pulled pair and of every pair in play that is not relevant."""
    scores = scores + (logit_bias or 0)  # what a learned bias starts at; the scale learned with it starts at 1
    posed = _pose(scores, targets, filtered)
    raised = (posed.weights * posed.scale * softplus(-posed.positive)).sum()
    lowered = softplus(scores).masked_fill(posed.filtered | posed.relevant, 0).sum()
    return (raised + lowered) / max(len(scores), 1)


REFERENCE: dict[str, Callable[..., Tensor]] = {
    formula.__name__: formula for formula in (softmax, decoupled_softmax, soft_top_k, one_vs_all)
}


def soft_threshold(scores: Tensor, k: int, alpha: float) -> Tensor:
    """The t with Σ_j σ(alpha · (s_j − t)) = k, by bisection; dt/ds_j = σ'_j / Σ_l σ'_l."""
    fixed = scores.detach().sort(descending=True).values
    low, high = fixed[-1] - 100 / alpha, fixed[0] + 100 / alpha
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        # Σσ > k, asked so that a wide gap after the k-th score cannot swallow the answer
        lacking = logsigmoid(alpha * (middle - fixed[:k])).logsumexp(0)
        having = logsigmoid(alpha * (fixed[k:] - middle)).logsumexp(0)
        low, high = (middle, high) if having > lacking else (low, middle)
    distance = alpha * (scores.detach() - low)
    shares = (logsigmoid(distance) + logsigmoid(-distance)).softmax(0)  # σ' = σ(x) σ(−x)
    return low + (shares * (scores - scores.detach())).sum()


def softplus(value: Tensor) -> Tensor:
    """log(1 + e^value) to the last digit; torch's own gives up at 20."""
    return -logsigmoid(-value)


def _pose(scores: Tensor, targets: Targets, filtered: Pairs | None) -> _Posed:
    out, relevant = (torch.zeros_like(scores, dtype=torch.bool) for _ in range(2))
    if filtered is not None:
        out[filtered.query, filtered.label] = True
    relevant[targets.relevant.query, targets.relevant.label] = True
    query, label = targets.pulled
    kept = ~out[query, label]
    weights = scores.new_ones(len(query)) if targets.weights is None else targets.weights.to(scores)
    scale = scores.new_ones(len(scores)) if targets.scale is None else targets.scale.to(scores)
    positive = scores[query[kept], label[kept]]
    return _Posed(out, relevant & ~out, query[kept], positive, weights[kept], scale[query[kept]])


def _reduced(terms: Tensor, posed: _Posed, targets: Targets) -> Tensor:
    """The terms of the pulled pairs as one number: of each query their weighted mean or sum, of queries the mean."""
    if targets.reduction == "sum":
        shares = posed.weights * posed.scale
    else:
        totals = terms.new_zeros(targets.queries).index_add(0, posed.query, posed.weights)
        shares = posed.weights / totals[posed.query]
    return (shares * terms).sum() / max(targets.queries, 1)
