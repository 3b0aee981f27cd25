"""Where static encoders start: rare word pieces weigh more than common ones."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from umpteen.data.token_table import TokenTable

_CHUNK = 50_000  # texts counted at once


def inverse_document_frequencies(tables: Iterable[TokenTable], vocabulary_size: int) -> Tensor:
    """log((1 + texts) / (1 + texts with the token)) + 1, divided by its largest value: float32 [vocabulary]."""
    texts = 0
    frequency = np.zeros(vocabulary_size, dtype=np.int64)
    for table in tables:
        texts += len(table)
        for start in range(0, len(table), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(table)))
            ids, offsets = (tensor.numpy() for tensor in table.batch(rows))
            owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
            pairs = np.sort(owner * vocabulary_size + ids)  # np.unique would hash them, thirty times slower
            once = pairs[np.diff(pairs, prepend=-1) > 0] % vocabulary_size
            frequency += np.bincount(once, minlength=vocabulary_size)
    weights = np.log((1 + texts) / (1 + frequency)) + 1
    return torch.from_numpy((weights / weights.max()).astype(np.float32))
