"""What a step works on: the data it draws from, what a batch asks of the loss, and which texts have to be encoded."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.labels import Relevance, draw_positives
from umpteen.data.tokens import TokenTable
from umpteen.objectives.targets import Pairs, Targets
from umpteen.training.negatives.pool import Draw


@dataclass(frozen=True)
class TrainingData:
    """What steps draw from: tokens of queries and labels, who is right for whom, and which pairs to ignore."""

    queries: TokenTable
    labels: TokenTable
    relevance: Relevance
    filtered: Relevance

    def __post_init__(self) -> None:
        # A filtered pair leaves everything: no query is drawn for its sake, and it takes no other positive's place.
        object.__setattr__(self, "relevance", self.relevance.without(self.filtered))

    @cached_property
    def known(self) -> Relevance:
        """Relevant or filtered: what is never mined as a query's negative."""
        return self.relevance.either(self.filtered)

    def targets(
        self,
        rows: NDArray[np.int64],
        positives: int | None,
        reduction: Literal["mean", "sum"],
        rng: np.random.Generator,
        *,
        device: torch.device,
    ) -> tuple[Targets, Pairs | None]:
        """What a batch pulls (at most so many positives a query), what is relevant to it, and its filtered pairs."""
        query, label, weights = draw_positives(self.relevance, rows, positives, rng)
        batch = self.relevance.take(rows)
        filtered = self.filtered.take(rows)
        scale = None
        if positives is not None:
            # Sampling n of a query's positives is unbiased for their sum once scaled by |P| / n; a mean ignores it.
            every, _, _ = draw_positives(self.relevance, rows, None, rng)
            counts = [np.bincount(queries, minlength=len(rows)) for queries in (every, query)]
            scale = torch.from_numpy(counts[0] / np.maximum(counts[1], 1)).to(device)
        targets = Targets(
            pulled=Pairs(torch.from_numpy(query).to(device), torch.from_numpy(label).to(device)),
            relevant=_pairs(batch, device),
            queries=len(rows),
            weights=torch.from_numpy(weights).to(device) if batch.graded else None,
            reduction=reduction,
            scale=scale,
        )
        return targets, _pairs(filtered, device) if filtered.matrix.nnz else None


def in_pool(targets: Targets, filtered: Pairs | None, draw: Draw) -> tuple[Targets, Pairs | None]:
    """The same over the labels in play, by their positions there; pairs kept out become filtered ones."""
    rows = torch.from_numpy(draw.rows).to(targets.relevant.label.device)
    left_out = draw.kept_out if filtered is None else filtered.joined(draw.kept_out)
    inside = replace(
        targets, pulled=_at_positions(targets.pulled, rows), relevant=_at_positions(targets.relevant, rows)
    )
    left_out = _at_positions(left_out, rows)
    return inside, left_out if len(left_out.query) else None


def _at_positions(pairs: Pairs, rows: Tensor) -> Pairs:
    """The pairs whose label stands among ascending rows, the label by its position there."""
    pairs = Pairs(pairs.query.to(rows.device), pairs.label.to(rows.device))
    positions = torch.searchsorted(rows, pairs.label).clamp_max(len(rows) - 1)
    there = rows[positions] == pairs.label
    return Pairs(pairs.query[there], positions[there])


def _pairs(relevance: Relevance, device: torch.device) -> Pairs:
    matrix = relevance.matrix
    query = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return Pairs(torch.from_numpy(query).to(device), torch.from_numpy(matrix.indices.astype(np.int64)).to(device))


FEW_TWINS = 0.1  # a smaller share of labels with an earlier label's text is encoded again: cheaper than copies of all


class LabelTexts:
    """The distinct texts of a process's labels, and where each label stands in them; None: one text each, in order.

    In order, neither vectors nor their gradients need to be copied.
    """

    def __init__(self, labels: TokenTable) -> None:
        self.distinct, positions = labels.distinct()
        self.positions: NDArray[np.int64] | None = positions
        if len(self.distinct) >= (1 - FEW_TWINS) * len(labels):
            self.distinct, self.positions = labels, None

    def of(self, rows: NDArray[np.int64]) -> tuple[TokenTable, NDArray[np.int64]]:
        """The distinct texts of some of the labels, and where each of these stands in them."""
        needed, places = np.unique(rows if self.positions is None else self.positions[rows], return_inverse=True)
        return self.distinct.take(needed), places.astype(np.int64)
