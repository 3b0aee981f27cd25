"""Random negatives: the control that any mining has to beat."""

import numpy as np
from numpy.typing import NDArray

from umpteen.data.relevance import Relevance
from umpteen.training.pools.pool import Batch, Draw, Stateless


class Uniform(Stateless):
    """The batch's pulled labels, and m labels per query drawn uniformly among those not known to be right for it."""

    def __init__(self, per_query: int) -> None:
        self._per_query = per_query

    def draw(self, batch: Batch) -> Draw:
        drawn = [draw_unknown(batch.known, query, self._per_query, batch.rng) for query in range(len(batch.rows))]
        return Draw(np.unique(np.concatenate([batch.pulled, *drawn])))


def draw_unknown(known: Relevance, query: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many labels, each at most once, of those not stored for the query; all of them if there are fewer."""
    stored = known.of(query).astype(np.int64)
    left = known.labels - len(stored)
    places = rng.choice(left, min(count, left), replace=False, shuffle=False).astype(np.int64)
    # The place-th label that is not stored: as many labels later as stored ones come before it.
    return places + np.searchsorted(stored - np.arange(len(stored)), places, side="right")
