"""Losses for queries with many positives, for sentence-transformers' own trainers, and what goes with them.

    loss = DecoupledSoftmaxLoss(model)  # where MultipleNegativesRankingLoss(model) stood

Texts of a batch that have the same tokens are one: a label that stands there twice is one label and is encoded once,
and all that the batch says about a query counts as its positives.
"""

from umpteen.sentence_transformers.data import MultiLabelCollator, MultiLabelEvaluator, QueryBatchSampler
from umpteen.sentence_transformers.losses import (
    DecoupledSoftmaxLoss,
    ManyPositivesLoss,
    MultiPositiveSoftmaxLoss,
    SoftTopKLoss,
)

__all__ = [
    "DecoupledSoftmaxLoss",
    "ManyPositivesLoss",
    "MultiLabelCollator",
    "MultiLabelEvaluator",
    "MultiPositiveSoftmaxLoss",
    "QueryBatchSampler",
    "SoftTopKLoss",
]
