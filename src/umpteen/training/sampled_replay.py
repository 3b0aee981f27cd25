"""Which labels carry their gradient back to the encoder, when not all of them are to: an unbiased choice (maths §4).

Label j is chosen with probability p_j = min(1, c·‖g_j‖), and its gradient becomes g_j ÷ p_j: the expectation is the
exact gradient, while only a fraction of the labels pays for the second forward and the backward pass.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.parallel.shard import Shard


class Thinned(NamedTuple):
    """What a sample of the labels' gradients spares and costs."""

    fraction: float  # of the labels that are replayed
    noise: float  # √(variance added) ÷ norm of the gradient, both at the vectors


def thin(gradients: Tensor, fraction: float, shard: Shard, start: float) -> tuple[NDArray[np.int64], Tensor, Thinned]:
    """A sample of this shard's rows, their gradients ÷ probability, and what it means.

    Probabilities and choice are made over the labels of all processes, so the sample is the same on any number of them.
    """
    norms = shard.gather(torch.linalg.vector_norm(gradients, dim=1).double()).cpu().numpy()
    if not np.isfinite(norms).all():
        return np.arange(len(gradients)), gradients, Thinned(1.0, 0.0)  # the whole gradient's norm will say so
    probabilities = inclusion_probabilities(norms, fraction * shard.count)
    chosen = systematic_sample(probabilities, start)
    squares = norms[norms > 0] ** 2
    added = float((squares * (1 / probabilities[norms > 0] - 1)).sum())
    thinned = Thinned(len(chosen) / max(shard.count, 1), (added / max(float(squares.sum()), 1e-300)) ** 0.5)
    own = chosen[(chosen >= shard.start) & (chosen < shard.stop)] - shard.start
    weights = torch.from_numpy(1 / probabilities[own + shard.start]).to(gradients)
    return own, gradients[torch.from_numpy(own).to(gradients.device)] * weights[:, None], thinned


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
    fits = falling * np.maximum(expected - certain, 0) <= rest
    m = int(np.argmax(fits))
    return np.asarray(np.minimum(1, norms * (expected - m) / rest[m]))


def systematic_sample(probabilities: NDArray[np.float64], start: float) -> NDArray[np.int64]:
    """Positions chosen with these probabilities: those whose stretch of the running sum covers start, start + 1, ….

    `start`, uniform in [0, 1), is all that is random, so the number chosen is the sum of the probabilities, rounded up
    or down.
    """
    ends = np.cumsum(probabilities)
    marks = np.floor(ends - start)
    chosen = np.diff(marks, prepend=np.floor(-start)) > 0
    return np.flatnonzero(chosen | (probabilities >= 1))
