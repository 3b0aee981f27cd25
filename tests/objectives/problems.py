"""Problems for the objectives, and both ways of solving them: streaming and by reference.py."""

from collections.abc import Callable

import torch
from torch import Tensor

import reference
from reference import Problem, pairs
from umpteen.objectives import Scores, Targets, decoupled_softmax, one_vs_all, soft_top_k, softmax

TILES = (1, 7, None)
ALPHA = 2.0

# name → (streaming, reference)
OBJECTIVES: dict[str, tuple[Callable[[Scores, Targets], Tensor], Callable[[Problem], Tensor]]] = {
    "softmax": (softmax, reference.softmax),
    "decoupled_softmax": (decoupled_softmax, reference.decoupled_softmax),
    "soft_top_3": (lambda s, t: soft_top_k(s, t, 3, ALPHA), lambda p: reference.soft_top_k(p, 3, ALPHA)),
    "soft_top_positives": (
        lambda s, t: soft_top_k(s, t, "positives", ALPHA),
        lambda p: reference.soft_top_k(p, "positives", ALPHA),
    ),
    "soft_top_3_masked": (
        lambda s, t: soft_top_k(s, t, 3, ALPHA, mask_unsampled=True),
        lambda p: reference.soft_top_k(p, 3, ALPHA, mask_unsampled=True),
    ),
    "one_vs_all": (one_vs_all, reference.one_vs_all),
    "one_vs_all_scaled": (
        lambda s, t: one_vs_all(s.scaled(torch.tensor(1.5), torch.tensor(-2.0)), t),
        lambda p: reference.one_vs_all(p, 1.5, -2.0),
    ),
}


def random_problem(
    queries: int = 6, labels: int = 23, dimension: int = 5, positives: int = 3, size: float = 1.0, seed: int = 0
) -> Problem:
    """Random vectors, each query with `positives` distinct positives drawn at random."""
    rng = torch.Generator().manual_seed(seed)
    pulled = [(i, int(j)) for i in range(queries) for j in torch.randperm(labels, generator=rng)[:positives]]
    return Problem(
        queries=size * torch.randn(queries, dimension, generator=rng, dtype=torch.float64),
        labels=torch.randn(labels, dimension, generator=rng, dtype=torch.float64),
        pulled=pulled,
    )


def posed(problem: Problem, tile: int | None) -> tuple[Scores, Targets]:
    scores = Scores(
        problem.queries,
        problem.labels,
        temperature=problem.temperature,
        filtered=pairs(problem.filtered) if problem.filtered else None,
        tile=tile,
    )
    return scores, problem.targets()


def differentiated(problem: Problem, loss: Callable[[], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and its gradients with respect to queries and labels."""
    vectors = [problem.queries.requires_grad_(), problem.labels.requires_grad_()]
    value = loss()
    gradients = torch.autograd.grad(value, vectors)
    return value.detach(), gradients[0], gradients[1]


def assert_agreement(problem: Problem, objective: str, tile: int | None = 7, tolerance: float = 1e-11) -> None:
    streaming, naive = OBJECTIVES[objective]
    found = differentiated(problem, lambda: streaming(*posed(problem, tile)))
    expected = differentiated(problem, lambda: naive(problem))
    for name, ours, theirs in zip(("loss", "query gradient", "label gradient"), found, expected, strict=True):
        assert torch.isfinite(theirs).all(), f"the judge's {name} is not finite"
        assert torch.isfinite(ours).all(), f"the {name} is not finite"
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")  # noqa: B023
