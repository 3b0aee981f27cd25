"""Quicker dropout inside the layers changes which numbers are dropped, and nothing else."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tiny import tiny_transformer
from umpteen.encoders import backbone as layer_dropout
from umpteen.encoders.backbone import LayerDropout, attention, load_backbone

TWO_WAY, CAUSAL = SimpleNamespace(is_causal=False), SimpleNamespace(is_causal=True)


def _states() -> tuple[list[Tensor], Tensor]:
    """Query, key and value [3, 2, 5, 4], and a mask that leaves three texts 5, 3 and 1 tokens."""
    numbers = torch.Generator().manual_seed(0)
    states = [torch.randn(3, 2, 5, 4, generator=numbers, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    return states, mask[:, None, None, :].expand(3, 1, 5, 5)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_attention_written_out_is_the_fused_one(
    masked: bool, scaling: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_dropout, "drop", lambda weights, rate, training: weights)
    states, mask = _states()
    given = mask if masked else None
    ours, _ = attention(TWO_WAY, *states, given, dropout=0.5, scaling=scaling)
    theirs, _ = sdpa_attention_forward(TWO_WAY, *states, given, dropout=0.0, scaling=scaling)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    weights = torch.rand_like(ours)
    gradients = [torch.autograd.grad((found * weights).sum(), states) for found in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_attention_weights_are_dropped_at_their_rate_and_scaled() -> None:
    states, mask = _states()
    exact, _ = attention(TWO_WAY, *states, mask, dropout=0.0)
    torch.manual_seed(1)
    draws = torch.stack([attention(TWO_WAY, *states, mask, dropout=0.2)[0].detach() for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), exact, rtol=0, atol=0.05)
    assert (draws[:, 2] == 0).all(-1).double().mean() == pytest.approx(0.2, abs=0.02)  # its only token was dropped


def test_attention_we_do_not_know_is_left_to_torch() -> None:
    states, mask = _states()
    for module, given, special in (
        (CAUSAL, None, {}),
        (TWO_WAY, mask, {"position_bias": torch.ones(1, 2, 5, 5).double()}),
    ):
        torch.manual_seed(2)
        ours, _ = attention(module, *states, given, dropout=0.3, **special)
        torch.manual_seed(2)
        theirs, _ = sdpa_attention_forward(module, *states, given, dropout=0.3, **special)
        assert torch.equal(ours, theirs)


def test_a_text_that_sees_nothing_gets_finite_numbers() -> None:
    states, mask = _states()
    attended, _ = attention(TWO_WAY, *states, torch.zeros_like(mask), dropout=0.5)
    assert torch.isfinite(attended).all()


@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet"])
def test_every_dropout_of_a_model_is_quick_and_the_rates_stay(kind: str, tmp_path: Path) -> None:
    folder = tiny_transformer(tmp_path, kind)
    model, plain = load_backbone(Path(folder)), AutoModel.from_pretrained(folder)
    found = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    rates = [module.p for module in plain.modules() if isinstance(module, nn.Dropout)]
    assert all(type(module) is LayerDropout for module in found) and [module.p for module in found] == rates
    expected = "eager" if kind == "mpnet" else layer_dropout.ATTENTION  # MPNet attends in a way of its own
    assert model.config._attn_implementation == expected
    ids = torch.tensor([[2, 9, 3, 0], [2, 9, 8, 3]])
    states = [m.eval()(input_ids=ids, attention_mask=(ids > 0).long()).last_hidden_state for m in (model, plain)]
    torch.testing.assert_close(*states)
    model.save_pretrained(tmp_path / "saved")
    assert layer_dropout.ATTENTION not in (tmp_path / "saved" / "config.json").read_text()
