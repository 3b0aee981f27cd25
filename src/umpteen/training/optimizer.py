"""AdamW with the paper's parameter groups and schedule, lazy for the rows of label tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from umpteen.encoders.rows import RowGradient, RowTable, row_tables
from umpteen.parallel.world import World

ROWS_AT_ONCE = 2048  # their weights, moments and gradients stay in the processor's cache


# Lazy: a row's moments, its weight decay and the count its bias correction goes by advance only in steps that have the
# row in play. With every row in play in every step it is AdamW; a row that rests stays as it is, moments and all.
class RowAdamW(AdamW):
    """AdamW; the state of a table's weight has the moments of each row, and a count of steps for each."""

    def __init__(self, groups: Iterable[dict[str, Any]], tables: Sequence[RowTable], **settings: Any) -> None:
        super().__init__(list(groups), **settings)
        self.tables = {table.weight: table for table in tables}
        for weight in self.tables:  # on every process at once, whoever has rows in play first
            own = weight.detach()
            count = torch.zeros(len(own), dtype=torch.int32, device=own.device)
            self.state[weight] = {"step": count, "exp_avg": torch.zeros_like(own), "exp_avg_sq": torch.zeros_like(own)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss: float | None = super().step(closure)  # passes over tables, whose weights have no dense gradient
        for group in self.param_groups:
            for table in (self.tables[weight] for weight in group["params"] if weight in self.tables):
                for part in table.gradients():
                    self._update(table.weight, part, group)
                table.forget_gradients()  # they may be as large as the table
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for table in self.tables.values():
            table.forget_gradients()

    def _update(self, weight: Tensor, part: RowGradient, group: dict[str, Any]) -> None:
        state = self.state[weight]
        everything = weight, state["step"], state["exp_avg"], state["exp_avg_sq"]
        for start in range(0, len(part.rows), ROWS_AT_ONCE):
            rows, values = (tensor[start : start + ROWS_AT_ONCE] for tensor in part)
            first, last = int(rows[0]), int(rows[-1])
            if last - first == len(rows) - 1 and bool((rows.diff() == 1).all()):  # neighbours need not be copied
                _adamw_([tensor[first : last + 1] for tensor in everything], values, group)
                continue
            taken = [tensor[rows] for tensor in everything]
            _adamw_(taken, values, group)
            for tensor, updated in zip(everything, taken, strict=True):
                tensor[rows] = updated


def _adamw_(rows: Sequence[Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
    """One step of AdamW in place, each row by its own count."""
    weight, step, mean, square = rows  # [n, d], and [n] for the count
    rate, (beta1, beta2) = group["lr"], group["betas"]
    step.add_(1)
    counts = step.double()[:, None]
    to_mean = (1 - beta1**counts).to(weight)  # [n, 1]
    to_root = (1 - beta2**counts).sqrt_().to(weight)
    weight.mul_(1 - rate * group["weight_decay"])
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = square.sqrt().div_(to_root).add_(group["eps"]).mul_(to_mean)
    weight.addcdiv_(mean, denominator, value=-rate)


def clip_gradients_(optimizer: AdamW, limit: float, world: World) -> Tensor:
    """Shortens all gradients together to the limit if they are longer; returns their norm before."""
    dense: list[nn.Parameter] = [weight for group in optimizer.param_groups for weight in group["params"]]
    if not isinstance(optimizer, RowAdamW):
        return torch.nn.utils.clip_grad_norm_(dense, limit)
    gradients = [weight.grad for weight in dense if weight.grad is not None]
    device = dense[0].device
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for table in optimizer.tables.values():
        for part in table.gradients():
            squares += torch.linalg.vector_norm(part.values).double() ** 2
    # Dense gradients are the same on every process, those of rows are each process's own.
    squares = world.sum_(squares) + torch.nn.utils.get_total_norm(gradients).to(device).double() ** 2
    norm = squares.sqrt()
    factor = limit / (float(norm) + 1e-6)  # as torch has it
    if factor < 1:
        for gradient in gradients:
            gradient.mul_(factor)
        for table in optimizer.tables.values():
            table.scale_gradients(factor)
    return norm


def make_optimizer(towers: Iterable[tuple[nn.Module, float]], *, weight_decay: float, **adam: Any) -> AdamW:
    """One group per learning rate and decay: matrices decay; biases (of rows, too), norms and token weights do not."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    tables: dict[nn.Parameter, RowTable] = {}
    for tower, learning_rate in towers:
        tables |= {table.weight: table for table in row_tables(tower).values()}
        for parameter in tower.parameters():
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            decay = weight_decay if parameter.ndim > 1 and parameter.shape[1] > 1 else 0.0
            groups.setdefault((learning_rate, decay), []).append(parameter)
    given = [{"params": own, "lr": rate, "peak": rate, "weight_decay": decay} for (rate, decay), own in groups.items()]
    return RowAdamW(given, list(tables.values()), fused=True, **adam) if tables else AdamW(given, fused=True, **adam)


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step, counted from 0; it would reach 0 after the last."""
    rise = max(1, round(steps * warmup)) if warmup > 0 else 0
    return (step + 1) / rise if step < rise else max(0.0, (steps - step) / max(1, steps - rise))


def set_learning_rate(optimizer: AdamW, factor: float) -> float:
    """Sets each group to this share of its peak; returns the largest, for the log."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return max(float(group["lr"]) for group in optimizer.param_groups)
