"""The reductions that need one running number per query: log-sum-exp and the sum of softplus.

Each keeps a partial result that merges with another one (of other labels) before `value` is asked for.
"""

import torch
from torch import Tensor


class LogSumExp:
    """log Σ_j exp(s_ij), −∞ where no label is left; its gradient is exp(s_ij − value_i)."""

    sharpness = 1.0

    def __init__(self, like: Tensor) -> None:
        self.peak = like.new_full((len(like),), -torch.inf)  # [B] the largest score seen
        self.mass = like.new_zeros(len(like))  # [B] Σ exp(score − peak)

    def fold(self, tile: Tensor) -> None:
        peak = torch.maximum(self.peak, tile.amax(1))
        reference = torch.where(peak == -torch.inf, 0, peak)  # −∞ − −∞ is not a number
        tile.sub_(reference[:, None])
        self.mass = self.mass * (self.peak - reference).exp() + drop_negligible_(tile).exp_().sum(1)
        self.peak = peak

    def value(self) -> Tensor:
        return self.peak + self.mass.log()

    def weigh(self, tile: Tensor, active: Tensor) -> None:
        value = self.value()
        tile.sub_(torch.where(active & (value != -torch.inf), value, torch.inf)[:, None])
        drop_negligible_(tile).exp_()


class SoftplusSum:
    """Σ_j log(1 + exp(s_ij)); its gradient is the logistic function of s_ij."""

    sharpness = 1.0

    def __init__(self, like: Tensor) -> None:
        self.total = like.new_zeros(len(like))  # [B]

    def fold(self, tile: Tensor) -> None:
        self.total += torch.logaddexp(tile, tile.new_zeros(()), out=tile).sum(1)

    def value(self) -> Tensor:
        return self.total.clone()

    def weigh(self, tile: Tensor, active: Tensor) -> None:
        drop_negligible_(tile).sigmoid_()


def drop_negligible_(exponents: Tensor) -> Tensor:
    """Exponents whose exponential is next to nothing become −∞, in place.

    Denormal numbers, and products that turn into them, slow the matrix products of x86 down severalfold.
    """
    smallest = -60.0 if exponents.dtype == torch.float32 else -600.0
    return torch.threshold_(exponents, smallest, -torch.inf)
