"""Vectors of many texts at the memory of a few (the paper's appendix on memory-efficient training).

The graph is cut at the vectors: micro-batches are encoded without a graph, the loss gives each vector its gradient,
and `replay` encodes each micro-batch again, with a graph and the same dropout, to carry the gradient to the weights.

n: distinct texts, d: dimension.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.encoders.encoder import Encoder
from umpteen.encoding import micro_batches

Fetch = Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]


class CachedVectors:
    """The vectors of some texts, and the way back from their gradients to the encoder's weights."""

    def __init__(self, encoder: Encoder, lengths: NDArray[np.int64], fetch: Fetch, *, budget: int, seed: int) -> None:
        self._encoder = encoder
        self._fetch = fetch
        self._seed = seed
        self._parts = micro_batches(lengths, budget)
        self._graph: Tensor | None = None
        self.vectors = self._encode(len(lengths))  # [n, d]
        self.gradients: Tensor | None = None  # [n, d]

    def _encode(self, count: int) -> Tensor:
        if len(self._parts) == 1:
            # One micro-batch fits in memory with its graph: keeping it saves the second forward pass.
            self._graph = self._forward(0)
            vectors = torch.empty_like(self._graph)
            return vectors.index_copy_(0, self._positions(0, vectors), self._graph.detach())
        parameter = next(self._encoder.parameters())
        vectors = parameter.new_empty(count, self._encoder.dimension)
        with torch.no_grad():
            for part in range(len(self._parts)):
                vectors.index_copy_(0, self._positions(part, vectors), self._forward(part))
        return vectors

    def _forward(self, part: int) -> Tensor:
        ids, offsets = self._fetch(self._parts[part])
        device = next(self._encoder.parameters()).device
        with seeded(self._seed + part, device):
            vectors: Tensor = self._encoder(ids.to(device), offsets.to(device))
            return vectors

    def _positions(self, part: int, like: Tensor) -> Tensor:
        return torch.from_numpy(self._parts[part]).to(like.device)

    def add_gradients(self, positions: Tensor | None, gradients: Tensor) -> None:
        """Gradients for the vectors at some positions (all of them, in order, without positions)."""
        if positions is None and self.gradients is None:
            self.gradients = gradients
            return
        if self.gradients is None:
            self.gradients = torch.zeros_like(self.vectors)
        if positions is None:
            self.gradients += gradients
        else:
            self.gradients.index_add_(0, positions, gradients)

    def replay(self) -> None:
        """Adds to the weights' gradients what the vectors' gradients mean for them."""
        if self.gradients is None:
            return
        for part in range(len(self._parts)):
            vectors = self._forward(part) if self._graph is None else self._graph
            vectors.backward(self.gradients[self._positions(part, vectors)])  # type: ignore[no-untyped-call]
        self._graph = None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, random numbers follow from the seed alone; outside, nothing has happened."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
