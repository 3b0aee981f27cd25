"""Nothing stays behind on the CPU when vectors and targets are on a GPU, forward or backward; none is needed for it."""

from collections.abc import Callable

import pytest
import torch
from problems import OBJECTIVES, differentiated, pairs, random_problem
from torch import Tensor

from elsewhere import GPU, Elsewhere, Placed, WrongDevice
from reference import Pair, Problem
from umpteen import functional
from umpteen.objectives import Pairs, Scores, Targets


def there(given: list[Pair]) -> Pairs:
    return Pairs(*(Placed(side, GPU) for side in pairs(given)))


def on_gpu(problem: Problem) -> tuple[Tensor, Tensor]:
    return tuple(Placed(vectors.detach(), GPU).requires_grad_() for vectors in (problem.queries, problem.labels))  # type: ignore[return-value]


def a_problem() -> Problem:
    problem = random_problem(labels=423)  # in 13 tiles of 33, of which SoftTop-k has a tail
    problem.filtered, problem.unpulled, problem.weights = [(0, 3), (2, 5)], [(1, 7)], [1.0, 2.0, 0.0] * 6
    return problem


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_on_a_gpu_no_operation_meets_a_tensor_of_another_device(objective: str) -> None:
    problem, (streaming, naive) = a_problem(), OBJECTIVES[objective]
    expected = differentiated(problem, lambda: naive(problem))
    with Elsewhere():
        vectors = on_gpu(problem)
        weights = Placed(torch.tensor(problem.weights, dtype=torch.float64), GPU)
        targets = Targets(there(problem.pulled), there(problem.pulled + problem.unpulled), 6, weights)
        loss = streaming(Scores(*vectors, filtered=there(problem.filtered), tile=33), targets)
        found = [loss.detach(), *torch.autograd.grad(loss, vectors)]
    for ours, theirs in zip(found, expected, strict=True):
        assert isinstance(ours, Placed) and ours.device == GPU
        torch.testing.assert_close(ours.numbers, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", [functional.softmax, functional.decoupled_softmax, functional.bce])
def test_positives_as_lists_follow_the_vectors_to_the_gpu(loss: Callable[..., Tensor]) -> None:
    with Elsewhere():
        vectors = on_gpu(random_problem())
        value = loss(*vectors, [[0, 22], [3], [], [4], [5], [6]], relevant=[[1], [], [], [], [], []])
        assert {each.device for each in (value, *torch.autograd.grad(value, vectors))} == {GPU}


def test_a_pair_left_on_the_cpu_would_be_noticed() -> None:
    with Elsewhere(), pytest.raises(WrongDevice, match="cpu and cuda:0"):
        Scores(*on_gpu(random_problem())).log_sum_exp(excluding=pairs([(0, 1)]))
