"""Loss and gradients are those of the plain formulas on 1, 2 and 3 processes, whatever falls on a shard's edge."""

from typing import Any

import pytest
import torch
import torch.distributed as distributed
from problems import OBJECTIVES, TILES, differentiated, pairs, posed, random_problem
from torch import Tensor

from reference import Problem, one_vs_all, soft_threshold
from umpteen.objectives import Scores
from umpteen.objectives.losses import ScaledOneVsAll
from umpteen.parallel.world import Shard, World
from worlds import run_world

SIZES = (1, 2, 3)


def last_labels_of_shards() -> Problem:
    problem = random_problem(queries=4, labels=11, positives=0)
    problem.pulled = [(query, label) for query in range(4) for label in (2, 4, 6, 10)]  # the last of 2 and of 3 shards
    return problem


def oddities() -> Problem:
    problem = random_problem(queries=7, labels=23)
    problem.pulled += [problem.pulled[0], (3, 22), (3, 22)]
    problem.weights = [0.5 + (place % 3) for place in range(len(problem.pulled))]
    problem.unpulled = [(0, 7), (5, 15), (6, 22)]
    problem.filtered = [(0, 7), (0, 8), (2, 0), (4, 22), (4, 22), problem.pulled[4]]
    problem.reduction = "sum"
    return problem


def everything_is_positive() -> Problem:
    problem = random_problem(queries=3, labels=7, positives=0)
    problem.pulled = [(0, label) for label in range(7)] + [(2, 6)]  # and query 1 has no positive at all
    return problem


PROBLEMS = {
    "sizes that do not divide": lambda: random_problem(queries=5, labels=23),
    "a positive on the last label of a shard": last_labels_of_shards,
    "duplicates, weights, filtered pairs": oddities,
    "all positive, none positive": everything_is_positive,
    "scores below −100": lambda: random_problem(queries=4, labels=29, size=120.0),
    "an empty shard": lambda: random_problem(queries=3, labels=2, positives=1),
    "fewer labels on a shard than k": lambda: random_problem(queries=3, labels=5, positives=2),
}


def solved(world: World, names: list[str]) -> dict[tuple[str, str, int | None], list[Tensor]]:
    """Loss and gradients of every problem and objective, put together from all processes."""
    return {
        (name, objective, tile): _solved(world, PROBLEMS[name](), objective, tile)
        for name in names
        for objective in objectives_for(name)
        for tile in TILES
    }


def _solved(world: World, problem: Problem, objective: str, tile: int | None) -> list[Tensor]:
    shard = Shard(world, len(problem.labels))
    queries, own = problem.queries.requires_grad_(), problem.labels[shard.rows].clone().requires_grad_()
    _, targets = posed(problem, None)
    filtered = pairs(problem.filtered) if problem.filtered else None
    loss = OBJECTIVES[objective][0](Scores(queries, own, shard=shard, filtered=filtered, tile=tile), targets)
    to_queries, to_own = torch.autograd.grad(loss, [queries, own])
    return [loss.detach(), world.sum_(to_queries), shard.gather(to_own)]


def objectives_for(name: str) -> list[str]:
    return [each for each in OBJECTIVES if not (name == "an empty shard" and each == "soft_top_3")]  # 3 of 2 labels


@pytest.mark.parametrize("size", SIZES)
def test_every_objective_gives_the_naive_loss_and_gradient_on_any_number_of_processes(size: int) -> None:
    everyone = run_world(size, solved, list(PROBLEMS))
    for (name, objective, tile), found in everyone[0].items():
        problem = PROBLEMS[name]()
        expected = differentiated(problem, lambda: OBJECTIVES[objective][1](problem))  # noqa: B023
        for what, ours, theirs in zip(("loss", "query gradient", "label gradient"), found, expected, strict=True):
            where = f"{what} of {objective}, {name}, tile {tile}"
            assert torch.isfinite(ours).all(), where
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda text: f"{where}: {text}")  # noqa: B023
    for others in everyone[1:]:
        assert all(
            torch.equal(a, b) for key, found in others.items() for a, b in zip(found, everyone[0][key], strict=True)
        )


def of_scale_and_bias(world: World, names: list[str]) -> dict[tuple[str, int | None], list[Tensor]]:
    """The loss, and the gradients of what is learned with it, added up over processes."""
    found = {}
    for name in names:
        for tile in TILES:
            problem, objective = PROBLEMS[name](), ScaledOneVsAll(-2.0).double()
            torch.nn.init.constant_(objective.log_scale, 0.4)
            shard, filtered = Shard(world, len(problem.labels)), pairs(problem.filtered) if problem.filtered else None
            own = problem.labels[shard.rows]
            scores = Scores(problem.queries, own, shard=shard, temperature=0.7, filtered=filtered, tile=tile)
            loss = objective(scores, problem.targets())
            gradients = torch.autograd.grad(loss, [objective.log_scale, objective.bias])
            found[name, tile] = [loss.detach(), *(world.sum_(gradient) for gradient in gradients)]
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_learned_scale_and_bias_have_the_naive_gradients_on_any_number_of_processes(size: int) -> None:
    for (name, tile), found in run_world(size, of_scale_and_bias, list(PROBLEMS))[0].items():
        problem = PROBLEMS[name]()
        problem.temperature = 0.7
        learned = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.4, -2.0)]
        loss = one_vs_all(problem, learned[0].exp(), learned[1])
        expected = [loss.detach(), *torch.autograd.grad(loss, learned)]
        for what, ours, theirs in zip(("loss", "scale", "bias"), found, expected, strict=True):
            where = f"{what}, {name}, tile {tile}"
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda text: f"{where}: {text}")  # noqa: B023


def spread_out(name: str) -> Tensor:
    """Scores [6, 503] of one shape: flat, peaked, with ties, or with a gap wider than float64 has digits for."""
    scores = torch.randn(6, 503, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    match name:
        case "ties":
            return scores.round()
        case "gap":
            return torch.where(torch.arange(503) % 101 == 7, 900.0, 0.0) + scores
        case spread:
            return {"flat": 1e-3, "middling": 2.0, "peaked": 60.0}[spread] * scores


def counted_threshold(world: World, name: str, k: Any) -> tuple[Tensor, Tensor, int]:
    """The thresholds, their gradient over this process's labels, and how many collectives they took."""
    matrix = spread_out(name)
    shard = Shard(world, matrix.shape[1])
    own = matrix.T[shard.rows].contiguous().requires_grad_()
    calls: list[int] = []
    collectives = {each: getattr(distributed, each) for each in ("all_reduce", "all_gather_into_tensor")}
    for each, real in collectives.items():

        def counted(*arguments: Any, real: Any = real) -> Any:
            calls.append(max(each.numel() for each in arguments if isinstance(each, Tensor)) // world.size)
            return real(*arguments)

        setattr(distributed, each, counted)
    try:
        found = Scores(torch.eye(6, dtype=torch.float64), own, shard=shard).soft_threshold(k, 2.0)
    finally:
        for each, real in collectives.items():
            setattr(distributed, each, real)
    (gradient,) = torch.autograd.grad(found.sum(), own)
    assert max(calls, default=0) <= 6 * 25, "a collective is larger than O(batch)"
    return found.detach(), shard.gather(gradient), len(calls)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["flat", "middling", "peaked", "ties", "gap"])
@pytest.mark.parametrize("k", [5, torch.tensor([1, 3, 5, 9, 17, 20])], ids=["one k", "a k each"])
def test_the_threshold_of_all_processes_is_exact_after_ten_collectives(size: int, name: str, k: Any) -> None:
    found, gradient, collectives = run_world(size, counted_threshold, name, k)[0]
    matrix = spread_out(name).requires_grad_()
    expected = torch.stack(
        [soft_threshold(row, int(each), 2.0) for row, each in zip(matrix, torch.as_tensor(k).expand(6), strict=True)]
    )
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
    (theirs,) = torch.autograd.grad(expected.sum(), matrix)
    torch.testing.assert_close(gradient, theirs.T, rtol=1e-9, atol=1e-10)
    assert collectives <= 10


def test_a_shard_of_another_size_than_its_vectors_is_refused() -> None:
    from umpteen.errors import BadInput

    with pytest.raises(BadInput, match="3 label vectors given for a shard of 4"):
        Scores(torch.zeros(2, 5), torch.zeros(3, 5), shard=Shard(World(), 4))
