"""What every pool of labels in play is, and the one that needs no mining: the batch's own, and random ones.

All processes call it alike and draw the same labels; each of them looks after its own slice of the catalogue.
"""

from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.labels import Relevance
from umpteen.objectives.targets import Pairs, Targets


@dataclass(frozen=True)
class Batch:
    """What a pool may look at: the batch's queries, their vectors, and who is right for whom among all labels."""

    rows: NDArray[np.int64]  # [B] query rows
    vectors: Tensor  # [B, d], without a graph
    targets: Targets  # over all labels
    known: Relevance  # [B, labels] relevant or filtered: no query mines these on its own behalf
    filtered: Pairs | None  # over all labels
    step: int
    rng: np.random.Generator

    @property
    def pulled(self) -> NDArray[np.int64]:
        """The labels that some query of the batch pulls, ascending."""
        return np.unique(self.targets.pulled.label.cpu().numpy())


@dataclass(frozen=True)
class Draw:
    """The labels in play, ascending, and the pairs among them that are too likely right to be pushed down."""

    rows: NDArray[np.int64]
    kept_out: Pairs = field(default_factory=Pairs.empty)  # over all labels
    staleness: float = 0.0  # mean steps since the vectors behind the mined labels, or of a bank, were computed
    others: int = 0  # how many more labels of a bank learn, chosen by their gradients


class Pool:
    """One way of choosing the labels that compete; without more than `draw`, it follows from batch and seed alone."""

    def prepare(self, step: int) -> None:
        """Called before each step, by every process: the time to look at the model anew."""

    @abstractmethod
    def draw(self, batch: Batch) -> Draw:
        """The labels in play for a batch; the pulled ones are always among them."""

    def kept(self) -> Tensor | None:
        """The vectors of all labels of this process's slice, if all compete and those drawn are merely renewed."""
        return None

    def seen(self, rows: NDArray[np.int64], vectors: Tensor, step: int) -> None:
        """These labels of this process's slice have just been encoded."""

    def state(self) -> dict[str, Tensor]:
        """All that a resumed run needs, whole on the first process; every process must ask."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes up a state that any number of processes saved."""


class Uniform(Pool):
    """The batch's pulled labels, and m labels per query drawn uniformly among those not known to be right for it."""

    def __init__(self, per_query: int = 0) -> None:
        self._per_query = per_query

    def draw(self, batch: Batch) -> Draw:
        queries = range(len(batch.rows) if self._per_query else 0)
        drawn = [draw_unknown(batch.known, query, self._per_query, batch.rng) for query in queries]
        return Draw(np.unique(np.concatenate([batch.pulled, *drawn])))


def draw_unknown(known: Relevance, query: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many labels, each at most once, of those not stored for the query; all of them if there are fewer."""
    stored = known.of(query).astype(np.int64)
    left = known.labels - len(stored)
    places = rng.choice(left, min(count, left), replace=False, shuffle=False).astype(np.int64)
    # The place-th label that is not stored: as many labels later as stored ones come before it.
    return places + np.searchsorted(stored - np.arange(len(stored)), places, side="right")
