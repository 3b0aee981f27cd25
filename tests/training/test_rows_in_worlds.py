"""Each process holds the rows of its own labels: the model is that of one process, and a checkpoint fits any number."""

from pathlib import Path

import numpy as np
import pytest
import torch
from step_cases import LABELS, OBJECTIVES, RELEVANT, WEIGHTS, make_step, make_towers
from torch import Tensor

from tiny import tiny_transformer
from umpteen.data.labels import EpochSampler, Relevance
from umpteen.encoders.rows import row_tables
from umpteen.parallel.world import World
from umpteen.training.checkpoint import Checkpoints, TrainState, weights_of
from umpteen.training.negatives.pool import Uniform
from worlds import run_world

STEPS = 6
# Towers, objective, and whether all labels are in play or only a few.
CASES = [
    *(("static table", objective, False) for objective in OBJECTIVES if objective != "soft_top_positives"),
    ("static sum-table", "softmax", False),
    ("sum sum-transformer-table", "decoupled_softmax", False),
    ("static table", "decoupled_softmax", True),
    ("static sum-table", "one_vs_all", True),
    ("static table-bias", "one_vs_all", False),
]
Trained = tuple[list[float], dict[str, Tensor]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def trained(
    world: World, start: str, case: tuple[str, str, bool], steps: int = STEPS, workspace: Path | None = None
) -> Trained:
    """Losses and weights up to a step, from a checkpoint if there is one, and into one."""
    names, objective, few = case
    towers = make_towers(names, start, world)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    step = make_step(
        towers,
        OBJECTIVES[objective][0],
        relevance,
        world=world,
        rate=0.01,
        decay=0.1,
        epsilon=1e-5,
        clip_norm=0.5,
        pool=Uniform(1) if few else None,
    )
    for rows in row_tables(towers).values():
        assert len(rows.weight) == len(rows.shard) <= -(-len(LABELS) // world.size)
    optimizer = step.optimizer
    checkpoints = Checkpoints(workspace if world.is_first else None, towers, optimizer, {}, "", world)
    resumed = checkpoints.load()
    sampler = EpochSampler(relevance, 5, seed=0, keep_unlabelled=True)
    losses = [
        step(sampler.rows(*divmod(number, sampler.batches_per_epoch)), step=number, seed=3).loss
        for number in range(resumed.step if resumed else 0, steps)
    ]
    if workspace is not None:
        checkpoints.save(TrainState(step=steps))
    return losses, weights_of(towers)


def trained_in_all_ways(world: World, start: str) -> list[Trained]:
    return [trained(world, start, case) for case in CASES]


def assert_same_model(ours: Trained, theirs: Trained) -> None:
    assert np.isfinite(theirs[0]).all()
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-11)
    for name, weight in theirs[1].items():
        torch.testing.assert_close(ours[1][name], weight, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}")  # noqa: B023


def test_the_model_is_the_same_on_1_2_and_3_processes_each_with_its_own_rows(start: str) -> None:
    alone = trained_in_all_ways(World(), start)
    assert all(len(set(losses)) > 1 for losses, _ in alone)
    for size in (2, 3):
        everyone = run_world(size, trained_in_all_ways, start)
        for ours, theirs in zip(everyone[0], alone, strict=True):
            assert_same_model(ours, theirs)
        for others in everyone[1:]:  # what all of them hold is the same to the bit
            for (_, weights), (_, first) in zip(others, everyone[0], strict=True):
                assert all(torch.equal(weight, first[name]) for name, weight in weights.items())


@pytest.mark.parametrize("case", [CASES[1], CASES[-2], CASES[-1]], ids=lambda case: case[0])
def test_a_checkpoint_of_two_processes_goes_on_with_three_and_then_with_one(
    case: tuple[str, str, bool], start: str, tmp_path: Path
) -> None:
    parts = [run_world(size, trained, start, case, steps, tmp_path)[0] for size, steps in ((2, 2), (3, 4), (1, STEPS))]
    losses = [loss for part, _ in parts for loss in part]
    assert_same_model((losses, parts[-1][1]), trained(World(), start, case))
