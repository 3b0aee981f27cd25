"""The paper's decoupled softmax: positives no longer compete with each other."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Targets


def decoupled_softmax(scores: Scores, targets: Targets) -> Tensor:
    """Each positive competes with the query's negatives, never with its other positives (eq. 5).

    The term of a positive p of query i, over the labels that are neither relevant to i nor filtered:

        log(1 + Σ_j exp(s_ij) / exp(s_ip))
    """
    targets = targets.without(scores.filtered)
    positive = scores.at(targets.pulled)
    bar = scores.log_sum_exp(excluding=targets.relevant)
    return targets.mean(-logsigmoid(positive - bar[targets.pulled.query]))
