"""Label vectors in half precision: nearly the same gradient, and the same model on any number of processes."""

from typing import Any

import numpy as np
import pytest
import torch
from step_cases import LABELS, OBJECTIVES, RELEVANT, SEED, STEP, WEIGHTS, gradients, make_step, make_towers
from torch import Tensor

from tiny import tiny_transformer
from umpteen.config.settings import BankPool
from umpteen.data.labels import Relevance
from umpteen.parallel.world import Shard, World
from umpteen.training.negatives.mined import Bank
from umpteen.training.step import TrainingStep
from worlds import run_world

ROWS = np.array([0, 1, 4, 5])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def step_of(towers: Any, objective: str, half: bool, **more: Any) -> TrainingStep:
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    return make_step(towers, OBJECTIVES[objective][0], relevance, half_labels=half, rate=0.01, epsilon=1e-5, **more)


@pytest.mark.parametrize("names", ["static shared", "static table", "transformer static", "concat concat"])
@pytest.mark.parametrize("objective", ["decoupled_softmax", "soft_top_3"])
def test_rounded_label_vectors_move_the_gradient_of_the_weights_by_less_than_a_percent(
    start: str, names: str, objective: str
) -> None:
    towers, found = make_towers(names, start), []
    for half in (False, True):
        loss = step_of(towers, objective, half).gradients(ROWS, step=STEP, seed=SEED).loss
        found.append((loss, torch.cat([each.flatten() for each in gradients(towers).values()])))
    (loss, plain), (loss_of_half, rounded) = found
    assert loss_of_half == pytest.approx(loss, rel=0.01)
    assert 1e-5 < float((rounded - plain).norm() / plain.norm()) < 0.01


def trained(world: World, start: str, pool: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights after some steps, and what a bank of all labels keeps for a checkpoint."""
    towers, kept = make_towers("static static", start), dict[str, Tensor]()
    step = step_of(towers, "decoupled_softmax", True, world=world)
    if pool:
        shard, settings = Shard(world, len(LABELS)), BankPool(sampled=1, negatives=1, renewed=1)
        step.pool = Bank(towers, step.data, shard, settings, step.config, step.objective)
    for number in range(3):
        step(ROWS, step=number, seed=SEED)
    if step.pool is not None:
        kept = step.pool.state()
    return {name: weight.detach() for name, weight in towers.named_parameters()}, kept


@pytest.mark.parametrize("pool", [False, True], ids=["all labels", "bank"])
def test_half_labels_train_the_same_model_on_1_2_and_3_processes(start: str, pool: bool) -> None:
    weights, kept = trained(World(), start, pool)
    for size in (2, 3):
        ours, theirs = run_world(size, trained, start, pool)[0]
        torch.testing.assert_close(ours, weights, rtol=1e-9, atol=1e-9)
        assert theirs.keys() == kept.keys() and all(torch.equal(theirs[name], kept[name]) for name in kept)
    assert not pool or kept["vectors"].dtype == torch.bfloat16
