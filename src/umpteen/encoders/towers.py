"""The two encoders of a dual encoder: built from their settings, started on the training texts, saved and loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from umpteen.config.settings import EncoderConfig, FrozenTower, StaticTower, TextTower
from umpteen.data.dataset import Dataset
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder, Place, class_of, read_encoder, tokens_now
from umpteen.encoders.folder import LABEL_FOLDER, QUERY_FOLDER, TextTokenizer, positions_of
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import row_tables
from umpteen.encoders.table import LabelTable
from umpteen.errors import BadConfig
from umpteen.parallel.world import Shard, World

_SAMPLE = 5_000  # texts whose lengths are looked at
_LONGEST = 512  # tokens that "auto" gives at most; many transformers know no more positions
_LONGEST_READ_ONCE = 2_048  # of a bag, and of a frozen transformer, which reads what is beyond its positions in pieces


def with_lengths(config: EncoderConfig, dataset: Dataset) -> EncoderConfig:
    """The settings with each max_length = "auto" as the data needs it: all tokens of 99 texts in 100."""
    texts = [dataset.with_validation_in_train().train.texts, dataset.labels.texts]

    def fitted(tower: TextTower) -> TextTower:
        if tower.max_length != "auto":
            return tower
        special = not isinstance(tower, StaticTower)
        window = positions_of(tower.start) if special else None
        cheap = isinstance(tower, FrozenTower | StaticTower)
        longest = _LONGEST_READ_ONCE if cheap else min(_LONGEST, window or _LONGEST)
        tokenizer = TextTokenizer.load(tower.start, longest, special_tokens=special).within(window)
        # One length for queries and labels, so that both towers can read with one frozen transformer.
        lengths = [tokenizer.uncut_lengths(sample_of(some)) or [1] for some in texts]
        wanted = max(int(np.percentile(each, 99)) for each in lengths)
        return tower.model_copy(update={"max_length": min(longest, max(16, 8 * -(-wanted // 8)))})

    return config.each(fitted)


def shares_cut(tower: Encoder, texts: Texts) -> dict[str, float]:
    """For each part of a tower that reads them, the share of the texts' tokens that lie beyond its max_length."""
    some = sample_of(texts)
    parts = tower.encoders if isinstance(tower, PartsEncoder) else {"": tower}
    leaves = {name: part.leaves(tokens_now(part, some[:1])) for name, part in parts.items()}
    readers = {name: leaf.tokenizer for name, own in leaves.items() for leaf, _ in own}
    return {name: _beyond(reader.uncut_lengths(some), reader.max_length) for name, reader in readers.items()}


def tokens_beyond(texts: Texts) -> dict[str, Any]:
    """The share of the texts' word pieces that lie beyond the max_length that a bag has unless it is told otherwise."""
    usual = StaticTower()
    assert isinstance(usual.max_length, int)
    lengths = TextTokenizer.load(usual.start, usual.max_length, special_tokens=False).uncut_lengths(sample_of(texts))
    return {"max_length": usual.max_length, "share": _beyond(lengths, usual.max_length)}


def _beyond(lengths: Sequence[int], most: int) -> float:
    return round(float(np.maximum(0, np.array(lengths) - most).sum() / max(1, sum(lengths))), 4)


def sample_of(texts: Texts) -> list[str]:
    """Texts from all over, the same each time."""
    return [texts[row] for row in range(0, len(texts), -(-len(texts) // _SAMPLE) if len(texts) else 1)]


class Towers(nn.Module):
    """`query` and `label`, the same object when shared; parameters and state hold a shared tower once."""

    query: Encoder

    def __init__(self, query: Encoder, label: Encoder | None = None) -> None:
        super().__init__()
        if isinstance(label, LabelTable) and label.bias is not None and not query.ends_in_one:
            query.ends_in_one, query.dimension = True, query.dimension + 1  # inner products take in a label's bias
        if label is not None and label.shares != query.shares:
            queries = f"query vectors have {query.dimension} numbers ({query.describe()})"
            labels = f"label vectors {label.dimension} ({label.describe()})"
            advice = "part by part, the same dimensions and weights (a transformer's dimension is its projection)"
            raise BadConfig(f"the towers cannot be compared: {queries}, {labels}; give them, {advice}")
        self.query = query
        self.label_tower = None if label is query else label

    @classmethod
    def build(cls, config: EncoderConfig, seed: int, labels: Shard | None = None) -> "Towers":
        """The towers of a recipe, random parts by the seed, a label table for this process's shard of the labels."""
        labels = labels or Shard(World(), 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            query = class_of(config.query.kind).build(config.query, Place(seed, labels))
            if config.towers == "shared":
                return cls(query)
            own = config.label_tower
            return cls(query, class_of(own.kind).build(own, Place(seed + 1, labels, query)))

    def start(self, config: EncoderConfig, queries: TokenTable, labels: TokenTable) -> None:
        """New towers take what they can from the training texts, before the first step."""
        sides = [(config.query, self.query, queries), (config.label_tower, self.label, labels)]
        leaves = [leaf for _, tower, tokens in sides for leaf in tower.leaves(tokens)]
        for settings, tower, _ in sides[: 1 if self.shared else 2]:
            tower.start(settings, leaves)

    @property
    def label(self) -> Encoder:
        return self.query if self.label_tower is None else self.label_tower

    @property
    def shared(self) -> bool:
        return self.label_tower is None

    @property
    def dimension(self) -> int:
        return self.query.dimension

    def describe(self) -> str:
        if self.shared:
            return f"one tower ({self.query.describe()})"
        return f"queries ({self.query.describe()}), labels ({self.label.describe()})"

    def parameter_counts(self) -> dict[str, int]:
        """Learned numbers of each tower and in all, those of a label table over all processes; and those that stay."""
        query, label = _parameter_count(self.query), _parameter_count(self.label)
        readers = dict.fromkeys([*self.query.readers, *self.label.readers])
        frozen = sum(weight.numel() for reader in readers for weight in reader.encoder.parameters())
        return {"query": query, "label": label, "total": query if self.shared else query + label, "frozen": frozen}

    def save(self, folder: Path) -> None:
        """Writes a folder that sentence-transformers loads: both towers, or the queries' if labels are not texts."""
        folder = Path(folder)
        if self.shared:
            self.query.save(folder)
            return
        self.query.save(folder / QUERY_FOLDER)
        self.label.save(folder / LABEL_FOLDER, self.query)
        if self.label.rows is not None:
            modules = layout.modules_of(folder, QUERY_FOLDER)
            layout.write_modules(folder, layout.OWN_MODULES if self.query.ends_in_one else modules)
        else:
            layout.write_router(folder)
        layout.write_settings(folder, {"kind": "towers"})

    @classmethod
    def load(cls, folder: Path | str) -> "Towers":
        """The towers that `save` wrote, ready to encode (dropout off)."""
        folder = Path(folder)
        layout.refuse_ways_out(folder)
        if layout.read_settings(folder).get("kind") != "towers":
            return cls(read_encoder(folder)).eval()
        query = read_encoder(folder / QUERY_FOLDER)
        return cls(query, read_encoder(folder / LABEL_FOLDER, query)).eval()


def _parameter_count(tower: Encoder) -> int:
    counts = {name: weight.numel() for name, weight in tower.named_parameters() if weight.requires_grad}
    return sum((counts | {name: rows.count * rows.dimension for name, rows in row_tables(tower).items()}).values())
