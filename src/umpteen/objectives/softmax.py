"""Softmax cross-entropy, InfoNCE when the labels in play are the batch's: the baseline of the paper."""

from torch import Tensor

from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Targets


def softmax(scores: Scores, targets: Targets) -> Tensor:
    """Each positive competes with every label in play, the query's other positives too (eq. 3, 4).

    The term of a positive p of query i, over all labels that are not filtered:

        log Σ_j exp(s_ij) − s_ip
    """
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    bar = scores.log_sum_exp()
    return targets.mean(bar[targets.pulled.query] - positive)
