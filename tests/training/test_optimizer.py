"""The paper's parameter groups and schedule."""

import pytest
from torch import nn

from umpteen.training.optimizer import learning_rate_factor, make_optimizer, set_learning_rate


def test_matrices_decay_and_biases_and_norms_do_not() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    optimizer = make_optimizer([(model, 0.1)], weight_decay=0.01, betas=(0.9, 0.99), eps=1e-8)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(model[0].weight)] == 0.01
    assert [decay[id(p)] for p in (model[0].bias, model[1].weight, model[1].bias)] == [0.0, 0.0, 0.0]


def test_a_shared_tower_is_listed_once() -> None:
    tower = nn.Linear(2, 2)
    optimizer = make_optimizer([(tower, 0.1), (tower, 0.2)], weight_decay=0.0, betas=(0.9, 0.99), eps=1e-8)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2


def test_towers_keep_their_own_learning_rates_through_the_schedule() -> None:
    optimizer = make_optimizer(
        [(nn.Linear(2, 2), 0.1), (nn.Linear(2, 2), 4.0)], weight_decay=0.0, betas=(0.9, 0.99), eps=1e-8
    )
    set_learning_rate(optimizer, 0.5)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.05, 2.0]


@pytest.mark.parametrize(("steps", "warmup"), [(100, 0.1), (7, 0.5), (1, 0.1), (10, 0.0), (3, 1.0)])
def test_the_learning_rate_rises_to_its_peak_once_and_falls(steps: int, warmup: float) -> None:
    factors = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    peak = factors.index(max(factors))
    assert max(factors) == 1.0
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
