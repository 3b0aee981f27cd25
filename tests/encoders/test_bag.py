"""The bag of weighted rows is the plain mean, forward and backward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from umpteen.encoders.static import weighted_mean


def naive_mean(table: Tensor, weights: Tensor | None, ids: Tensor, offsets: Tensor) -> Tensor:
    texts = []
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        rows = table[ids[start:end]]
        if weights is not None:
            rows = rows * weights[ids[start:end], None]
        texts.append(rows.sum(0) / max(end - start, 1))
    return torch.stack(texts)


def ragged(lengths: list[int], rows: int, seed: int) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randint(rows, (sum(lengths),), generator=numbers), offsets


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=9),
    rows=st.integers(1, 7),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_value_and_gradients_are_those_of_the_naive_mean(
    lengths: list[int], rows: int, weighted: bool, seed: int
) -> None:
    ids, offsets = ragged(lengths, rows, seed)
    numbers = torch.Generator().manual_seed(seed + 1)
    table = torch.randn(rows, 3, generator=numbers, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(rows, generator=numbers, dtype=torch.float64, requires_grad=True) if weighted else None
    inputs = [table] if weights is None else [table, weights]
    ours, theirs = (mean(table, weights, ids, offsets) for mean in (weighted_mean, naive_mean))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    direction = torch.randn(ours.shape, generator=numbers, dtype=torch.float64)
    our_gradients, their_gradients = (
        torch.autograd.grad((vectors * direction).sum(), inputs, allow_unused=True, materialize_grads=True)
        for vectors in (ours, theirs)
    )
    torch.testing.assert_close(our_gradients, their_gradients, rtol=1e-12, atol=1e-12)


def test_the_gradient_passes_gradcheck() -> None:
    ids, offsets = ragged([3, 0, 1, 4], 5, seed=0)
    table = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *inputs: weighted_mean(*inputs, ids, offsets), (table, weights))


@pytest.mark.parametrize("frozen", ["table", "weights"])
def test_a_frozen_half_gets_no_gradient_and_the_other_its_own(frozen: str) -> None:
    ids, offsets = ragged([3, 2], 5, seed=0)
    halves = {"table": torch.randn(5, 2, requires_grad=True), "weights": torch.rand(5, requires_grad=True)}
    weighted_mean(**halves, ids=ids, offsets=offsets).sum().backward()
    free = "weights" if frozen == "table" else "table"
    whole = halves[free].grad
    halves[free].grad = None
    halves[frozen].grad = None
    halves[frozen].requires_grad_(False)
    weighted_mean(**halves, ids=ids, offsets=offsets).sum().backward()
    assert halves[frozen].grad is None
    assert whole is not None and halves[free].grad is not None
    assert torch.equal(halves[free].grad, whole)


def test_no_texts_give_no_vectors() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert weighted_mean(torch.ones(4, 3), torch.ones(4), none, torch.zeros(1, dtype=torch.int64)).shape == (0, 3)
