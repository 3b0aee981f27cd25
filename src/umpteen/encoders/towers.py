"""The two encoders of a dual encoder: one for queries and one for labels, or the same one for both."""

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from umpteen.config.settings import EncoderConfig, TowerConfig
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.kinds import Beginning, Place, build_encoder, kind_of, read_encoder
from umpteen.encoders.rows import row_tables
from umpteen.errors import BadConfig
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World

QUERY_FOLDER, LABEL_FOLDER = "query", "label"


class Towers(nn.Module):
    """`query` and `label`, the same object when shared; parameters and state hold a shared tower once."""

    query: Encoder

    def __init__(self, query: Encoder, label: Encoder | None = None) -> None:
        super().__init__()
        if label is not None and label.dimension != query.dimension:
            raise BadConfig(
                f"the towers cannot be compared: query vectors have {query.dimension} numbers ({query.describe()}), "
                f"label vectors {label.dimension} ({label.describe()}); "
                f"give the transformer tower projection = {min(query.dimension, label.dimension)}, or the static one "
                "the other's dimension"
            )
        self.query = query
        self.label_tower = None if label is query else label

    @classmethod
    def build(cls, config: EncoderConfig, seed: int, labels: Shard | None = None) -> "Towers":
        """The towers of a recipe; what starts at random follows from the seed.

        A tower with a vector per label holds those of this process's shard of the labels.
        """
        labels = labels or Shard(World(), 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            query = build_encoder(config.query, Place(seed, labels))
            if config.towers == "shared":
                return cls(query)
            return cls(query, build_encoder(config.label_tower, Place(seed + 1, labels, query.dimension)))

    def start(
        self,
        config: EncoderConfig,
        queries: TokenTable,
        labels: TokenTable,
        vectors: Callable[[], Tensor] | None = None,
    ) -> None:
        """New towers take what they can from the training texts, before the first step.

        `vectors` gives those of this process's labels by the query tower, for a tower that starts from them.
        """
        Side = tuple[TowerConfig, Encoder, tuple[Encoder, TokenTable] | None]
        sides: list[Side] = [(config.query, self.query, (self.query, queries))]
        sides.append((config.label_tower, self.label, self.label.reading(labels)))
        read = [reading for _, _, reading in sides if reading is not None]
        for settings, tower, reading in sides[: 1 if self.shared else 2]:
            reader = tower if reading is None else reading[0]
            tokens = [table for other, table in read if reading and _alike(other, reader)]
            kind_of(settings.kind).start(reader, settings, Beginning(tokens, vectors))

    @classmethod
    def separate(cls, encoder: Encoder) -> "Towers":
        """Two towers that start alike and are trained apart."""
        return cls(encoder, copy.deepcopy(encoder))

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
        """One line for people."""
        if self.shared:
            return f"one tower ({self.query.describe()})"
        return f"queries ({self.query.describe()}), labels ({self.label.describe()})"

    def parameter_counts(self) -> dict[str, int]:
        """Learned numbers of each tower and in all; those of a label table over all processes."""
        query, label = _parameter_count(self.query), _parameter_count(self.label)
        return {"query": query, "label": label, "total": query if self.shared else query + label}

    def save(self, folder: Path) -> None:
        """Writes a folder that sentence-transformers loads; for all-or-nothing, call it in storage.atomic_folder.

        Where labels are more than their texts, what loads there is the query tower.
        """
        folder = Path(folder)
        if self.shared:
            self.query.save(folder)
            return
        self.query.save(folder / QUERY_FOLDER)
        self.label.save(folder / LABEL_FOLDER)
        if self.label.rows is not None:
            layout.write_reference(folder, QUERY_FOLDER)
        else:
            layout.write_router(folder, QUERY_FOLDER, LABEL_FOLDER)
        layout.write_settings(folder, {"kind": "towers"})

    @classmethod
    def load(cls, folder: Path | str) -> "Towers":
        """The towers that `save` wrote, ready to encode (dropout off)."""
        folder = Path(folder)
        layout.refuse_ways_out(folder)
        settings = layout.read_settings(folder)
        if settings.get("kind") != "towers":
            return cls(read_encoder(folder, settings)).eval()
        query, label = (
            read_encoder(tower, layout.read_settings(tower)) for tower in (folder / QUERY_FOLDER, folder / LABEL_FOLDER)
        )
        return cls(query, label).eval()


def _alike(one: Encoder, other: Encoder) -> bool:
    """Whether a token of one is the same token of the other."""
    return one.tokenizer.fingerprint == other.tokenizer.fingerprint


def _parameter_count(tower: Encoder) -> int:
    tables = row_tables(tower)
    counts = {name: weight.numel() for name, weight in tower.named_parameters()}
    return sum((counts | {name: table.count * table.dimension for name, table in tables.items()}).values())
