"""The quick dropout drops what it should, keeps the mean, and replays with the seed."""

import pytest
import torch

from umpteen.encoders.encoder import drop


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_the_share_dropped_is_the_rate_and_the_rest_is_scaled(rate: float) -> None:
    torch.manual_seed(0)
    dropped = drop(torch.ones(1000, 401, dtype=torch.float64), rate, training=True)
    share = (dropped == 0).double().mean().item()
    assert abs(share - rate) < 4 * (rate * (1 - rate) / dropped.numel()) ** 0.5 + 1e-5
    torch.testing.assert_close(
        dropped[dropped != 0].unique(), torch.tensor([1 / (1 - rate)]).double(), rtol=1e-4, atol=0
    )


def test_every_place_is_dropped_alike_and_by_itself() -> None:
    torch.manual_seed(0)
    kept = (drop(torch.ones(20_000, 8, dtype=torch.float64), 0.5, training=True) != 0).double()
    assert (kept.mean(0) - 0.5).abs().max() < 0.02
    correlations = torch.corrcoef(kept.T) - torch.eye(8)
    assert correlations.abs().max() < 0.04


def test_the_gradient_goes_where_the_numbers_went() -> None:
    vectors = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    dropped = drop(vectors, 0.4, training=True)
    dropped.sum().backward()
    assert vectors.grad is not None
    torch.testing.assert_close(vectors.grad * vectors.detach(), dropped.detach())


def test_the_same_seed_drops_the_same_numbers() -> None:
    vectors = torch.ones(9, 9)
    drawn = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        drawn.append(drop(vectors, 0.5, training=True))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_at_rest_or_at_rate_zero_nothing_changes() -> None:
    vectors = torch.randn(3, 4)
    assert drop(vectors, 0.5, training=False) is vectors
    assert drop(vectors, 0.0, training=True) is vectors
    assert drop(torch.zeros(0, 4), 0.5, training=True).shape == (0, 4)
    assert torch.isfinite(drop(vectors, 0.9999999, training=True)).all()
