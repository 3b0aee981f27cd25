"""Fresh hard negatives from a cache of all label vectors: those the loss against the cache would push hardest.

Every label is encoded once at the start; a label's cached vector is renewed whenever it is in play.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.towers import Towers
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Targets
from umpteen.parallel.world import Shard
from umpteen.training.negatives.pool import Batch, Draw


class VectorCache:
    """The batch's pulled labels, and the K others with the largest ‖∂loss/∂z‖ when z are the cached vectors."""

    def __init__(
        self,
        towers: Towers,
        labels: TokenTable,
        objective: Callable[[Scores, Targets], Tensor],
        shard: Shard,
        *,
        per_query: int,  # K is so many for each query of the batch
        temperature: float,
        tile: int | None = None,
        token_budget: int | None = None,
    ) -> None:
        self._towers = towers
        self._labels = labels
        self._objective = objective
        self._shard = shard
        self._per_query = per_query
        self._temperature = temperature
        self._tile = tile
        self._token_budget = token_budget
        self._vectors: Tensor | None = None  # [own labels, d]
        self._seen = torch.zeros(len(shard), dtype=torch.int64)  # the step at which each was last encoded

    def prepare(self, step: int) -> None:
        if self._vectors is None:
            own = self._labels.take(np.arange(self._shard.start, self._shard.stop))
            self._vectors = encode_tokens(self._towers.label, own, token_budget=self._token_budget)
            self._seen.fill_(step)

    def draw(self, batch: Batch) -> Draw:
        norms = self.push(batch)
        taken = batch.pulled
        taken = taken[(taken >= self._shard.start) & (taken < self._shard.stop)] - self._shard.start
        norms[torch.from_numpy(taken).to(norms.device)] = 0
        mined = self._largest(norms, self._per_query * len(batch.rows))
        own = mined[(mined >= self._shard.start) & (mined < self._shard.stop)] - self._shard.start
        world = self._shard.world
        waited = (batch.step - self._seen[own]).sum(0, keepdim=True).to(world.device, torch.float64)
        staleness = float(world.sum_(waited)) / max(1, len(mined))
        return Draw(np.union1d(batch.pulled, mined.numpy()), staleness=staleness)

    def push(self, batch: Batch) -> Tensor:
        """‖∂loss/∂z‖ of this process's labels [own], no query pushing on a label that is known to be right for it."""
        assert self._vectors is not None
        vectors = self._vectors.detach().requires_grad_()
        relevant = batch.targets.relevant
        unpulled = relevant.take(~relevant.within(batch.targets.pulled))
        filtered = unpulled if batch.filtered is None else unpulled.joined(batch.filtered)
        scores = Scores(
            batch.vectors,
            vectors,
            shard=self._shard,
            temperature=self._temperature,
            filtered=filtered,
            tile=self._tile,
        )
        loss = self._objective(scores, batch.targets)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = vectors.grad
        return vectors.new_zeros(len(vectors)) if gradient is None else torch.linalg.vector_norm(gradient, dim=1)

    def _largest(self, norms: Tensor, count: int) -> Tensor:
        """Rows of the labels with the largest norms over all processes, ascending; a label nobody pushes is none."""
        found = norms.topk(min(count, len(norms)))
        size = int(self._shard.world.largest(len(found.values))[0])
        numbers = torch.zeros(2, size, dtype=torch.float64, device=norms.device)
        numbers[0, : len(found.values)] = found.values
        numbers[1, : len(found.values)] = found.indices + self._shard.start
        everyone = self._shard.world.gather(numbers).transpose(0, 1).reshape(2, -1).cpu()
        order = np.lexsort((everyone[1].numpy(), -everyone[0].numpy()))[:count]
        order = order[everyone[0].numpy()[order] > 0]
        return everyone[1][torch.from_numpy(order)].to(torch.int64).sort().values

    def seen(self, rows: NDArray[np.int64], vectors: Tensor, step: int) -> None:
        assert self._vectors is not None
        own = torch.from_numpy(rows - self._shard.start)
        self._vectors[own.to(self._vectors.device)] = vectors.detach()
        self._seen[own] = step

    def state(self) -> dict[str, Tensor]:
        if self._vectors is None:
            return {}
        vectors = self._shard.collect(self._vectors)
        seen = self._shard.collect(self._seen.to(self._vectors.device))
        return {} if vectors is None or seen is None else {"vectors": vectors.cpu(), "seen": seen.cpu()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if state:
            device = next(self._towers.label.parameters()).device
            self._vectors = state["vectors"][self._shard.rows].to(device)
            self._seen = state["seen"][self._shard.rows].cpu()
