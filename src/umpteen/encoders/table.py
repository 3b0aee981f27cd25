"""A label tower with a learned vector per label: instead of a text encoder (a classifier), or added to one (fused).

Both take a label's row as a token id: the table has nothing else, the fused tower has it before the text's tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import NEW, Encoder, Tokens, checked_dropout, drop, normalised
from umpteen.encoders.rows import RowTable
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.errors import BadInput
from umpteen.parallel.world import Shard

TEXT_FOLDER = "text"


class LabelTable(Encoder):
    """The one-vs-all classifier's head: label j's vector is row j, then dropout, then length 1."""

    def __init__(self, table: RowTable, *, normalise: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = table
        self.dimension = table.dimension
        self.normalise = normalise
        self.dropout = checked_dropout(dropout)

    @property
    def tokenizer(self) -> TextTokenizer:  # type: ignore[override]
        _refuse_text()

    @property
    def rows(self) -> RowTable:
        return self.table

    def rearrange(self, rows: Tensor, labels: Shard, seed: int) -> None:
        self.table = self.table.rearranged(rows, RowTable.gaussian(labels, self.dimension, seed))

    def label_tokens(self, rows: NDArray[np.int64], tokens: Tokens) -> TokenTable:
        if (rows == NEW).any():
            raise BadInput(
                f"{int((rows == NEW).sum()):,} labels are new to a model with a label table, which has no vector for "
                "a text; train with a text label tower ([encoder.label] kind or residual), or with `train --from`"
            )
        return TokenTable.of_lengths(rows.astype(np.int32), np.ones(len(rows), dtype=np.int64))

    def reading(self, tokens: TokenTable) -> None:
        return None

    @property
    def token_budget(self) -> int:
        return 16_384

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        if len(ids) != len(offsets) - 1:
            _refuse_text()
        vectors = drop(self.table(ids), self.dropout, self.training)
        return normalised(vectors) if self.normalise else vectors

    def encode(self, texts: Sequence[str]) -> Tensor:
        _refuse_text()

    def save(self, folder: Path) -> None:
        """Writes the table and its settings; sentence-transformers has no use for them."""
        layout.write_tensors(folder / layout.WEIGHTS_FILE, {"table": self.table.weight})
        layout.write_settings(folder, {"kind": "table", "normalise": self.normalise, "dropout": self.dropout})

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "LabelTable":
        """The tower that `save` wrote."""
        table = RowTable(layout.read_tensors(folder / layout.WEIGHTS_FILE)["table"])
        return cls(table, normalise=settings["normalise"], dropout=settings["dropout"]).eval()

    def describe(self) -> str:
        unit = "unit vectors" if self.normalise else "vectors"
        return f"table: {self.table.count:,} labels, {unit} of {self.dimension}"


class FusedEncoder(Encoder):
    """text vector + the label's residual, then length 1 if the text tower has that; residuals start at zero.

    A label it was not trained with has the row `count`, and no residual.
    """

    def __init__(self, text: Encoder, residual: RowTable, *, normalise: bool) -> None:
        super().__init__()
        self.text = text
        self.residual = residual
        self.normalise = normalise
        self.dimension = text.dimension
        self.tokenizer = text.tokenizer

    @property
    def rows(self) -> RowTable:
        return self.residual

    def rearrange(self, rows: Tensor, labels: Shard, seed: int) -> None:
        self.residual = self.residual.rearranged(rows, RowTable.zeros(labels, self.dimension))

    def label_tokens(self, rows: NDArray[np.int64], tokens: Tokens) -> TokenTable:
        return tokens().preceded_by(np.where(rows == NEW, self.residual.count, rows))

    def reading(self, tokens: TokenTable) -> tuple[Encoder, TokenTable]:
        return self.text, tokens.without_firsts()

    @property
    def pads(self) -> bool:
        return self.text.pads

    @property
    def token_budget(self) -> int:
        return self.text.token_budget

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        firsts = offsets[:-1]
        rows = ids[firsts]
        is_text = torch.ones_like(ids, dtype=torch.bool).index_fill_(0, firsts, False)
        texts = torch.arange(len(offsets), device=offsets.device)
        vectors = self.text(ids[is_text], offsets - texts)
        known = torch.where(rows < self.residual.count)[0]
        vectors = vectors.index_add(0, known, self.residual(rows[known]))
        return normalised(vectors) if self.normalise else vectors

    def encode(self, texts: Sequence[str]) -> Tensor:
        """The vectors of labels it was not trained with."""
        return self.text.encode(texts)

    def save(self, folder: Path) -> None:
        """Writes the text tower, which sentence-transformers loads, and the residuals beside it."""
        self.text.save(folder / TEXT_FOLDER)
        layout.write_tensors(folder / layout.WEIGHTS_FILE, {"residual": self.residual.weight})
        layout.write_settings(folder, {"kind": "fused", "normalise": self.normalise})

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any], text: Encoder) -> "FusedEncoder":
        """The tower that `save` wrote, around the text tower from its subfolder."""
        residual = RowTable(layout.read_tensors(folder / layout.WEIGHTS_FILE)["residual"])
        return cls(text, residual, normalise=settings["normalise"]).eval()

    def describe(self) -> str:
        return f"{self.text.describe()}, and a residual for each of {self.residual.count:,} labels"


def _refuse_text() -> NoReturn:
    raise BadInput(
        "a label table has no vector for a text: it knows only the labels it was trained with; train a text label "
        "tower, with residual = true if each label is to have a vector of its own besides"
    )
