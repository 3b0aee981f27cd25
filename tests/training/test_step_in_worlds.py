"""The same model on any number of processes: gradients and, after some steps, weights equal those of one process."""

from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from step_cases import LABELS, OBJECTIVES, QUERIES, RELEVANT, TOWERS, WEIGHTS, make_step, make_towers
from torch import Tensor

from tiny import tiny_transformer
from umpteen.data.labels import EpochSampler, Relevance
from umpteen.parallel.world import World
from umpteen.training.step import TrainingStep
from worlds import run_world

STEPS = 4  # two epochs
# Every kind of towers and every objective, not every pair: an objective sees vectors, whatever has made them.
CASES = list(zip(TOWERS, cycle(OBJECTIVES), strict=False))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def trained(
    world: World, start: str, names: str, objective: str, batch: int, **settings: Any
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights after some steps over batches of which the last of an epoch is smaller."""
    towers = make_towers(names, start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    # A gradient that is 0 but for rounding would otherwise be blown up to a step of full length.
    steady = {"rate": 0.01, "decay": 0.1, "epsilon": 1e-5, "clip_norm": 0.5}
    step = make_step(towers, OBJECTIVES[objective][0], relevance, world=world, **steady, **settings)
    return _losses(step, relevance, batch), {name: weight.detach() for name, weight in towers.named_parameters()}


def _losses(step: TrainingStep, relevance: Relevance, batch: int) -> list[float]:
    sampler = EpochSampler(relevance, batch, seed=0, keep_unlabelled=True)
    losses = []
    for number in range(STEPS):
        rows = sampler.rows(*divmod(number, sampler.batches_per_epoch))
        losses.append(step(rows, step=number, seed=3).loss)
    return losses


def trained_in_all_ways(world: World, start: str) -> list[tuple[list[float], dict[str, Tensor]]]:
    return [trained(world, start, names, objective, 5) for names, objective in CASES]


def assert_same_model(
    ours: tuple[list[float], dict[str, Tensor]], theirs: tuple[list[float], dict[str, Tensor]]
) -> None:
    assert np.isfinite(theirs[0]).all() and len(set(theirs[0])) > 1
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-11)
    assert any(weight.abs().max() > 0 for weight in theirs[1].values())
    for name, weight in theirs[1].items():
        torch.testing.assert_close(ours[1][name], weight, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}")  # noqa: B023


def test_a_run_ends_with_the_same_weights_on_1_2_and_3_processes(start: str) -> None:
    alone = [trained(World(), start, names, objective, 5) for names, objective in CASES]
    for size in (2, 3):
        everyone = run_world(size, trained_in_all_ways, start)
        for case, ours in enumerate(everyone[0]):
            assert_same_model(ours, alone[case])
        for others in everyone[1:]:  # to the bit, or the processes would drift apart
            for (_, weights), (_, first) in zip(others, everyone[0], strict=True):
                assert all(torch.equal(weight, first[name]) for name, weight in weights.items())


def with_few_queries(world: World, start: str) -> tuple[list[float], dict[str, Tensor]]:
    return trained(world, start, "static shared", "decoupled_softmax", 2)


def test_a_batch_smaller_than_the_number_of_processes_trains_the_same_model(start: str) -> None:
    assert_same_model(run_world(3, with_few_queries, start)[0], with_few_queries(World(), start))


def sampled(world: World, start: str) -> tuple[list[float], dict[str, Tensor]]:
    return trained(world, start, "static static", "softmax", 5, replay_fraction=0.5)


def test_a_sampled_replay_draws_the_same_labels_on_any_number_of_processes(start: str) -> None:
    assert_same_model(run_world(3, sampled, start)[0], sampled(World(), start))


def decay_of_a_weight_no_text_reaches(world: World, start: str) -> list[float]:
    """How far each weight that no gradient reaches moves in a step with decay."""
    towers = make_towers("transformer shared", start)
    unused = [weight for name, weight in towers.named_parameters() if "pooler" in name]
    before = [weight.detach().clone() for weight in unused]
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    make_step(towers, OBJECTIVES["softmax"][0], relevance, decay=0.5, world=world)(
        np.arange(len(QUERIES)), step=0, seed=0
    )
    return [float((weight.detach() - old).abs().max()) for weight, old in zip(unused, before, strict=True)]


def test_a_weight_no_text_reaches_stays_as_it_is_on_any_number_of_processes(start: str) -> None:
    alone = decay_of_a_weight_no_text_reaches(World(), start)
    assert alone == run_world(2, decay_of_a_weight_no_text_reaches, start)[0]
    assert all(moved == 0 for moved in alone)


def short_of_memory(world: World, start: str, failing: int) -> tuple[float, dict[str, Tensor], list[str]]:
    """One step in which memory is refused on one process whenever a micro-batch has more than ten tokens."""
    towers = make_towers("static static", start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    notices: list[str] = []
    step = make_step(
        towers, OBJECTIVES["decoupled_softmax"][0], relevance, budget=64, world=world, notice=notices.append
    )

    def refuse(_: Any, inputs: tuple[Tensor, Tensor]) -> None:
        if world.rank == failing and len(inputs[0]) > 10:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    towers.label.register_forward_pre_hook(refuse)
    loss = step(np.arange(len(QUERIES)), step=0, seed=0).loss
    return loss, {name: weight.detach() for name, weight in towers.named_parameters()}, notices


@pytest.mark.parametrize(("size", "failing"), [(1, 0), (2, 1)])
def test_out_of_memory_halves_the_micro_batch_on_all_processes_and_changes_nothing_else(
    size: int, failing: int, start: str
) -> None:
    unharmed = short_of_memory(World(), start, -1)
    assert unharmed[2] == []
    for loss, weights, notices in run_world(size, short_of_memory, start, failing):
        assert_same_model(([loss, 0], weights), ([unharmed[0], 0], unharmed[1]))
        assert "out of memory at step 1" in notices[0] and "micro-batches of 32 tokens" in notices[0]


def test_out_of_memory_with_single_texts_ends_the_run_with_advice(start: str) -> None:
    towers = make_towers("static static", start)
    step = make_step(towers, OBJECTIVES["softmax"][0], Relevance.from_lists(RELEVANT, len(LABELS)), budget=64)

    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    towers.label.register_forward_pre_hook(refuse)
    from umpteen.parallel.world import TooLittleMemory

    with pytest.raises(TooLittleMemory, match="shorten max_length"):
        step(np.arange(3), step=0, seed=0)
