"""Fresh hard negatives from a cache of all label vectors: those the loss against the cache would push hardest.

Every label is encoded once at the start; a label's cached vector is renewed whenever it is in play.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.towers import Towers
from umpteen.objectives.losses import Objective
from umpteen.objectives.scores import Scores
from umpteen.parallel.world import Shard
from umpteen.training.negatives.pool import Batch, Draw, Pool


@dataclass(eq=False)
class VectorCache(Pool):
    """The batch's pulled labels, and the K others with the largest ‖∂loss/∂z‖ when z are the cached vectors."""

    towers: Towers
    labels: TokenTable
    objective: Objective
    shard: Shard
    per_query: int  # K is so many for each query of the batch
    temperature: float
    tile: int | None = None
    token_budget: int | None = None

    def __post_init__(self) -> None:
        self._vectors: Tensor | None = None  # [own labels, d]
        self._seen = torch.zeros(len(self.shard), dtype=torch.int64)  # the step at which each was last encoded

    def prepare(self, step: int) -> None:
        if self._vectors is None:
            own = self.labels.take(np.arange(self.shard.start, self.shard.stop))
            self._vectors = encode_tokens(self.towers.label, own, token_budget=self.token_budget)
            self._seen.fill_(step)

    def draw(self, batch: Batch) -> Draw:
        norms = self.push(batch)
        taken = batch.pulled
        taken = taken[(taken >= self.shard.start) & (taken < self.shard.stop)] - self.shard.start
        norms[torch.from_numpy(taken).to(norms.device)] = 0
        mined = self._largest(norms, self.per_query * len(batch.rows))
        own = mined[(mined >= self.shard.start) & (mined < self.shard.stop)] - self.shard.start
        world = self.shard.world
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
            shard=self.shard,
            temperature=self.temperature,
            filtered=filtered,
            tile=self.tile,
        )
        loss = self.objective(scores, batch.targets)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = vectors.grad
        return vectors.new_zeros(len(vectors)) if gradient is None else torch.linalg.vector_norm(gradient, dim=1)

    def _largest(self, norms: Tensor, count: int) -> Tensor:
        """Rows of the labels with the largest norms over all processes, ascending; a label nobody pushes is none."""
        found = norms.topk(min(count, len(norms)))
        size = int(self.shard.world.largest(len(found.values))[0])
        numbers = torch.zeros(2, size, dtype=torch.float64, device=norms.device)
        numbers[0, : len(found.values)] = found.values
        numbers[1, : len(found.values)] = found.indices + self.shard.start
        everyone = self.shard.world.gather(numbers).transpose(0, 1).reshape(2, -1).cpu()
        order = np.lexsort((everyone[1].numpy(), -everyone[0].numpy()))[:count]
        order = order[everyone[0].numpy()[order] > 0]
        return everyone[1][torch.from_numpy(order)].to(torch.int64).sort().values

    def seen(self, rows: NDArray[np.int64], vectors: Tensor, step: int) -> None:
        assert self._vectors is not None
        own = torch.from_numpy(rows - self.shard.start)
        self._vectors[own.to(self._vectors.device)] = vectors.detach()
        self._seen[own] = step

    def state(self) -> dict[str, Tensor]:
        if self._vectors is None:
            return {}
        vectors = self.shard.collect(self._vectors)
        seen = self.shard.collect(self._seen.to(self._vectors.device))
        return {} if vectors is None or seen is None else {"vectors": vectors.cpu(), "seen": seen.cpu()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if state:
            device = next(self.towers.label.parameters()).device
            self._vectors = state["vectors"][self.shard.rows].to(device)
            self._seen = state["seen"][self.shard.rows].cpu()
