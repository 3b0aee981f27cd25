"""Lazy AdamW: torch's where every row is in play, a loop over rows where not; clipping counts all gradients."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from umpteen.encoders.rows import RowTable
from umpteen.parallel.world import World
from umpteen.training.optimizer import ROWS_AT_ONCE, RowAdamW, clip_gradients_, make_optimizer, set_learning_rate

RATE, DECAY, BETAS, EPSILON = 0.1, 0.3, (0.9, 0.97), 1e-6
SETTINGS = {"weight_decay": DECAY, "betas": BETAS, "eps": EPSILON}


class Model(nn.Module):
    """A table and an ordinary layer."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(0)
        self.table = RowTable(torch.randn(rows, 3, generator=numbers, dtype=torch.float64))
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.layer.weight.data = torch.randn(2, 3, generator=numbers, dtype=torch.float64)

    def loss(self, rows: Tensor, step: int) -> Tensor:
        target = torch.sin(rows[:, None] * 1.7 + step)
        return ((self.layer(self.table(rows)).tanh() - target) ** 2).sum()


def backward(model: Model, rows: Tensor, step: int) -> None:
    model.loss(rows, step).backward()  # type: ignore[no-untyped-call]


def dense_gradients(model: Model) -> list[Tensor]:
    found = [model.table.dense_gradient()]
    return found + [weight.grad.clone() for weight in model.layer.parameters() if weight.grad is not None]


def test_with_every_row_in_play_it_is_torch_s_adamw() -> None:
    rows = 2 * ROWS_AT_ONCE + 3
    ours = Model(rows)
    theirs = copy.deepcopy(ours)
    optimizer = make_optimizer([(ours, RATE)], **SETTINGS)  # type: ignore[arg-type]
    assert isinstance(optimizer, RowAdamW)
    groups = [
        {"params": [theirs.table.weight, theirs.layer.weight], "weight_decay": DECAY},
        {"params": [theirs.layer.bias], "weight_decay": 0.0},
    ]
    dense = AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON)
    for step in range(8):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(step))
        # In order, shuffled, and in several micro-batches.
        for part in [torch.arange(rows)] if step < 3 else torch.split(order, 1000 if step < 6 else rows):
            backward(ours, part, step)
            vectors = theirs.table.weight[part]
            target = torch.sin(part[:, None] * 1.7 + step)
            ((theirs.layer(vectors).tanh() - target) ** 2).sum().backward()
        set_learning_rate(optimizer, 1 / (step + 1))
        for group in dense.param_groups:
            group["lr"] = RATE / (step + 1)
        optimizer.step()
        dense.step()
        optimizer.zero_grad()
        dense.zero_grad()
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)


def naive_adamw(rows: int, gradients: list[dict[int, Tensor]], start: Tensor) -> Tensor:
    """Every row on its own, by the formula; a row that is not in play is left alone."""
    weight = start.clone()
    mean, square, count = torch.zeros_like(weight), torch.zeros_like(weight), [0] * rows
    for step in gradients:
        for row, gradient in step.items():
            count[row] += 1
            weight[row] -= RATE * DECAY * weight[row]
            mean[row] = BETAS[0] * mean[row] + (1 - BETAS[0]) * gradient
            square[row] = BETAS[1] * square[row] + (1 - BETAS[1]) * gradient**2
            corrected = mean[row] / (1 - BETAS[0] ** count[row])
            root = (square[row] / (1 - BETAS[1] ** count[row])).sqrt()
            weight[row] -= RATE * corrected / (root + EPSILON)
    return weight


def test_rows_out_of_play_rest_and_the_others_follow_the_formula_row_by_row() -> None:
    table = RowTable(torch.randn(9, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    start = table.weight.detach().clone()
    optimizer = make_optimizer([(table, RATE)], **SETTINGS)  # type: ignore[arg-type]
    numbers = torch.Generator().manual_seed(5)
    steps: list[dict[int, Tensor]] = []
    for step in range(12):
        chosen = torch.randperm(8, generator=numbers)[: step % 5]  # row 8 never plays, and sometimes nobody does
        gradient = torch.randn(len(chosen), 3, generator=numbers, dtype=torch.float64)
        if len(chosen):
            table(chosen).backward(gradient)  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        steps.append(dict(zip(chosen.tolist(), gradient, strict=True)))
    torch.testing.assert_close(table.weight.detach(), naive_adamw(9, steps, start), rtol=1e-12, atol=1e-12)
    assert torch.equal(table.weight[8], start[8])
    state = optimizer.state[table.weight]
    assert state["step"].tolist() == [sum(row in step for step in steps) for row in range(9)]
    assert not state["exp_avg"][8].any()


@pytest.mark.parametrize("limit", [0.01, math.inf])
def test_clipping_counts_the_gradients_of_rows_and_the_others_alike(limit: float) -> None:
    model = Model(5)
    optimizer = make_optimizer([(model, RATE)], **SETTINGS)  # type: ignore[arg-type]
    for rows in ([0, 3], [3, 4]):  # row 3 twice: its gradients add up before they are measured
        backward(model, torch.tensor(rows), 0)
    before = dense_gradients(model)
    expected = torch.cat([gradient.flatten() for gradient in before]).norm()
    norm = clip_gradients_(optimizer, limit, World())
    assert float(norm) == pytest.approx(float(expected), rel=1e-12)
    scale = min(1.0, limit / (float(expected) + 1e-6))
    for after, gradient in zip(dense_gradients(model), before, strict=True):
        torch.testing.assert_close(after, gradient * scale, rtol=1e-12, atol=1e-15)


def test_a_model_without_tables_keeps_torch_s_own_optimizer_and_clipping() -> None:
    layer = nn.Linear(2, 2)
    optimizer = make_optimizer([(layer, RATE)], **SETTINGS)  # type: ignore[arg-type]
    assert type(optimizer) is AdamW
    layer(torch.ones(1, 2)).sum().backward()
    assert float(clip_gradients_(optimizer, 0.5, World())) == pytest.approx(math.sqrt(6))
    assert layer.weight.grad is not None and float(layer.weight.grad.norm()) < 0.5
