"""SoftTop-k's threshold is exact after one pass, for flat, middling and peaked scores, in any order of the labels."""

import pytest
import torch
from problems import pairs
from torch import Tensor

from reference import soft_threshold
from umpteen.errors import BadInput
from umpteen.objectives import Scores

LABELS = 1003
SPREADS = {"flat": 0.01, "middling": 2.0, "peaked": 40.0}


def given(scores: Tensor, tile: int | None = None, **settings: object) -> tuple[Scores, Tensor]:
    """Scores that are exactly the given matrix [B, L], and the label vectors to differentiate by."""
    labels = scores.T.contiguous().requires_grad_()
    return Scores(torch.eye(len(scores), dtype=scores.dtype), labels, tile=tile, **settings), labels


def spread_out(spread: str, order: str = "random", queries: int = 4) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    scores = SPREADS[spread] * torch.randn(queries, LABELS, generator=rng, dtype=torch.float64)
    return scores if order == "random" else scores.sort(descending=order == "falling").values


@pytest.mark.parametrize("tile", [7, 100, None])
@pytest.mark.parametrize("order", ["random", "rising", "falling"])
@pytest.mark.parametrize("spread", SPREADS)
def test_the_threshold_is_exact_in_any_order_of_the_labels(spread: str, order: str, tile: int | None) -> None:
    matrix = spread_out(spread, order)
    scores, labels = given(matrix, tile)
    found = scores.soft_threshold(5, 2.0)
    expected = torch.stack([soft_threshold(row, 5, 2.0) for row in matrix])
    torch.testing.assert_close(found.detach(), expected, rtol=1e-13, atol=1e-13)

    upstream = torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(found, labels, upstream)
    leaf = matrix.clone().requires_grad_()
    naive = torch.stack([soft_threshold(row, 5, 2.0) for row in leaf])
    torch.testing.assert_close(gradient.T, torch.autograd.grad(naive, leaf, upstream)[0], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("k", [1, 5, 31, 500, 1002])
def test_the_sigmas_add_up_to_k_and_the_gradient_to_one(spread: str, k: int) -> None:
    matrix = spread_out(spread)
    scores, labels = given(matrix)
    threshold = scores.soft_threshold(k, 2.0)
    sigmas = torch.sigmoid(2.0 * (matrix - threshold.detach()[:, None]))
    torch.testing.assert_close(sigmas.sum(1), torch.full((4,), float(k), dtype=torch.float64), rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(threshold.sum(), labels)
    torch.testing.assert_close(gradient.sum(0), torch.ones(4, dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("spread", SPREADS)
def test_single_precision_keeps_six_digits(spread: str) -> None:
    matrix = spread_out(spread)
    exact = torch.stack([soft_threshold(row, 5, 2.0) for row in matrix])
    scores, labels = given(matrix.float())
    found = scores.soft_threshold(5, 2.0)
    torch.testing.assert_close(found.detach().double(), exact, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), labels)
    torch.testing.assert_close(gradient.sum(0), torch.ones(4), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_across_a_gap_of_two_thousand_the_threshold_lies_in_the_middle(dtype: torch.dtype) -> None:
    k, count, alpha = 4, 300, 2.0
    matrix = torch.full((1, count), -1000.0, dtype=dtype)
    matrix[0, [3, 77, 150, 299]] = 1000.0
    scores, labels = given(matrix)
    threshold = scores.soft_threshold(k, alpha)
    # k e^(t − 1000·alpha) = (count − k) e^(−1000·alpha − t)
    middle = torch.tensor([(count - k) / k], dtype=dtype).log() / 2 / alpha
    torch.testing.assert_close(threshold.detach(), middle)
    (gradient,) = torch.autograd.grad(threshold.sum(), labels)
    high = matrix.T > 0
    torch.testing.assert_close(gradient, torch.where(high, 1 / (2 * k), 1 / (2 * (count - k))).to(dtype))


def test_equal_scores_share_the_gradient() -> None:
    scores, labels = given(torch.full((2, LABELS), 3.0, dtype=torch.float64), 64)
    threshold = scores.soft_threshold(5, 2.0)
    expected = 3.0 + torch.tensor(LABELS / 5 - 1, dtype=torch.float64).log() / 2  # LABELS · σ(2 (3 − t)) = 5
    torch.testing.assert_close(threshold.detach(), expected.expand(2))
    (gradient,) = torch.autograd.grad(threshold.sum(), labels)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 1 / LABELS))


@pytest.mark.parametrize("tile", [7, None])
def test_one_large_k_among_small_ones_gets_its_own_threshold(tile: int | None) -> None:
    matrix = spread_out("middling", queries=7)
    k = torch.tensor([1, 387, 2, 3, 0, 1003, 5])
    found = given(matrix, tile)[0].soft_threshold(k, 2.0)
    for row, size, threshold in zip(matrix, k.tolist(), found, strict=True):
        expected = soft_threshold(row, size, 2.0) if 0 < size < LABELS else torch.tensor(-torch.inf)
        torch.testing.assert_close(threshold, expected.double(), rtol=1e-13, atol=1e-13)


def test_filtered_pairs_do_not_count_among_the_k() -> None:
    matrix = spread_out("middling", queries=2)
    best = matrix[0].topk(3).indices.tolist()
    scores, labels = given(matrix, filtered=pairs([(0, label) for label in best * 2]))
    found = scores.soft_threshold(5, 2.0)
    rest = torch.tensor([label for label in range(LABELS) if label not in best])
    torch.testing.assert_close(found[0], soft_threshold(matrix[0, rest], 5, 2.0))
    torch.testing.assert_close(found[1], soft_threshold(matrix[1], 5, 2.0))
    (gradient,) = torch.autograd.grad(found.sum(), labels)
    assert (gradient[best, 0] == 0).all()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_alpha_that_is_not_a_positive_number_is_refused(alpha: float) -> None:
    with pytest.raises(BadInput, match="alpha"):
        given(spread_out("flat"))[0].soft_threshold(5, alpha)
