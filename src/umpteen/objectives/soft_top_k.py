"""The paper's SoftTop-k: a positive is content to be among the top k, whoever else is there."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from umpteen.errors import BadInput
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Targets


def soft_top_k(scores: Scores, targets: Targets, k: int | Tensor | Literal["positives"], alpha: float = 2.0) -> Tensor:
    """Each positive is compared with the threshold that k labels softly exceed (eq. 6 without its factor 1/L).

    The term of a positive p of query i, t_i being the number with Σ_j σ(alpha · (s_ij − t_i)) = k over all labels
    that are not filtered:

        log(1 + exp(alpha · (t_i − s_ip)))

    k is one number, one per query [B], or "positives": as many as are relevant to the query. A query with a k of
    its own that has no more labels than that contributes nothing.
    """
    if isinstance(k, str) and k != "positives":
        raise BadInput(f'k is {k!r}; give a number, one per query, or "positives"')
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    threshold = scores.soft_threshold(targets.relevant.per_query(targets.queries) if isinstance(k, str) else k, alpha)
    return targets.mean(-logsigmoid(alpha * (positive - threshold[targets.pulled.query])))


def soft_top_k_in_pool(scores: Scores, targets: Targets, k: int, alpha: float = 2.0) -> Tensor:
    """The same over a pool of labels, where a query may have no more than k of them: it then contributes nothing."""
    return soft_top_k(scores, targets, torch.full((targets.queries,), k, device=targets.pulled.query.device), alpha)
