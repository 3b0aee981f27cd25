"""The losses: pure mathematics over scores that are never held all at once."""

from umpteen.objectives.decoupled_softmax import decoupled_softmax
from umpteen.objectives.one_vs_all import one_vs_all
from umpteen.objectives.scores import Scores
from umpteen.objectives.soft_top_k import soft_top_k
from umpteen.objectives.softmax import softmax
from umpteen.objectives.targets import Pairs, Targets

__all__ = ["Pairs", "Scores", "Targets", "decoupled_softmax", "one_vs_all", "soft_top_k", "softmax"]
