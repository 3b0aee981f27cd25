"""One learned vector a row, of which a step touches only those it takes: the gradient is kept as rows and values.

L: rows in all, n: rows taken, d: dimension.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from umpteen.errors import BadInput
from umpteen.parallel.world import Shard, World

BLOCK = 4096  # rows whose start follows from one seed, whichever process holds them


class RowGradient(NamedTuple):
    """Of some rows, numbered from the first that this process holds; no row stands twice."""

    rows: Tensor  # int64 [n]
    values: Tensor  # [n, d]


class RowTable(nn.Module):
    """The rows of this process's shard, and the gradients that backward passes have left on some of them."""

    def __init__(self, weight: Tensor, shard: Shard | None = None) -> None:
        super().__init__()
        if weight.ndim != 2 or not weight.is_floating_point():
            raise BadInput(f"the table is {weight.dtype} {tuple(weight.shape)}, not a row of numbers for each label")
        self.shard = shard or Shard(World(), len(weight))
        self.weight = nn.Parameter(weight)  # [own, d]
        self._taken: list[RowGradient] = []  # by backward passes, each without repeats

    @classmethod
    def gaussian(cls, shard: Shard, dimension: int, seed: int) -> "RowTable":
        """Rows of about unit length, the same for a seed on any number of processes."""
        weight = torch.empty(len(shard), dimension)
        for block in range(shard.start // BLOCK, -(-shard.stop // BLOCK)):
            numbers = torch.Generator().manual_seed(seed * 1_000_003 + block)
            drawn = torch.randn(BLOCK, dimension, generator=numbers).div_(dimension**0.5)
            first, last = max(shard.start, block * BLOCK), min(shard.stop, (block + 1) * BLOCK)
            weight[first - shard.start : last - shard.start] = drawn[first - block * BLOCK : last - block * BLOCK]
        return cls(weight, shard)

    @classmethod
    def zeros(cls, shard: Shard, dimension: int) -> "RowTable":
        return cls(torch.zeros(len(shard), dimension), shard)

    @property
    def count(self) -> int:
        """L, over all processes."""
        return self.shard.count

    @property
    def dimension(self) -> int:
        return self.weight.shape[1]

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors of these rows of the whole table, which this process must hold."""
        vectors: Tensor = _Take.apply(self.weight, rows - self.shard.start, self._taken)  # type: ignore[no-untyped-call]
        return vectors

    def gradients(self) -> list[RowGradient]:
        """What backward passes have left, by micro-batch, so that little is copied; a row taken twice is added up."""
        if len(self._taken) > 1:
            distinct, place = torch.unique(torch.cat([part.rows for part in self._taken]), return_inverse=True)
            if len(distinct) < len(place):
                values = torch.cat([part.values for part in self._taken])
                summed = values.new_zeros(len(distinct), values.shape[1]).index_add_(0, place, values)
                self._taken[:] = [RowGradient(distinct, summed)]
        return self._taken

    def scale_gradients(self, factor: float) -> None:
        # Not in place: what autograd hands over may be somebody else's, too. One by one: all are as large as the table.
        for number, (rows, values) in enumerate(self._taken):
            self._taken[number] = RowGradient(rows, values * factor)

    def dense_gradient(self) -> Tensor:
        """The same as a matrix, for comparison; rows without a gradient are 0."""
        dense = torch.zeros_like(self.weight)
        for rows, values in self._taken:
            dense.index_add_(0, rows, values)
        return dense

    def forget_gradients(self) -> None:
        self._taken.clear()

    def rearranged(self, rows: Tensor, start: "RowTable") -> "RowTable":
        """Row i of the result is row rows[i] of this table, which must be whole, or where that is < 0 as in `start`."""
        own = rows[start.shard.rows]
        known = torch.where(own >= 0)[0]
        with torch.no_grad():
            start.weight[known] = self.weight[own[known]]
        return start

    def collect_(self) -> None:
        """All rows come to the first process; every process must call it."""
        whole = self.shard.collect(self.weight.detach())
        if whole is not None:
            self.shard = Shard(World(), self.count)
            self.weight.data = whole


def row_tables(model: nn.Module) -> dict[str, RowTable]:
    """The tables inside a model, by the name of their weight."""
    tables = ((name, module) for name, module in model.named_modules() if isinstance(module, RowTable))
    return {f"{name}.weight".lstrip("."): table for name, table in tables}


class _Take(torch.autograd.Function):
    """weight[rows], whose backward pass keeps rows and values instead of filling a matrix."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, taken: list[RowGradient]) -> Tensor:
        ctx.rows, ctx.taken = rows, taken
        return weight.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        rows, place = torch.unique(ctx.rows, return_inverse=True)
        if len(rows) < len(place):
            values = gradient.new_zeros(len(rows), gradient.shape[1]).index_add_(0, place, gradient)
        else:
            rows, values = ctx.rows, gradient.contiguous()
        ctx.taken.append(RowGradient(rows, values))
        return None, None, None
