"""The bars that need no more than a running number or two per query: log-sum-exp and the sum of softplus."""

from typing import Self

import torch
from torch import Tensor

from umpteen.parallel.world import World


class LogSumExp:
    """log Σ_j exp(s_ij), −∞ where no label is left; its gradient is exp(s_ij − value_i).

    Scores known to be small, as those of normalised vectors are, go into exp as they are; others relative to the
    largest so far.
    """

    sharpness = 1.0

    def __init__(self, like: Tensor, largest: float) -> None:
        self.small = largest <= 30
        self.peak = like.new_full((len(like),), 0 if self.small else -torch.inf)  # [B] what exponents are relative to
        self.mass = like.new_zeros(len(like))  # [B] Σ exp(score − peak)
        self._value = torch.empty_like(self.mass)

    def fold(self, tile: Tensor) -> None:
        if self.small:
            self.mass += tile.exp_().sum(1)
            return
        self._raise(torch.maximum(self.peak, tile.amax(1)))
        tile.sub_(torch.where(self.peak == -torch.inf, 0, self.peak)[:, None])
        self.mass += drop_negligible_(tile).exp_().sum(1)

    def merge(self, other: Self) -> None:
        peak = torch.maximum(self.peak, other.peak)
        for each in (self, other):
            each._raise(peak)
        self.mass += other.mass

    def value(self, world: World) -> Tensor:
        self._value = world.gather(self.peak + self.mass.log()).logsumexp(0)
        return self._value

    def weigh(self, tile: Tensor) -> None:
        if not self.small:
            tile.sub_(torch.where(self._value == -torch.inf, torch.inf, self._value)[:, None])
            drop_negligible_(tile)
        tile.exp_()

    def factor(self) -> Tensor:
        value = self._value
        return torch.where(value == -torch.inf, 0, (-value).exp()) if self.small else torch.ones_like(value)

    def _raise(self, peak: Tensor) -> None:
        self.mass *= torch.where(self.peak == peak, 0, self.peak - peak).exp()  # −∞ − −∞ is not a number
        self.peak = peak


class SoftplusSum:
    """Σ_j log(1 + exp(s_ij)); its gradient is the logistic function of s_ij."""

    sharpness = 1.0

    def __init__(self, like: Tensor) -> None:
        self.total = like.new_zeros(len(like))  # [B]

    def fold(self, tile: Tensor) -> None:
        self.total += torch.logaddexp(drop_negligible_(tile), tile.new_zeros(()), out=tile).sum(1)

    def merge(self, other: Self) -> None:
        self.total += other.total

    def value(self, world: World) -> Tensor:
        return world.sum_(self.total.clone())

    def weigh(self, tile: Tensor) -> None:
        drop_negligible_(tile).sigmoid_()

    def factor(self) -> Tensor:
        return torch.ones_like(self.total)


def drop_negligible_(exponents: Tensor) -> Tensor:
    """Exponents whose exponential is next to nothing become −∞, in place.

    Denormal numbers, and products that turn into them, slow the matrix products of x86 down severalfold.
    """
    return torch.threshold_(exponents, -negligible(exponents.dtype), -torch.inf)


def negligible(dtype: torch.dtype) -> float:
    """An x whose exp(−x) is next to nothing, and far from denormal."""
    return 60.0 if dtype == torch.float32 else 600.0
