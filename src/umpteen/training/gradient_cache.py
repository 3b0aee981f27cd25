"""Vectors of many texts at the memory of a few (the paper's appendix on memory-efficient training).

The graph is cut at the vectors: micro-batches are encoded without a graph, the loss gives each vector its gradient,
and `replay` encodes each micro-batch again, with a graph and the same dropout, to carry the gradient to the weights.
n: distinct texts, d: dimension.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder, micro_batches
from umpteen.parallel.world import Shard, World

TOGETHER = 1 << 22  # numbers; smaller gradients travel in one message


def sum_gradients_(parameters: Sequence[Tensor], world: World) -> None:
    """Every parameter's gradient becomes its sum over processes; it stays None where no process has one."""
    if world.size == 1:
        return
    # A weight no text reaches must not get a gradient of zeros: the optimizer would let it decay.
    has = world.largest(*(parameter.grad is not None for parameter in parameters))
    reached = [parameter for parameter, some in zip(parameters, has, strict=True) if some]
    for parameter in reached:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    message: list[Tensor] = []
    for parameter in reached:
        assert parameter.grad is not None
        if parameter.numel() >= TOGETHER:
            world.sum_(parameter.grad)
            continue
        if message and (message[0].dtype != parameter.dtype or sum(map(torch.numel, message)) >= TOGETHER):
            _sum_together_(message, world)
            message = []
        message.append(parameter.grad)
    if message:
        _sum_together_(message, world)


def _sum_together_(gradients: list[Tensor], world: World) -> None:
    flat = world.sum_(torch.cat([gradient.flatten() for gradient in gradients]))
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))


class CachedVectors:
    """Texts' vectors, perhaps in half precision, and the way back from their gradients to the encoder's weights."""

    def __init__(
        self, encoder: Encoder, texts: TokenTable, *, budget: int, seed: int, dtype: torch.dtype | None = None
    ) -> None:
        self._encoder, self._texts, self._lengths = encoder, texts, texts.lengths
        self._budget, self._seed = budget, seed
        self._parts = micro_batches(self._lengths, budget)
        self._device = next(encoder.parameters()).device
        self._graph: Tensor | None = None
        self.is_random = False  # whether the encoder draws random numbers, as dropout does
        dtype = dtype or next(encoder.parameters()).dtype
        self.vectors = torch.empty(len(texts), encoder.dimension, dtype=dtype, device=self._device)  # [n, d]
        # One micro-batch fits in memory with its graph: keeping it saves the second forward pass.
        with torch.set_grad_enabled(len(self._parts) == 1):
            for number, part in enumerate(self._parts):
                found = self._forward(part, number)
                self.vectors.index_copy_(0, self._on_device(part), found.detach().to(dtype))
                self._graph = found if found.requires_grad else None

    def _forward(self, part: NDArray[np.int64], number: int) -> Tensor:
        ids, offsets = self._texts.batch(part)
        with seeded(self._seed + number, self._device):
            before = _random_state(self._device)
            vectors = self._encoder(ids.to(self._device), offsets.to(self._device))
            self.is_random |= not torch.equal(before, _random_state(self._device))
            return vectors

    def _on_device(self, positions: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(positions).to(self._device)

    @property
    def tokens(self) -> int:
        """Tokens of the texts, padding not counted."""
        return int(self._lengths.sum())

    def at(self, positions: NDArray[np.int64] | None) -> Tensor:
        """The vectors at some positions; None: all of them, which are not copied."""
        return self.vectors if positions is None else self.vectors[self._on_device(positions)]

    def replay(self, positions: NDArray[np.int64] | None, gradients: Tensor) -> None:
        """Adds to the weights' gradients what those of the vectors at these positions mean for them, once.

        A position named twice gets both. Texts without a gradient are left out where a whole micro-batch of them is, or
        where no dropout ties a text to its micro-batch.
        """
        row = torch.arange(len(self._lengths), device=self._device)  # of each text's gradient; −1: it has none
        if positions is not None:
            texts, place = torch.unique(self._on_device(positions), return_inverse=True)
            if len(texts) < len(place):
                gradients = gradients.to(next(self._encoder.parameters()).dtype)  # their sums are not rounded
                gradients = gradients.new_zeros(len(texts), gradients.shape[1]).index_add_(0, place, gradients)
            else:
                texts = self._on_device(positions)
            row = row.fill_(-1).index_copy_(0, texts, torch.arange(len(texts), device=self._device))
        needed = (row >= 0).cpu().numpy()
        parts = self._parts
        if self._graph is None and not self.is_random and not needed.all():
            kept = np.flatnonzero(needed)
            parts = [kept[part] for part in micro_batches(self._lengths[kept], self._budget)]
        for number, part in enumerate(parts):
            if needed[part].any():
                vectors = self._forward(part, number) if self._graph is None else self._graph
                rows = row[self._on_device(part)]
                at_part = gradients.index_select(0, rows.clamp_min(0)).masked_fill_((rows < 0)[:, None], 0)
                vectors.backward(at_part.to(vectors.dtype))  # type: ignore[no-untyped-call]
        self._graph = None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, random numbers follow from the seed alone; outside, nothing has happened."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


# Which labels carry their gradient back to the encoder, when not all of them are to: an unbiased choice (maths §4).
# Label j is chosen with probability p_j = min(1, c·‖g_j‖), and its gradient becomes g_j ÷ p_j: the expectation is the
# exact gradient, while only a fraction of the labels pays for the second forward and the backward pass. Of a bank, it
# is the exact gradient at the kept vectors, and no other label pays for a forward pass either.
def thin(
    gradients: Tensor, fraction: float, shard: Shard, start: float, certain: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], Tensor, dict[str, float]]:
    """A sample of this shard's rows, their gradients ÷ probability, and what that spares and costs.

    Rows that are certain are in the sample besides the fraction of the others. `replayed` is the fraction of the labels
    that are, `replay_noise` √(variance added) ÷ norm of the gradient, both at the vectors. The choice is made over the
    labels of all processes, so it is the same on any number of them.
    """
    norms = shard.gather(torch.linalg.vector_norm(gradients, dim=1).double()).cpu().numpy()
    if not np.isfinite(norms).all():
        # The whole gradient's norm will say so.
        return np.arange(len(gradients)), gradients, {"replayed": 1.0, "replay_noise": 0.0}
    always = np.isin(np.arange(shard.count), [] if certain is None else certain)
    probabilities = inclusion_probabilities(np.where(always, 0, norms), fraction * shard.count)
    probabilities[always] = 1
    chosen = systematic_sample(probabilities, start)
    likely = probabilities > 0
    added = float((norms[likely] ** 2 * (1 / probabilities[likely] - 1)).sum())
    noise = (added / max(float((norms**2).sum()), 1e-300)) ** 0.5
    report = {"replayed": len(chosen) / max(shard.count, 1), "replay_noise": noise}
    own = chosen[(chosen >= shard.start) & (chosen < shard.stop)] - shard.start
    wide = torch.promote_types(gradients.dtype, torch.float32)  # rounded probabilities would not be unbiased
    weights = torch.from_numpy(1 / probabilities[own + shard.start]).to(gradients.device, wide)
    return own, gradients[torch.from_numpy(own).to(gradients.device)] * weights[:, None], report


def inclusion_probabilities(norms: NDArray[np.float64], expected: float) -> NDArray[np.float64]:
    """min(1, c·norm) with the c that makes them add up to `expected`, or to the number of norms above 0 if fewer."""
    positive = np.flatnonzero(norms > 0)
    probabilities = np.zeros(len(norms))
    if expected >= len(positive):
        probabilities[positive] = 1
        return probabilities
    # The smallest norms are lifted to where quotients stay finite; any probability above 0 keeps the gradient unbiased.
    norms = np.where(norms > 0, np.maximum(norms / norms.max(), 1e-100), 0)
    falling = np.sort(norms[positive])[::-1]
    rest = np.cumsum(falling[::-1])[::-1]  # sum of the norms from each place on
    # With the first m certain, c = (expected − m) / rest; it fits once the next norm stays below 1 with it.
    certain = np.arange(len(falling))
    m = int(np.argmax(falling * np.maximum(expected - certain, 0) <= rest))
    return np.asarray(np.minimum(1, norms * (expected - m) / rest[m]))


def systematic_sample(probabilities: NDArray[np.float64], start: float) -> NDArray[np.int64]:
    """Positions chosen with these probabilities: those whose stretch of the running sum covers start, start + 1, ….

    `start`, uniform in [0, 1), is all that is random, so the number chosen is the sum of the probabilities, rounded up
    or down.
    """
    marks = np.floor(np.cumsum(probabilities) - start)
    chosen = np.diff(marks, prepend=np.floor(-start)) > 0
    return np.flatnonzero(chosen | (probabilities >= 1))
