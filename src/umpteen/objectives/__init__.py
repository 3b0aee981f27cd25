"""The losses: pure mathematics over scores that are never held all at once."""

from umpteen.objectives.losses import decoupled_softmax, one_vs_all, soft_top_k, softmax
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets

__all__ = ["Pairs", "Scores", "Targets", "decoupled_softmax", "one_vs_all", "soft_top_k", "softmax"]
