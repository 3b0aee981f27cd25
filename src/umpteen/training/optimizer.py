"""AdamW with the paper's parameter groups, and its learning rate: a linear rise, then a linear fall to zero."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW

from umpteen.encoders.row_table import RowTable, row_tables
from umpteen.training.row_optimizer import RowAdamW


def make_optimizer(
    towers: Iterable[tuple[nn.Module, float]],
    *,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> AdamW:
    """One group per learning rate and decay: matrices decay; biases, norms and token weights do not.

    Where a tower has a row table, the optimizer updates that row by row.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    tables: dict[nn.Parameter, RowTable] = {}
    for tower, learning_rate in towers:
        tables |= {table.weight: table for table in row_tables(tower).values()}
        for parameter in tower.parameters():
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            decay = weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((learning_rate, decay), []).append(parameter)
    given = [
        {"params": parameters, "lr": rate, "peak": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    if tables:
        return RowAdamW(given, list(tables.values()), betas=betas, eps=epsilon, fused=_fused_works(seen))
    return AdamW(given, betas=betas, eps=epsilon, fused=_fused_works(seen))


def _fused_works(parameters: set[nn.Parameter]) -> bool:
    return all(p.device.type in {"cpu", "cuda"} and torch.is_floating_point(p) for p in parameters)


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step, counted from 0; it would reach 0 after the last."""
    rise = max(1, round(steps * warmup)) if warmup > 0 else 0
    if step < rise:
        return (step + 1) / rise
    return max(0.0, (steps - step) / max(1, steps - rise))


def set_learning_rate(optimizer: AdamW, factor: float) -> float:
    """Sets each group to this share of its peak; returns the largest, for the log."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return max(float(group["lr"]) for group in optimizer.param_groups)
