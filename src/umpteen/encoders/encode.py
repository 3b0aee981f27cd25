"""Many texts into vectors: longest first, in micro-batches of like length, so that padding stays small.

A label tower may know labels by their rows as well as, or instead of, by their texts; what it takes is decided here.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.encoders.encoder import NEW, Encoder
from umpteen.files.progress import Advance
from umpteen.parallel.world import spread

_SMALLEST_BUDGET = 256  # padded tokens; fewer do not fill a core
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
    encoder: Encoder, table: TokenTable, token_budget: int | None = None, progress: Advance | None = None
) -> Tensor:
    """The vectors of all rows of a token table, in its order, without a graph and with dropout off.

    Without a budget, micro-batches are as large as suits the encoder. Where it pads, threads take them in turns: their
    operations are too short to be divided.
    """
    parameter = next(encoder.parameters())
    parts = micro_batches(table.lengths, token_budget or _suitable_budget(encoder, table))
    vectors = torch.empty(len(table), encoder.dimension, dtype=parameter.dtype, device=parameter.device)
    unread, taking, done = iter(parts), Lock(), 0

    def encode(_: int) -> None:
        nonlocal unread, done
        try:
            while (rows := _next_of(unread, taking)) is not None:
                ids, offsets = table.batch(rows)
                found = encoder(ids.to(parameter.device), offsets.to(parameter.device))
                vectors[torch.from_numpy(rows).to(parameter.device)] = found
                with taking:
                    done += len(rows)
                    if progress is not None:
                        progress(done, len(table))
        except BaseException:
            unread = iter(())  # the other threads stop, too
            raise

    trains = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            spread(encode, max(1, min(len(parts), torch.get_num_threads())) if encoder.pads else 1)
    finally:
        encoder.train(trains)
    return vectors


def _next_of(parts: Iterator[NDArray[np.int64]], taking: Lock) -> NDArray[np.int64] | None:
    with taking:
        return next(parts, None)


def _suitable_budget(encoder: Encoder, table: TokenTable) -> int:
    """Of a few texts, three micro-batches of like length: padding all to the longest costs more than two calls."""
    if not encoder.pads:
        return encoder.token_budget
    return min(encoder.token_budget, max(_SMALLEST_BUDGET, int(table.lengths.sum()) // 3))


def label_tokens(tower: Encoder, texts: Texts, rows: NDArray[np.int64], progress: Advance | None = None) -> TokenTable:
    """What a label tower takes for labels of these texts and rows; texts are tokenised once, into the cache."""
    return tower.label_tokens(rows, lambda: tokenise(texts, tower.tokenizer, progress=progress))


def encode_texts(
    encoder: Encoder,
    texts: Sequence[str],
    token_budget: int | None = None,
    progress: Advance | None = None,
    *,
    rows: NDArray[np.int64] | None = None,
) -> Tensor:
    """The vectors of texts, in their order, as `encode_tokens` gives them.

    If they are labels that the encoder was trained with, `rows` says which; without it they are new to it.
    """
    rows = np.full(len(texts), NEW) if rows is None else rows
    parts = []
    for start in range(0, max(1, len(texts)), _TEXTS_AT_A_TIME):
        some = [texts[row] for row in range(start, min(start + _TEXTS_AT_A_TIME, len(texts)))]
        table = encoder.label_tokens(rows[start : start + len(some)], partial(_tokens_of, encoder, some))
        parts.append(encode_tokens(encoder, table, token_budget))
        if progress is not None:
            progress(start + len(some), len(texts))
    return torch.cat(parts)


def _tokens_of(encoder: Encoder, texts: list[str]) -> TokenTable:
    return TokenTable.of(encoder.tokenizer(texts), encoder.tokenizer.vocabulary_size)
