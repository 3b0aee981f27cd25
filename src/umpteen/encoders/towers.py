"""The two encoders of a dual encoder, and the kinds there are: how one is built from its settings, starts, is read.

A new kind is a module with its encoder, a row of KINDS, and its settings in config/settings.py.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from umpteen.config.settings import EncoderConfig, StaticTower, TableTower, TextTower, TowerConfig, TransformerTower
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.rows import RowTable, row_tables
from umpteen.encoders.static import StaticEncoder, inverse_document_frequencies
from umpteen.encoders.table import TEXT_FOLDER, FusedEncoder, LabelTable
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.errors import BadConfig, BadInput, DamagedModel, known
from umpteen.parallel.world import Shard, World


class Place(NamedTuple):
    """What a tower is built into."""

    seed: int
    labels: Shard  # the rows of this process
    dimension: int | None = None  # of the query tower, if this one stands beside it


class Beginning(NamedTuple):
    """What a new tower may start from."""

    tokens: list[TokenTable]  # of all training texts and labels in its own vocabulary
    vectors: Callable[[], Tensor] | None  # of this process's labels, by the query tower


class EncoderKind(NamedTuple):
    """One kind of tower."""

    build: Callable[[Any, Place], Encoder]  # from its settings
    read: Callable[[Path, dict[str, Any]], Encoder]  # from the folder and settings that `save` wrote
    special_tokens: bool = False
    start: Callable[[Any, Any, Beginning], None] = lambda encoder, settings, beginning: None


def _build_static(tower: StaticTower, place: Place) -> Encoder:
    settings = tower.model_dump(include={"normalise", "dropout", "max_length", "bigrams"})
    if tower.random_weights:
        return StaticEncoder.random(tower.start, tower.dimension or 384, place.seed, **settings)
    return StaticEncoder.from_token_table(tower.start, dimension=tower.dimension, **settings)


def _start_static(encoder: StaticEncoder, tower: StaticTower, beginning: Beginning) -> None:
    """Each word piece at its inverse document frequency over training queries and labels."""
    if tower.idf:
        encoder.set_token_weights(inverse_document_frequencies(beginning.tokens, encoder.tokenizer.vocabulary_size))


def _build_transformer(tower: TransformerTower, place: Place) -> Encoder:
    from umpteen.encoders.transformer import TransformerEncoder

    return TransformerEncoder.load(
        tower.start, **tower.model_dump(exclude={"kind", "start", "learning_rate", "residual"})
    )


def _read_transformer(folder: Path, settings: dict[str, Any]) -> Encoder:
    from umpteen.encoders.transformer import TransformerEncoder

    return TransformerEncoder.read(folder, settings)


def _build_table(tower: TableTower, place: Place) -> Encoder:
    assert place.dimension is not None
    table = RowTable.gaussian(place.labels, place.dimension, place.seed)
    return LabelTable(table, normalise=tower.normalise, dropout=tower.dropout)


def _start_table(encoder: LabelTable, tower: TableTower, beginning: Beginning) -> None:
    if tower.start_from_text and beginning.vectors is not None:
        encoder.table.weight.data = beginning.vectors()


def _build_fused(tower: TextTower, place: Place) -> Encoder:
    text = KINDS[tower.kind].build(tower, place)
    return FusedEncoder(text, RowTable.zeros(place.labels, text.dimension), normalise=tower.normalise)


def _read_fused(folder: Path, settings: dict[str, Any]) -> Encoder:
    text = folder / TEXT_FOLDER
    return FusedEncoder.read(folder, settings, read_encoder(text, layout.read_settings(text)))


KINDS = {
    "static": EncoderKind(_build_static, StaticEncoder.read, start=_start_static),
    "transformer": EncoderKind(_build_transformer, _read_transformer, special_tokens=True),
    "table": EncoderKind(_build_table, LabelTable.read, start=_start_table),
    "fused": EncoderKind(_build_fused, _read_fused),  # what a text tower with residual = true becomes
}


def kind_of(name: str) -> EncoderKind:
    """The kind of this name, or an error that lists those there are."""
    return known(KINDS, name, f"no encoder of kind {name!r} is known")


def build_encoder(tower: TowerConfig, place: Place) -> Encoder:
    """The tower of these settings; what starts at random follows from the seed."""
    fused = isinstance(tower, TextTower) and tower.residual
    return kind_of("fused" if fused else tower.kind).build(tower, place)


def build_tokenizer(tower: TextTower) -> TextTokenizer:
    """The tower's tokenizer without the tower, for preparing data."""
    return TextTokenizer.load(tower.start, tower.max_length, special_tokens=kind_of(tower.kind).special_tokens)


def read_encoder(folder: Path, settings: dict[str, Any]) -> Encoder:
    """The encoder in a folder; whatever is wrong with it is told as damage."""
    try:
        if settings["kind"] not in KINDS:
            raise DamagedModel(f"{folder / layout.SETTINGS_FILE}: no encoder of kind {settings['kind']!r} is known")
        return KINDS[settings["kind"]].read(folder, settings)
    except KeyError as missing:
        raise DamagedModel(f"{folder}: {missing} is missing; copy or save the model again") from missing
    except BadConfig:  # the folder is whole, but this machine cannot do what it asks for
        raise
    except BadInput as problem:
        raise DamagedModel(f"{problem}; copy or save the model again") from problem
    except (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as problem:
        raise DamagedModel(f"{folder}: cannot be read ({problem}); copy or save the model again") from problem


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
