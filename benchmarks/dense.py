"""The paper's losses with the score matrix held: what the benchmark compares streaming with, in two forms.

As written: the formula, or the paper's listing, put down plainly. Fastest: the same mathematics in the quickest eager
PyTorch we found. Temporaries of the matrix's size are written in place, factors are folded into the queries, positives
are scored from their vectors (indexing the matrix costs a second one in the backward pass), and autograd is kept from
what has no gradient. Losses are averaged over all pairs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import logsigmoid

from umpteen.objectives import Pairs, Targets, reference

BISECTIONS = 32


def decoupled_softmax_as_written(queries: Tensor, labels: Tensor, positives: Pairs, temperature: float) -> Tensor:
    """Decoupled softmax (eq. 5)."""
    targets = Targets(positives, positives, len(queries))
    return reference.decoupled_softmax(queries @ labels.T / temperature, targets)


def decoupled_softmax_fastest(queries: Tensor, labels: Tensor, positives: Pairs, temperature: float) -> Tensor:
    """Decoupled softmax (eq. 5)."""
    queries = queries / temperature
    scores = queries @ labels.T  # [B, L]
    positive = (queries[positives.query] * labels[positives.label]).sum(1)
    with torch.no_grad():  # exp(−∞) has no gradient
        scores[positives.query, positives.label] = -torch.inf
        largest = scores.amax(1, keepdim=True)
    bar = scores.sub_(largest).exp_().sum(1).log() + largest[:, 0]
    return -logsigmoid(positive - bar[positives.query]).mean()


def soft_top_k_as_written(
    queries: Tensor, labels: Tensor, positives: Pairs, temperature: float, k: int, alpha: float
) -> Tensor:
    """SoftTop-k (eq. 6 without 1/L) over the paper's listing."""
    scores = queries @ labels.T / temperature  # [B, L]
    log_top_k: Tensor = LogTopKAsWritten.apply(scores, k, alpha)  # type: ignore[no-untyped-call]
    return -log_top_k[positives.query, positives.label].mean()


def soft_top_k_fastest(
    queries: Tensor, labels: Tensor, positives: Pairs, temperature: float, k: int, alpha: float
) -> Tensor:
    """SoftTop-k (eq. 6 without 1/L) over the paper's listing."""
    scores = (queries * (alpha / temperature)) @ labels.T  # [B, L]
    log_top_k: Tensor = LogTopKFastest.apply(scores, k)  # type: ignore[no-untyped-call]
    return -log_top_k[positives.query, positives.label].mean()


class LogTopKAsWritten(Function):
    """log σ(alpha · (s + t)) with Σσ = k: t by bisection over the whole matrix, the gradient in closed form."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int, alpha: float) -> Tensor:
        low = -scores.max(1, keepdim=True).values - 10 / alpha
        high = -scores.min(1, keepdim=True).values + 10 / alpha
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            too_low = torch.sigmoid(alpha * (scores + middle)).sum(1, keepdim=True) < k
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        sharpened = alpha * (scores + (low + high) / 2)
        ctx.save_for_backward(sharpened)
        ctx.alpha = alpha
        return sharpened - torch.logaddexp(sharpened, torch.zeros_like(sharpened[:, :1]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (sharpened,) = ctx.saved_tensors
        sigmas = torch.sigmoid(sharpened)
        slopes = ctx.alpha * sigmas * (1 - sigmas)
        direct = gradients[0] * ctx.alpha * (1 - sigmas)
        through_threshold = -direct.sum(1, keepdim=True) * slopes / slopes.sum(1, keepdim=True)
        return through_threshold.add_(direct), None, None


class LogTopKFastest(Function):
    """The same for scores that are already multiplied by alpha."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int) -> Tensor:
        low, high = -scores.amax(1, keepdim=True) - 10, -scores.amin(1, keepdim=True) + 10
        sigmas = torch.empty_like(scores)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            too_low = torch.add(scores, middle, out=sigmas).sigmoid_().sum(1, keepdim=True) < k
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        torch.add(scores, (low + high) / 2, out=sigmas)
        logs = logsigmoid(sigmas)
        ctx.save_for_backward(sigmas.sigmoid_())
        return logs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (sigmas,) = ctx.saved_tensors
        rest = 1 - sigmas
        direct = gradients[0] * rest
        slopes = rest.mul_(sigmas)
        through_threshold = slopes.mul_(-direct.sum(1, keepdim=True) / slopes.sum(1, keepdim=True))
        return through_threshold.add_(direct), None
