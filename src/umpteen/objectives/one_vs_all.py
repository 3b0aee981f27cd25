"""Binary cross-entropy over every label: each pair is a yes-or-no question of its own."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Targets


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
