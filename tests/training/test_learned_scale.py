"""One-vs-all with a learned scale and bias: the step trains both, on any number of processes, and keeps them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from step_cases import LABELS, QUERIES, RELEVANT, SEED, STEP, assert_same, gradients, make_step, make_towers, naive
from torch import Tensor

import reference
from miniature import write_recipe
from tiny import tiny_transformer
from umpteen.config.recipes import resolve
from umpteen.data.labels import Relevance
from umpteen.encoders.towers import Towers
from umpteen.objectives.losses import ScaledOneVsAll
from umpteen.parallel.world import World
from umpteen.training.build import build_run
from worlds import run_world

RELEVANCE = Relevance.from_lists(RELEVANT, len(LABELS))
ROWS = np.arange(len(QUERIES))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def with_scale(names: str, start: str) -> tuple[Towers, ScaledOneVsAll]:
    """Towers that hold the objective, as a run has them."""
    towers, objective = make_towers(names, start), ScaledOneVsAll(-1.5).double()
    torch.nn.init.constant_(objective.log_scale, 0.3)
    towers.add_module("objective", objective)
    return towers, objective


@pytest.mark.parametrize("names", ["static shared", "transformer static", "concat concat"])
def test_the_step_gives_scale_and_bias_their_naive_gradients(names: str, start: str) -> None:
    towers, objective = with_scale(names, start)
    step = make_step(towers, objective, RELEVANCE)
    loss = step.gradients(ROWS, step=STEP, seed=SEED).loss
    found = gradients(towers)

    def judge(problem: reference.Problem) -> Tensor:
        return reference.one_vs_all(problem, objective.log_scale.exp(), objective.bias)

    assert loss == pytest.approx(naive(towers, judge, RELEVANCE, ROWS), rel=1e-10)
    expected = gradients(towers)
    assert expected["objective.log_scale"].abs() > 1e-2 and expected["objective.bias"].abs() > 1e-2
    assert_same(found, expected)


def trained(world: World, start: str) -> tuple[list[float], dict[str, Tensor]]:
    towers, objective = with_scale("static static", start)
    step = make_step(towers, objective, RELEVANCE, world=world, rate=0.05, decay=0.1, epsilon=1e-5)
    losses = [step(ROWS[number % 2 :], step=number, seed=3).loss for number in range(5)]
    return losses, {name: weight.detach() for name, weight in towers.named_parameters()}


def test_scale_and_bias_are_the_same_on_1_2_and_3_processes(start: str) -> None:
    losses, weights = trained(World(), start)
    assert losses[-1] < losses[0] and weights["objective.bias"].item() != -1.5
    for size in (2, 3):
        for ours in run_world(size, trained, start):
            assert ours[0] == pytest.approx(losses, rel=1e-9)
            for name, weight in weights.items():
                torch.testing.assert_close(ours[1][name], weight, rtol=1e-10, atol=1e-10)


def test_a_run_s_checkpoint_holds_scale_and_bias_and_its_model_does_not(tmp_path: Path) -> None:
    changes = ("objective.name=one_vs_all", "objective.logit_bias=-3", "training.steps=4", "evaluation.every_steps=4")
    config = resolve(str(write_recipe(tmp_path, *changes)))
    run = build_run(config, workspace=tmp_path)
    run.loop.run()
    assert isinstance(run.step.objective, ScaledOneVsAll)
    learned = {name: value.item() for name, value in run.step.objective.named_parameters()}
    assert learned["bias"] != -3 and learned["log_scale"] != 0
    again = build_run(config, workspace=tmp_path)
    again.loop.run()  # which finds it finished
    assert isinstance(again.step.objective, ScaledOneVsAll)
    assert {name: value.item() for name, value in again.step.objective.named_parameters()} == learned
    run.towers.save(tmp_path / "saved")
    assert {name for name, _ in Towers.load(tmp_path / "saved").named_parameters()} == {
        name for name, _ in run.towers.named_parameters() if not name.startswith("objective")
    }
