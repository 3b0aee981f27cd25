"""Many texts into vectors: longest first, in micro-batches of like length, so that padding stays small."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder

Progress = Callable[[int, int], None]

_TEXTS_AT_A_TIME = 16_384  # token ids of more texts than this never stand in memory together


def micro_batches(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """Positions by falling length, cut so that longest × count stays within the budget (one text may exceed it)."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    parts = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        count = max(1, token_budget // longest)
        parts.append(order[start : start + count])
        start += count
    return parts


def encode_tokens(
    encoder: Encoder, table: TokenTable, token_budget: int | None = None, progress: Progress | None = None
) -> Tensor:
    """The vectors of all rows of a token table, in its order, without a graph and with dropout off.

    Without a budget, micro-batches are as large as suits the encoder.
    """
    device = next(encoder.parameters()).device
    vectors = torch.empty(0)
    trains = encoder.training
    encoder.eval()
    done = 0
    try:
        with torch.no_grad():
            for rows in micro_batches(table.lengths, token_budget or encoder.token_budget):
                ids, offsets = table.batch(rows)
                found = encoder(ids.to(device), offsets.to(device))
                if done == 0:
                    vectors = found.new_empty(len(table), encoder.dimension)
                vectors[torch.from_numpy(rows).to(device)] = found
                done += len(rows)
                if progress is not None:
                    progress(done, len(table))
    finally:
        encoder.train(trains)
    return vectors if done else torch.empty(0, encoder.dimension, device=device)


def encode_texts(
    encoder: Encoder, texts: Sequence[str], token_budget: int | None = None, progress: Progress | None = None
) -> Tensor:
    """The vectors of texts, in their order, as `encode_tokens` gives them."""
    tokenizer = encoder.tokenizer
    parts = []
    for start in range(0, max(1, len(texts)), _TEXTS_AT_A_TIME):
        some = [texts[row] for row in range(start, min(start + _TEXTS_AT_A_TIME, len(texts)))]
        table = TokenTable.of(tokenizer(some), tokenizer.vocabulary_size)
        parts.append(encode_tokens(encoder, table, token_budget))
        if progress is not None:
            progress(start + len(some), len(texts))
    return torch.cat(parts)
