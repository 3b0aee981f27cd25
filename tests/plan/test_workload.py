"""The work that is predicted is the work a step does."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from miniature import write_recipe
from umpteen.config.recipes import resolve
from umpteen.data.tokens import TokenTable
from umpteen.plan.workload import TowerWork, Workload
from umpteen.training.build import Run, build_run, step_settings
from umpteen.training.step import TrainingStep

Encoded = Counter[tuple[int, int]]


def watched(encoder: nn.Module) -> tuple[Encoded, Encoded]:
    """Will hold the shapes that the encoder encodes without and with a graph."""
    without, with_graph = Counter(), Counter()

    def watch(_: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        lengths = inputs[1].diff()
        (with_graph if torch.is_grad_enabled() else without)[len(lengths), int(lengths.max())] += 1

    encoder.register_forward_pre_hook(watch)
    return without, with_graph


def made(folder: Path, *changes: str, kind: str, towers: str) -> tuple[Run, TrainingStep]:
    config = resolve(str(write_recipe(folder, *changes, kind=kind, towers=towers)))
    run = build_run(config, workspace=None)
    return run, TrainingStep(run.towers, run.data, run.objective, run.optimizer, step_settings(config))


@pytest.mark.parametrize("budget", [12, 10_000])
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_step_encodes_the_micro_batches_that_were_counted(towers: str, budget: int, tmp_path: Path) -> None:
    run, step = made(tmp_path, f"training.token_budget={budget}", kind="static", towers=towers)
    rows = run.sampler.rows(0, 0)
    (work,) = Workload(run.data.queries, run.data.labels, shared=run.towers.shared).step(rows)
    encoders = [run.towers.query, run.towers.label][: len(work.towers)]
    seen = [watched(encoder) for encoder in encoders]
    step(rows, step=0, seed=0)
    for (without, with_graph), tower in zip(seen, work.towers, strict=True):
        counted = Counter({tuple(shape): count for shape, count in tower.micro_batches(budget).items()})
        assert with_graph == counted
        assert without == (Counter() if counted.total() == 1 else counted)
        assert (counted.total() == 1) == (budget == 10_000)


def tables() -> tuple[TokenTable, TokenTable]:
    """Eleven queries and seven labels, of which two are alike and one is also a query."""
    queries = [[row] * (1 + row % 3) for row in range(11)]
    labels = [[0], [20, 21], [20, 21], [22], [23, 24, 25, 26], [27], [28, 29]]
    return TokenTable.of(queries, 100), TokenTable.of(labels, 100)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_processes_share_labels_and_queries(processes: int) -> None:
    queries, labels = tables()
    work = Workload(queries, labels, shared=False, processes=processes, validation=queries, best=2)
    parts = work.step(np.arange(5))
    assert len(parts) == processes
    assert sum(part.labels for part in parts) == 7 and {part.queries for part in parts} == {5}
    assert sum(len(part.towers[0].lengths) for part in parts) == 5
    evaluations = work.evaluation()
    assert sum(len(part.queries.lengths) for part in evaluations) == 11
    assert np.concatenate([part.labels.lengths for part in evaluations]).tolist() == labels.lengths.tolist()
    assert {part.all_queries for part in evaluations} == {11}


def test_labels_with_the_same_text_are_encoded_once_and_copied() -> None:
    (part,) = Workload(*tables(), shared=False).step(np.arange(2))
    assert (part.labels, part.label_texts, part.labels_are_copied) == (7, 6, True)
    apart = Workload(*tables(), shared=False, processes=7).step(np.arange(2))
    assert not any(part.labels_are_copied for part in apart)


def test_in_a_shared_tower_the_queries_have_their_share_of_the_tokens() -> None:
    (part,) = Workload(*tables(), shared=True).step(np.arange(3))  # the first of them is a label too
    (tower,) = part.towers
    assert tower.lengths.sum() == 11 + 5 and tower.of_queries == pytest.approx(5 / 16)


def test_micro_batches_are_counted_by_shape() -> None:
    work = TowerWork(np.array([3, 1, 1, 2, 1, 1, 1]))
    assert work.micro_batches(2) == {(1, 3): 1, (1, 2): 1, (2, 1): 2, (1, 1): 1}


def test_without_validation_there_is_nothing_to_evaluate() -> None:
    assert Workload(*tables(), shared=True).evaluation() == []
