"""The losses: the paper's decoupled softmax and SoftTop-k, and what they are compared with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from umpteen.config.settings import ObjectiveConfig, SoftTopK
from umpteen.errors import BadConfig, BadInput, known
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Targets, TopK


def softmax(scores: Scores, targets: Targets) -> Tensor:
    """Each positive competes with every label in play, the query's other positives too (eq. 3, 4).

    The term of a positive p of query i, over all labels that are not filtered:

        log Σ_j exp(s_ij) − s_ip
    """
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    bar = scores.log_sum_exp()
    return targets.mean(bar[targets.pulled.query] - positive)


def decoupled_softmax(scores: Scores, targets: Targets) -> Tensor:
    """Each positive competes with the query's negatives, never with its other positives (eq. 5).

    The term of a positive p of query i, over the labels that are neither relevant to i nor filtered:

        log(1 + Σ_j exp(s_ij) / exp(s_ip))
    """
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    bar = scores.log_sum_exp(excluding=targets.relevant)
    return targets.mean(-logsigmoid(positive - bar[targets.pulled.query]))


def soft_top_k(scores: Scores, targets: Targets, k: TopK, alpha: float = 2.0, mask_unsampled: bool = False) -> Tensor:
    """Each positive is compared with the threshold that k labels softly exceed (eq. 6 without its factor 1/L).

    The term of a positive p of query i, t_i being the number with Σ_j σ(alpha · (s_ij − t_i)) = k over all labels
    that are not filtered, and with `mask_unsampled` (the published code) not relevant to i without being pulled:

        log(1 + exp(alpha · (t_i − s_ip)))

    k is one number, one per query [B], or "positives": as many as are relevant to the query. A query that has no more
    labels in play than k contributes nothing.
    """
    if isinstance(k, str) and k != "positives":
        raise BadInput(f'k is {k!r}; give a number, one per query, or "positives"')
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    sizes = targets.relevant.per_query(targets.queries) if isinstance(k, str) else k
    threshold = scores.soft_threshold(sizes, alpha, excluding=targets.unpulled if mask_unsampled else None)
    return targets.mean(-logsigmoid(alpha * (positive - threshold[targets.pulled.query])))


def one_vs_all(scores: Scores, targets: Targets) -> Tensor:
    """Every pulled pair is raised and every pair not known to be relevant is lowered, each on its own (eq. 2).

    Always a sum over labels divided by the number of queries, whatever the targets' reduction:

        1/B Σ_i ( Σ_{p pulled} w log(1 + exp(−s_ip)) + Σ_{j not relevant} log(1 + exp(s_ij)) )

    A query without positives still lowers its negatives.
    """
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    lowered = scores.softplus_sum(excluding=targets.relevant).sum() / max(targets.queries, 1)
    return targets.sum(-logsigmoid(positive)) + lowered


class ScaledOneVsAll(nn.Module):
    """One-vs-all of e^t · score + b, t and b learned as in SigLIP; t starts at 0, so the scale at 1/temperature."""

    def __init__(self, logit_bias: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.tensor(float(logit_bias)))

    def forward(self, scores: Scores, targets: Targets) -> Tensor:
        return one_vs_all(scores.scaled(self.log_scale.exp(), self.bias), targets)


Objective = Callable[[Scores, Targets], Tensor]  # one that learns something itself is a module


def _build_soft_top_k(settings: SoftTopK, labels: int) -> Objective:
    if isinstance(settings.k, int) and settings.k >= labels:
        raise BadConfig(f"objective.k = {settings.k}: the dataset has {labels:,} labels; k must be smaller")
    return partial(soft_top_k, **settings.arguments())


# A new objective is a function, a row here, its settings in config/settings.py and its formula in reference.py.
OBJECTIVES: dict[str, Callable[[Any, int], Objective]] = {  # of its settings, for so many labels
    "softmax": lambda own, labels: softmax,
    "decoupled_softmax": lambda own, labels: decoupled_softmax,
    "soft_top_k": _build_soft_top_k,
    "one_vs_all": lambda own, labels: one_vs_all if own.logit_bias is None else ScaledOneVsAll(own.logit_bias),
}


def build_objective(settings: ObjectiveConfig, labels: int) -> Objective:
    """The objective of a recipe, for so many labels."""
    return known(OBJECTIVES, settings.name, f"there is no objective {settings.name!r}")(settings, labels)
