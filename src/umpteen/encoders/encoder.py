"""What every encoder is: token ids in, one vector per text out, saved as a sentence-transformers folder."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from umpteen.data.tokens import TokenTable
from umpteen.encoders.rows import RowTable
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.errors import BadConfig
from umpteen.parallel.world import Shard

LEVELS = 1 << 16  # a rate is rounded to one in 65,536, and the scale follows the rounded rate


# Dropout on vectors, four times as fast as torch's on a CPU, where drawing the mask is most of its cost.
#
# torch draws 64 random bits for every number; here 64 bits decide about four.
def drop(vectors: Tensor, rate: float, training: bool) -> Tensor:
    """In training each number is 0 with probability `rate`, else ÷ (1 − rate); the mask follows torch's generator."""
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    if not training or dropped == 0:
        return vectors
    count = vectors.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64, device=vectors.device).random_(-(2**63), None)
    kept = bits.view(torch.int16)[:count].view(vectors.shape) >= dropped - LEVELS // 2
    return vectors * kept.to(vectors.dtype).mul_(LEVELS / (LEVELS - dropped))


def checked_dropout(rate: float) -> float:
    """The rate, if it is one."""
    if not 0.0 <= rate < 1.0:
        raise BadConfig(f"dropout = {rate}: it must be at least 0 and below 1")
    return rate


NEW = -1  # in place of the row of a label that the tower was not trained with
Tokens = Callable[[], TokenTable]
SMALLEST_NORM = 1e-12  # as sentence-transformers' Normalize: shorter vectors have no direction


class Encoder(nn.Module):
    """Texts as ragged token ids → vectors. `train()` turns dropout on, `double()` makes it float64."""

    dimension: int
    tokenizer: TextTokenizer

    @property
    def rows(self) -> RowTable | None:
        """The learned vector that each label has, where labels are more than their texts."""
        return None

    def rearrange(self, rows: Tensor, labels: Shard, seed: int) -> None:
        """Label j has the vector of what was row rows[j] from now on; where that is NEW, it starts anew."""

    def label_tokens(self, rows: NDArray[np.int64], tokens: Tokens) -> TokenTable:
        """What the tower takes for labels of these rows (NEW: it was not trained with it) and of these texts."""
        return tokens()

    def reading(self, tokens: TokenTable) -> "tuple[Encoder, TokenTable] | None":
        """The encoder that reads the texts behind what `label_tokens` gave, and their tokens."""
        return self, tokens

    def settle(self) -> None:
        """Brings the weights into the form in which they are saved: then a saved copy agrees to the bit."""

    @property
    def pads(self) -> bool:
        """Whether texts encoded together each take as long as the longest of them."""
        return False

    @property
    @abstractmethod
    def token_budget(self) -> int:
        """Padded tokens a micro-batch should hold on the encoder's device: more take memory, not less time."""

    @abstractmethod
    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """ids int64 [T], offsets int64 [n+1] (text i is ids[offsets[i]:offsets[i+1]]) → vectors [n, dimension]."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes a folder that sentence-transformers loads; for all-or-nothing, call it in storage.atomic_folder."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """The vectors of a few texts, without a graph; many texts go through batches of token ids instead."""
        ids, offsets = self.tokenizer.batch(texts)
        device = next(self.parameters()).device
        with torch.no_grad():
            return self(ids.to(device), offsets.to(device))

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        vectors: Tensor = super().__call__(*args, **kwargs)
        return vectors


def normalised(vectors: Tensor) -> Tensor:
    """Each row at length 1. A row without direction becomes 0 and gets the gradient 0, never NaN or 1e12."""
    result: Tensor = _Normalised.apply(vectors)  # type: ignore[no-untyped-call]
    return result


class _Normalised(torch.autograd.Function):
    """The gradient loses its part along the vector: three passes over the vectors, where autograd's own takes ten."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        norms = norms.masked_fill_(norms <= SMALLEST_NORM, torch.inf)
        result = vectors / norms
        ctx.save_for_backward(result, norms)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, result)[:, None]
        return torch.addcmul(gradient, result, along, value=-1).div_(norms)
