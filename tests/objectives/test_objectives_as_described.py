"""What the paper says about the objectives, and what holds for any batch at all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from problems import ALPHA, OBJECTIVES, assert_agreement, pairs

from reference import Problem
from umpteen.objectives import Scores, Targets, decoupled_softmax, soft_top_k, softmax


def pull_on_the_positives(objective: str, confident: float) -> tuple[torch.Tensor, torch.Tensor]:
    """How strongly gradient descent raises the scores of 3 positives, the first scoring `confident`; and all scores."""
    labels = torch.tensor([[confident], [0.0], [0.0], [-1.0], [-1.0], [-1.0], [-1.0]], dtype=torch.float64)
    labels.requires_grad_()
    positives = pairs([(0, 0), (0, 1), (0, 2)])
    scores = Scores(torch.ones(1, 1, dtype=torch.float64), labels)
    loss = OBJECTIVES[objective][0](scores, Targets(positives, positives, queries=1, reduction="sum"))
    (gradient,) = torch.autograd.grad(loss, labels)
    return -gradient[:3, 0], labels.detach()[:, 0]


def test_the_softmax_gradient_turns_negative_on_a_confident_positive() -> None:
    pull, scores = pull_on_the_positives("softmax", confident=4.0)
    torch.testing.assert_close(pull, 1 - 3 * scores.softmax(0)[:3])  # 1 − |P| σ
    assert pull[0] < 0


@pytest.mark.parametrize("confident", [-5.0, 0.0, 4.0, 20.0])
def test_decoupled_softmax_never_penalises_a_confident_positive(confident: float) -> None:
    pull, scores = pull_on_the_positives("decoupled_softmax", confident)
    negatives = scores[3:].exp().sum()
    torch.testing.assert_close(pull, 1 - scores[:3].exp() / (scores[:3].exp() + negatives))  # 1 − σ
    assert (pull >= 0).all()


def test_soft_top_k_is_content_once_every_positive_is_among_the_top_k() -> None:
    labels = torch.tensor([[20.0], [19.0], [30.0], [-20.0], [-20.0]], dtype=torch.float64)
    positives = pairs([(0, 0), (0, 1)])
    scores, targets = Scores(torch.ones(1, 1, dtype=torch.float64), labels), Targets(positives, positives, queries=1)
    assert soft_top_k(scores, targets, 3, ALPHA) < 1e-12  # a negative above them costs nothing
    assert soft_top_k(scores, targets, 2, ALPHA) > 1e-2
    assert decoupled_softmax(scores, targets) > 1


@pytest.mark.parametrize("masked", [False, True])
def test_a_positive_that_was_not_sampled_moves_soft_top_k_s_threshold_unless_it_is_masked(masked: bool) -> None:
    labels = torch.tensor([[0.3], [0.2], [0.5], [-0.4], [0.1], [-1.0]], dtype=torch.float64, requires_grad=True)
    targets = Targets(pairs([(0, 0), (0, 1)]), pairs([(0, 0), (0, 1), (0, 2), (0, 3)]), queries=1)
    scores = Scores(torch.ones(1, 1, dtype=torch.float64), labels)
    (gradient,) = torch.autograd.grad(soft_top_k(scores, targets, 2, ALPHA, mask_unsampled=masked), labels)
    assert (gradient[:2] < 0).all() and (gradient[4:] > 0).all()
    assert ((gradient[2:4] == 0) if masked else (gradient[2:4] > 0)).all()  # in eq. 6 a positive is pushed down
    without = Scores(torch.ones(1, 1, dtype=torch.float64), labels[[0, 1, 4, 5]])
    alone = soft_top_k(without, Targets(targets.pulled, targets.pulled, queries=1), 2, ALPHA)
    assert (
        soft_top_k(scores, targets, 2, ALPHA, mask_unsampled=masked).item() == pytest.approx(alone.item())
    ) is masked


def test_softmax_and_decoupled_softmax_agree_when_each_query_has_one_positive() -> None:
    queries, labels = torch.randn(5, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    positives = pairs([(query, query) for query in range(5)])
    scores, targets = Scores(queries, labels), Targets(positives, positives, queries=5)
    torch.testing.assert_close(softmax(scores, targets), decoupled_softmax(scores, targets))


@some.composite
def problems(draw: some.DrawFn) -> Problem:
    """Batches of any size and shape, from no pair at all to every pair relevant."""
    queries, labels = draw(some.integers(1, 4)), draw(some.integers(6, 12))
    any_pairs = some.lists(some.tuples(some.integers(0, queries - 1), some.integers(0, labels - 1)), max_size=12)
    pulled = draw(any_pairs)
    filtered = draw(some.lists(some.tuples(some.integers(0, queries - 1), some.integers(0, 1)), max_size=3))
    weight = some.sampled_from([0.0, 0.5, 1.0, 2.0])
    rng = torch.Generator().manual_seed(draw(some.integers(0, 99)))
    return Problem(
        queries=draw(some.sampled_from([0.1, 1.0, 50.0])) * torch.randn(queries, 3, generator=rng, dtype=torch.float64),
        labels=torch.randn(labels, 3, generator=rng, dtype=torch.float64),
        pulled=pulled,
        unpulled=draw(any_pairs),
        filtered=filtered,
        weights=draw(some.none() | some.lists(weight, min_size=len(pulled), max_size=len(pulled))),
        reduction=draw(some.sampled_from(["mean", "sum"])),
        temperature=draw(some.sampled_from([1.0, 0.3])),
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(problem=problems(), tile=some.sampled_from([1, 2, 3, 5, 7, None]))
@settings(max_examples=20, deadline=None)
def test_any_batch_agrees_with_the_formula(objective: str, problem: Problem, tile: int | None) -> None:
    assert_agreement(problem, objective, tile, tolerance=1e-8)
