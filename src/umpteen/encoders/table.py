"""A learned vector for each label, whose only token is its row: a label tower instead of a text's, or a part of one."""

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.config.settings import TablePart, TableTower
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import NEW, Encoder, Leaf, Place, Read
from umpteen.encoders.rows import RowTable
from umpteen.errors import BadInput
from umpteen.parallel.world import Shard


class LabelTable(Encoder):
    """The one-vs-all classifier's head: label j's vector is row j, then dropout, length 1, and its bias, if any."""

    token_budget = 16_384

    def __init__(self, table: RowTable, bias: RowTable | None = None, *, optional: bool = False, **how: Any) -> None:
        super().__init__(**how)
        if bias is not None and (bias.count, bias.dimension) != (table.count, 1):
            raise BadInput(f"biases {tuple(bias.weight.shape)} for {table.count:,} labels; each has one number")
        self.optional = optional  # as a part beside others: zeros for a label it was not trained with
        self.table = table  # before the bias: its `rows`
        self.bias = bias  # of one number a row
        self.dimension = table.dimension + (bias is not None)

    @classmethod
    def build(cls, settings: TableTower | TablePart, place: Place) -> "LabelTable":
        """Vectors that can be compared with those of the tower beside it; as a part, zeros to be added to them."""
        assert place.beside is not None
        own, size = settings.model_dump(include={"normalise", "dropout"}), place.beside.dimension
        if isinstance(settings, TablePart):
            return cls(RowTable.zeros(place.labels, size), **own, optional=True)
        bias = RowTable.zeros(place.labels, 1) if settings.bias else None
        return cls(RowTable.gaussian(place.labels, size, place.seed), bias, **own)

    @property
    def tokenizer(self) -> layout.TextTokenizer:  # type: ignore[override]
        _refuse_text()

    def rearrange(self, rows: Tensor, labels: Shard, seed: int) -> None:
        new = RowTable.zeros if self.optional else partial(RowTable.gaussian, seed=seed)
        self.table = self.table.rearranged(rows, new(labels, self.table.dimension))
        if self.bias is not None:
            self.bias = self.bias.rearranged(rows, RowTable.zeros(labels, 1))

    def takes(self, read: Read, rows: NDArray[np.int64]) -> TokenTable:
        is_known = rows != NEW
        if not (self.optional or is_known.all()):
            new = f"{int((~is_known).sum()):,} labels are new to a model with a label table"
            advice = "train with a text label tower ([encoder.label] kind), or with `train --from`"
            raise BadInput(f"{new}, which has no vector for a text; {advice}")
        return TokenTable.of_lengths(rows[is_known].astype(np.int32), is_known.astype(np.int64))

    def leaves(self, tokens: TokenTable) -> list[Leaf]:
        return []

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        known = torch.where(offsets.diff() == 1)[0]
        if len(known) != len(ids) or not (self.optional or len(ids) == len(offsets) - 1):
            _refuse_text()
        vectors = self.table(ids)
        if len(ids) < len(offsets) - 1:
            vectors = vectors.new_zeros(len(offsets) - 1, self.dimension).index_add(0, known, vectors)
        vectors = self.finished(vectors)
        return vectors if self.bias is None else torch.cat([vectors, self.bias(ids)], 1)

    def save(self, folder: Path, beside: Encoder | None = None) -> None:
        """Writes the table and its settings; sentence-transformers has no use for them."""
        biases = {} if self.bias is None else {"bias": self.bias.weight}
        layout.write_tensors(folder / layout.WEIGHTS_FILE, {"table": self.table.weight, **biases})
        self.write_settings(folder, [], kind="table", optional=self.optional)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any], beside: Encoder | None) -> "LabelTable":
        tensors = layout.read_tensors(folder / layout.WEIGHTS_FILE)
        bias = RowTable(tensors["bias"]) if "bias" in tensors else None
        own = {name: settings[name] for name in ("normalise", "dropout", "optional")}
        return cls(RowTable(tensors["table"]), bias, **own)

    def describe(self) -> str:
        unit, bias = "unit vectors" if self.normalise else "vectors", "" if self.bias is None else " and a bias"
        return f"table: {self.table.count:,} labels, {unit} of {self.table.dimension}{bias}"


def _refuse_text() -> NoReturn:
    advice = "train a text label tower, as a sum with a table if each label is to have a vector of its own besides"
    raise BadInput(f"a label table has no vector for a text: it knows only the labels it was trained with; {advice}")
