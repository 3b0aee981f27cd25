"""Scores: what is asked of them, how gradients meet, and what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import OBJECTIVES, TILES, differentiated, pairs, posed, random_problem
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from umpteen.errors import BadInput
from umpteen.objectives import Pairs, Scores
from umpteen.objectives import scores as tiles
from umpteen.objectives.scores import even_tile

EXCLUDED = [(0, 0), (0, 3), (0, 3), (2, 10), *((1, label) for label in range(11))]


def vectors(queries: int = 4, labels: int = 11, dimension: int = 3) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    made = [torch.randn(n, dimension, generator=rng, dtype=torch.float64) for n in (queries, labels)]
    return made[0].requires_grad_(), made[1].requires_grad_()


def test_a_query_with_no_label_left_has_a_bar_of_minus_infinity_and_no_gradient() -> None:
    queries, labels = vectors()
    bar = Scores(queries, labels).log_sum_exp(excluding=pairs(EXCLUDED))
    assert bar[1] == -torch.inf and bar[[0, 2, 3]].isfinite().all()
    to_queries, to_labels = torch.autograd.grad(bar, [queries, labels], torch.ones(4, dtype=torch.float64))
    assert (to_queries[1] == 0).all() and to_labels.isfinite().all()


@pytest.mark.parametrize("tile", TILES)
def test_gradients_agree_with_finite_differences(tile: int | None) -> None:
    given = pairs(EXCLUDED[:4])

    def everything(queries: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        scores = Scores(queries, labels, temperature=0.7, filtered=pairs([(3, 5)]), tile=tile)
        return (
            scores.log_sum_exp(excluding=given),
            scores.softplus_sum(excluding=given),
            scores.soft_threshold(2, 1.5),
            scores.soft_threshold(torch.tensor([1, 2, 3, 1]), 1.5),
            scores.at(pairs([(0, 1), (0, 1), (3, 10)])),
        )

    assert torch.autograd.gradcheck(everything, vectors())


def test_all_reductions_of_one_scores_share_one_gradient() -> None:
    queries, labels = vectors()
    scores = Scores(queries, labels, tile=4)
    loss = scores.log_sum_exp().sum() + scores.softplus_sum().prod() + scores.at(pairs([(2, 2)])).sum()
    dense = queries @ labels.T
    naive = dense.logsumexp(1).sum() + torch.nn.functional.softplus(dense).sum(1).prod() + dense[2, 2]
    torch.testing.assert_close(
        torch.autograd.grad(loss, [queries, labels]), torch.autograd.grad(naive, [queries, labels])
    )


def test_a_second_backward_pass_starts_from_nothing() -> None:
    queries, labels = vectors()
    loss = Scores(queries, labels).log_sum_exp().sum()
    first = torch.autograd.grad(loss, [queries, labels], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, [queries, labels]), first)


def test_gradients_flow_on_to_whatever_made_the_vectors() -> None:
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    queries, labels = (made.detach() for made in vectors())
    found = torch.autograd.grad(Scores(queries @ weight, labels @ weight).log_sum_exp().sum(), weight)
    naive = ((queries @ weight) @ (labels @ weight).T).logsumexp(1).sum()
    torch.testing.assert_close(found, torch.autograd.grad(naive, weight))


@pytest.mark.parametrize("frozen", [0, 1])
def test_vectors_that_need_no_gradient_get_none(frozen: int) -> None:
    given = list(vectors())
    expected = torch.autograd.grad((given[0] @ given[1].T).logsumexp(1).sum(), given[1 - frozen])
    given[frozen] = given[frozen].detach()
    scores = Scores(*given)
    found = torch.autograd.grad(scores.log_sum_exp().sum() + 0 * scores.at(pairs([(0, 0)])).sum(), given[1 - frozen])
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert not Scores(*vectors()).log_sum_exp().requires_grad


def test_overwriting_a_vector_before_the_backward_pass_is_noticed() -> None:
    queries, labels = vectors()
    copy = labels.clone()
    loss = Scores(queries, copy).log_sum_exp().sum()
    with torch.no_grad():
        copy += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    queries, labels = vectors()
    loss = Scores(queries, labels).log_sum_exp().square().sum()
    (gradient,) = torch.autograd.grad(loss, queries, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_vectors_are_reduced_in_single_precision(dtype: torch.dtype) -> None:
    queries, labels = (made.detach().to(dtype).requires_grad_() for made in vectors())
    bar = Scores(queries, labels).log_sum_exp()
    assert bar.dtype == torch.float32
    torch.testing.assert_close(bar, (queries.float() @ labels.float().T).logsumexp(1))
    assert torch.autograd.grad(bar.sum(), queries)[0].dtype == dtype


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_halved_label_vectors_give_the_loss_of_their_own_values_and_its_gradient_rounded_once_a_sum(
    objective: str,
) -> None:
    problem = random_problem(labels=61)
    halved = problem.labels.bfloat16()
    problem.labels = halved.double()  # what they are worth
    value, to_queries, to_labels = differentiated(problem, lambda: OBJECTIVES[objective][1](problem))
    problem.labels = halved
    found = differentiated(problem, lambda: OBJECTIVES[objective][0](*posed(problem, 7)))
    torch.testing.assert_close(found[:2], (value, to_queries), rtol=1e-11, atol=1e-11)
    assert found[2].dtype == torch.bfloat16
    torch.testing.assert_close(found[2].double(), to_labels, rtol=2**-7, atol=2**-8 * float(to_labels.abs().max()))


def test_a_halved_label_of_many_pairs_gets_the_sum_of_all_their_gradients() -> None:
    queries, labels = torch.ones(1000, 1), torch.ones(2, 1, dtype=torch.bfloat16, requires_grad=True)
    (gradient,) = torch.autograd.grad(Scores(queries, labels).at(pairs([(i, 1) for i in range(1000)])).sum(), labels)
    assert gradient.tolist() == [[0.0], [1000.0]]  # one by one they would end at 256


def test_without_any_label_the_bar_is_minus_infinity() -> None:
    scores = Scores(torch.randn(3, 2), torch.empty(0, 2))
    assert (scores.log_sum_exp() == -torch.inf).all() and (scores.softplus_sum() == 0).all()


def test_weights_that_would_be_denormal_are_dropped() -> None:
    labels = torch.tensor([[0.0], [-50.0], [-95.0], [-200.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Scores(torch.ones(1, 1), labels).log_sum_exp().sum(), labels)
    expected = torch.tensor([[0.0], [-50.0], [-torch.inf], [-torch.inf]]).exp()
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=0)


class LargestTensor(TorchDispatchMode):
    """Watches every operation for the largest tensor it returns."""

    numbers = 0

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return result


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_tensor_near_the_size_of_the_score_matrix_is_ever_made(objective: str) -> None:
    problem = random_problem(queries=50, labels=3000, dimension=4)
    with LargestTensor() as largest:
        differentiated(problem, lambda: OBJECTIVES[objective][0](*posed(problem, 100)))
    assert 3000 * 4 <= largest.numbers < 50 * 3000 / 5


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_dividing_the_labels_among_threads_changes_nothing(
    objective: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(labels=400)
    problem.filtered = [(0, 399), (1, 0), (2, 200)]
    streaming = OBJECTIVES[objective][0]
    expected = differentiated(problem, lambda: streaming(*posed(problem, 33)))
    monkeypatch.setattr(tiles, "WORTH_A_THREAD", 0)
    torch.set_num_threads(threads)
    try:
        found = differentiated(problem, lambda: streaming(*posed(problem, 33)))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("queries", "labels"), [(1, 1), (1024, 131_072), (7, 100), (5000, 30_000), (0, 9), (3, 0)])
def test_tiles_are_even_and_cover_every_label(queries: int, labels: int) -> None:
    tile = even_tile(queries, labels)
    tiles = -(-labels // tile)
    assert tile * tiles >= labels and tile * tiles - labels < max(tiles, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": torch.zeros(5, 4)}, "no scores"),
        ({"labels": torch.zeros(5)}, "no scores"),
        ({"labels": torch.zeros(5, 3)}, "convert one"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"tile": 0}, "tile"),
    ],
)
def test_what_cannot_be_scored_is_refused(settings: dict[str, object], message: str) -> None:
    queries, labels = vectors()
    with pytest.raises(BadInput, match=message):
        Scores(**{"queries": queries, "labels": labels, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", [(0, 11), (4, 0), (-1, 0), (0, -1)])
def test_a_pair_outside_the_matrix_is_refused(pair: tuple[int, int]) -> None:
    outside: Pairs = pairs([(1, 1), pair])
    for ask in (Scores(*vectors()).at, Scores(*vectors()).log_sum_exp):
        with pytest.raises(BadInput, match="a pair names"):
            ask(outside)
    with pytest.raises(BadInput, match="a pair names"):
        Scores(*vectors(), filtered=outside)
