"""The training step as one would first write it: what `python -m benchmarks pipeline` compares ours with.

Micro-batches in file order, each padded to its own longest text; the score matrix held; the loss left to autograd.
Same encoder, same tokens in a micro-batch, same texts, same optimizer.

B: queries in the batch, L: labels, d: dimension.
"""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus
from torch.optim import AdamW

from umpteen.config.settings import RunConfig
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder
from umpteen.training.step import TrainingData


class NaiveStep:
    """One update of the weights of a shared tower against all labels with decoupled softmax."""

    def __init__(self, encoder: Encoder, data: TrainingData, optimizer: AdamW, settings: RunConfig) -> None:
        self._encoder = encoder
        self._data = data
        self._optimizer = optimizer
        self._settings = settings

    def __call__(self, rows: NDArray[np.int64]) -> float:
        """The loss of the batch, from before the update."""
        self._encoder.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.gradients(rows)
        torch.nn.utils.clip_grad_norm_(self._encoder.parameters(), self._settings.optimizer.clip_norm)
        self._optimizer.step()
        return loss

    def gradients(self, rows: NDArray[np.int64]) -> float:
        """Leaves the batch's gradient on the weights; returns its loss."""
        tables = self._data.labels, self._data.queries.take(rows)
        batches = [batch for table in tables for batch in in_file_order(table, self._settings.training.token_budget)]
        random_states, parts = [], []
        with torch.no_grad():
            for batch in batches:
                random_states.append(torch.get_rng_state())
                parts.append(self._encoder(*batch))
        vectors = torch.cat(parts).requires_grad_()  # [L + B, d]
        labels, queries = torch.split(vectors, [len(table) for table in tables])
        loss = self._loss(queries, labels, rows)
        loss.backward()  # type: ignore[no-untyped-call]
        assert vectors.grad is not None
        gradients = torch.split(vectors.grad, [len(part) for part in parts])
        for batch, state, gradient in zip(batches, random_states, gradients, strict=True):
            torch.set_rng_state(state)  # the same dropout as before
            self._encoder(*batch).backward(gradient)  # type: ignore[no-untyped-call]
        return loss.item()

    def _loss(self, queries: Tensor, labels: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Decoupled softmax (eq. 5), the mean over a query's positives, then over queries."""
        relevant, filtered = (
            torch.from_numpy(pairs.take(rows).matrix.toarray() != 0)
            for pairs in (self._data.relevance, self._data.filtered)
        )
        scores = queries @ labels.T / self._settings.objective.temperature  # [B, L]
        bar = scores.masked_fill(relevant | filtered, -torch.inf).logsumexp(1, keepdim=True)
        terms = softplus(bar - scores).masked_fill(~relevant, 0.0)
        return (terms.sum(1) / relevant.sum(1).clamp_min(1)).mean()


def in_file_order(table: TokenTable, token_budget: int) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of consecutive rows, cut before longest × count would pass the budget."""
    cuts, longest = [0], 0
    for row, length in enumerate(table.lengths.tolist()):
        longest = max(longest, length)
        if row > cuts[-1] and longest * (row + 1 - cuts[-1]) > token_budget:
            cuts.append(row)
            longest = length
    return [table.batch(np.arange(start, stop)) for start, stop in pairwise([*cuts, len(table)]) if start < stop]
