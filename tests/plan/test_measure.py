"""Measuring takes real steps of the run and leaves its weights alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from miniature import write_recipe
from umpteen.config.recipes import resolve
from umpteen.parallel.meter import Meter
from umpteen.plan.plan import Marks, measure
from umpteen.training.build import build_run
from umpteen.training.step import TrainingStep


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("objective", ["soft_top_k", "one_vs_all"])
def test_the_weights_stay_and_the_last_part_is_the_whole_step(towers: str, objective: str, tmp_path: Path) -> None:
    config = resolve(str(write_recipe(tmp_path, f"objective.name={objective}", towers=towers)))
    run = build_run(config, workspace=None)
    before = [weight.detach().clone() for weight in run.towers.parameters()]
    heard: list[int] = []
    batches = [run.sampler.rows(0, index) for index in range(2)]
    costs = measure(run, config, batches, Meter(torch.device("cpu")), lambda name, done, total: heard.append(done))
    assert all(map(torch.equal, before, run.towers.parameters()))
    assert [part.share for part in costs.parts] == [0.25, 1] and heard == sorted(heard) and heard[-1] == 100
    assert costs.parts[-1].queries == len(batches[0]) and costs.parts[0].largest < costs.parts[-1].largest
    assert (costs.parts[-1].seconds[:, 0] > 0).all()


def test_a_step_that_is_watched_is_the_step_of_the_run(tmp_path: Path) -> None:
    config = resolve(str(write_recipe(tmp_path)))
    rows, losses = np.arange(16), []
    for watched in (False, True):
        run = build_run(config, workspace=None)
        given = (run.towers, run.data, run.step.objective, run.step.optimizer, config)
        step = TrainingStep(*given, mark=Marks(Meter(torch.device("cpu")))) if watched else run.step
        losses.append([step(rows, step=number, seed=0).loss for number in range(3)])
    assert losses[0] == losses[1]
