"""Dropout inside a transformer's layers, its masks drawn as quickly as those of `drop`.

On a CPU torch's own masks, and its detour around fused attention, were the largest part of a training step besides the
matrix products. Elsewhere torch's kernels stay.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from umpteen.encoders.dropout import drop

ATTENTION = "umpteen"  # the name transformers knows `attention` by


class LayerDropout(nn.Dropout):
    """nn.Dropout with quick masks."""

    def forward(self, states: Tensor) -> Tensor:
        return drop(states, self.p, self.training) if states.device.type == "cpu" else super().forward(states)


def quicken_dropout(model: PreTrainedModel) -> None:
    """Gives a model's layers these masks, in place; rates, weights and everything it computes without dropout stay."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, LayerDropout(child.p))
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **special: Any,
) -> tuple[Tensor, Tensor | None]:
    """torch's fused attention [n, heads, length, size] → [n, length, heads, size], written out where dropout is on."""
    plain = query.shape == key.shape and not getattr(module, "is_causal", True)
    asked = any(value is not None and value is not False for value in special.values())
    if asked or not (dropout and plain and query.device.type == "cpu"):
        given = {"dropout": dropout, "scaling": scaling, **special}
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **given)
        return attended
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
    if attention_mask is not None:
        # Not −∞: a padding token may see nothing at all, and NaN would spread to the mean of the tokens.
        scores.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
    weights = drop(scores.softmax(-1), dropout, training=True)
    return (weights @ value).transpose(1, 2).contiguous(), None
