"""In-batch negatives: the labels that other queries of the batch pull."""

from umpteen.training.pools.pool import Batch, Draw, Stateless


class InBatch(Stateless):
    """The pulled labels of the batch and no others."""

    def draw(self, batch: Batch) -> Draw:
        return Draw(batch.pulled)
