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
Positions = NDArray[np.int64] | slice


class CachedVectors:
    """The vectors of some texts, and the way back from their gradients to the encoder's weights."""

    def __init__(self, encoder: Encoder, lengths: NDArray[np.int64], fetch: Fetch, *, budget: int, seed: int) -> None:
        self._encoder = encoder
        self._lengths = lengths
        self._fetch = fetch
        self._budget = budget
        self._seed = seed
        self._parts = micro_batches(lengths, budget)
        self._device = next(encoder.parameters()).device
        self._graph: Tensor | None = None
        self.is_random = False  # whether the encoder draws random numbers, as dropout does
        self._gradients: list[tuple[Tensor | slice, Tensor]] = []  # sorted positions or a slice of them, and rows
        self.vectors = self._encode()  # [n, d]

    def _encode(self) -> Tensor:
        if len(self._parts) == 1:
            # One micro-batch fits in memory with its graph: keeping it saves the second forward pass.
            self._graph = self._forward(self._parts[0], 0)
            vectors = torch.empty_like(self._graph)
            return vectors.index_copy_(0, self._on_device(self._parts[0]), self._graph.detach())
        vectors = next(self._encoder.parameters()).new_empty(len(self._lengths), self._encoder.dimension)
        with torch.no_grad():
            for number, part in enumerate(self._parts):
                vectors.index_copy_(0, self._on_device(part), self._forward(part, number))
        return vectors

    def _forward(self, part: NDArray[np.int64], number: int) -> Tensor:
        ids, offsets = self._fetch(part)
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

    def at(self, positions: Positions) -> Tensor:
        """The vectors at some positions; a slice of them is not copied."""
        return self.vectors[positions if isinstance(positions, slice) else self._on_device(positions)]

    def add_gradients(self, positions: Positions, gradients: Tensor) -> None:
        """Gradients for the vectors at some positions; a position named twice gets both."""
        if isinstance(positions, slice):
            self._gradients.append((positions, gradients))
            return
        texts, place = torch.unique(self._on_device(positions), return_inverse=True)
        if len(texts) < len(positions):
            gradients = gradients.new_zeros(len(texts), gradients.shape[1]).index_add_(0, place, gradients)
        else:
            gradients = gradients[place.argsort()]
        self._gradients.append((texts, gradients))

    def replay(self) -> int:
        """Adds to the weights' gradients what the vectors' gradients mean for them; returns how many texts that took.

        Texts without a gradient are left out where a whole micro-batch of them is, or where no dropout ties a text
        to its micro-batch.
        """
        if self._graph is not None:
            graph, self._graph = self._graph, None
            if self._gradients:
                graph.backward(self._gradients_at(self._parts[0]))  # type: ignore[no-untyped-call]
            return len(self._lengths) if self._gradients else 0
        needed = self._needed()
        parts = self._parts
        if not needed.all() and not self.is_random:
            kept = np.flatnonzero(needed)
            parts = [kept[part] for part in micro_batches(self._lengths[kept], self._budget)]
        replayed = 0
        for number, part in enumerate(parts):
            if needed[part].any():
                self._forward(part, number).backward(self._gradients_at(part))  # type: ignore[no-untyped-call]
                replayed += len(part)
        return replayed

    def _needed(self) -> NDArray[np.bool_]:
        needed = np.zeros(len(self._lengths), dtype=bool)
        for positions, _ in self._gradients:
            needed[positions if isinstance(positions, slice) else positions.cpu().numpy()] = True
        return needed

    def _gradients_at(self, part: NDArray[np.int64]) -> Tensor:
        texts = self._on_device(part)
        positions, rows = self._gradients[0]
        if len(self._gradients) == 1 and isinstance(positions, slice) and len(rows) == len(self.vectors):
            return rows.index_select(0, texts)
        total = self.vectors.new_zeros(len(part), self.vectors.shape[1])
        for positions, rows in self._gradients:
            if isinstance(positions, slice):
                start, stop, _ = positions.indices(len(self.vectors))
                which = torch.where((texts >= start) & (texts < stop))[0]
                row = texts[which] - start
            elif len(positions):
                row = torch.searchsorted(positions, texts).clamp_max(len(positions) - 1)
                which = torch.where(positions[row] == texts)[0]
                row = row[which]
            else:
                continue
            total.index_add_(0, which, rows[row])
        return total


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, random numbers follow from the seed alone; outside, nothing has happened."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
