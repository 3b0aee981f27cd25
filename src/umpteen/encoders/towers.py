"""The two encoders of a dual encoder, and the kinds there are: how one is built from its settings, starts, is read.

A new kind is a module with its encoder, a row of KINDS, and its settings in config/settings.py.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from umpteen.config.settings import (
    EncoderConfig,
    FrozenTower,
    PartsTower,
    StaticTower,
    TablePart,
    TableTower,
    TextTower,
    TowerConfig,
    TransformerTower,
)
from umpteen.data.dataset import Dataset
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder, tokens_now
from umpteen.encoders.folder import TextTokenizer, positions_of
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import RowTable, row_tables
from umpteen.encoders.static import StaticEncoder, inverse_document_frequencies
from umpteen.encoders.table import LabelTable
from umpteen.errors import BadConfig, BadInput, DamagedModel, known
from umpteen.parallel.world import Shard, World


class Place(NamedTuple):
    """What a tower is built into."""

    seed: int
    labels: Shard  # the rows of this process
    beside: Encoder | None = None  # the query tower, if this one stands beside it


class Beginning(NamedTuple):
    """What a new tower may start from."""

    leaves: list[tuple[Encoder, TokenTable]]  # whoever reads texts, and all training texts and labels as it does
    vectors: Callable[[], Tensor] | None  # of this process's labels, by the query tower


class EncoderKind(NamedTuple):
    """One kind of tower, or of part of a tower."""

    build: Callable[[Any, Place], Encoder]  # from its settings
    read: Callable[[Path, dict[str, Any], Encoder | None], Encoder]  # from what `save` wrote, and the tower beside it
    start: Callable[[Any, Any, Beginning], None] = lambda encoder, settings, beginning: None


def _build_static(tower: StaticTower, place: Place) -> Encoder:
    settings = tower.model_dump(include={"normalise", "dropout", "max_length", "bigrams"})
    if tower.random_weights:
        return StaticEncoder.random(tower.start, tower.dimension or 384, place.seed, **settings)
    return StaticEncoder.from_token_table(tower.start, dimension=tower.dimension, **settings)


def _start_static(encoder: StaticEncoder, tower: StaticTower, beginning: Beginning) -> None:
    """Each word piece at its inverse document frequency over training queries and labels."""
    if tower.idf:
        name = encoder.tokenizer.fingerprint
        alike = [table for leaf, table in beginning.leaves if leaf.tokenizer.fingerprint == name]
        encoder.set_token_weights(inverse_document_frequencies(alike, encoder.tokenizer.vocabulary_size))


def _build_transformer(tower: TransformerTower, place: Place) -> Encoder:
    from umpteen.encoders.transformer import TransformerEncoder

    return TransformerEncoder.load(
        tower.start, **tower.model_dump(exclude={"kind", "start", "learning_rate", "weight", "skip"})
    )


def _read_transformer(folder: Path, settings: dict[str, Any], beside: Encoder | None) -> Encoder:
    from umpteen.encoders.transformer import TransformerEncoder

    return TransformerEncoder.read(folder, settings)


def _build_frozen(tower: FrozenTower, place: Place) -> Encoder:
    from umpteen.encoders.frozen import FrozenEncoder, FrozenReader

    how = tower.model_dump(include={"pooling", "layers", "max_length"})
    own = tower.model_dump(include={"dimension", "hidden", "normalise", "dropout"})
    for reader in [] if place.beside is None else place.beside.readers:
        if isinstance(reader, FrozenReader) and reader.made_by == (tower.start, how):
            return FrozenEncoder(reader, **own)
    return FrozenEncoder.load(tower.start, how, **own)


def _read_frozen(folder: Path, settings: dict[str, Any], beside: Encoder | None) -> Encoder:
    from umpteen.encoders.frozen import FrozenEncoder

    return FrozenEncoder.read(folder, settings, beside)


def _build_table(tower: TableTower, place: Place) -> Encoder:
    assert place.beside is not None
    table = RowTable.gaussian(place.labels, place.beside.dimension, place.seed)
    return LabelTable(table, normalise=tower.normalise, dropout=tower.dropout)


def _start_table(encoder: LabelTable, tower: TableTower, beginning: Beginning) -> None:
    if tower.start_from_text and beginning.vectors is not None:
        encoder.table.weight.data = beginning.vectors()


def _build_parts(tower: PartsTower, place: Place) -> Encoder:
    parts: dict[str, Encoder] = {}
    for name, settings in tower.parts.items():
        if isinstance(settings, TablePart):
            table = RowTable.zeros(place.labels, next(iter(parts.values())).dimension)
            parts[name] = LabelTable(table, normalise=settings.normalise, dropout=settings.dropout, optional=True)
        else:
            parts[name] = kind_of(name).build(settings, place)
    given = {name: settings.model_dump(include={"weight", "skip"}) for name, settings in tower.parts.items()}
    weights, skip = ({name: own[key] for name, own in given.items()} for key in ("weight", "skip"))
    how = tower.model_dump(include={"normalise", "dropout"})
    return PartsEncoder(parts, "sum" if tower.kind == "sum" else "concat", weights=weights, skip=skip, **how)


def _read_parts(folder: Path, settings: dict[str, Any], beside: Encoder | None) -> Encoder:
    return PartsEncoder.read(folder, settings, lambda part, own: read_encoder(part, own, beside))


def _start_parts(encoder: PartsEncoder, tower: PartsTower, beginning: Beginning) -> None:
    for name, settings in tower.parts.items():
        if name != "table":  # as a part, it starts at zero
            kind_of(name).start(encoder.encoders[name], settings, beginning)


KINDS = {
    "static": EncoderKind(_build_static, lambda folder, own, beside: StaticEncoder.read(folder, own), _start_static),
    "frozen": EncoderKind(_build_frozen, _read_frozen),
    "transformer": EncoderKind(_build_transformer, _read_transformer),
    "table": EncoderKind(_build_table, lambda folder, own, beside: LabelTable.read(folder, own), _start_table),
    "sum": EncoderKind(_build_parts, _read_parts, _start_parts),
    "concat": EncoderKind(_build_parts, _read_parts, _start_parts),
}


def kind_of(name: str) -> EncoderKind:
    """The kind of this name, or an error that lists those there are."""
    return known(KINDS, name, f"no encoder of kind {name!r} is known")


def build_encoder(tower: TowerConfig, place: Place) -> Encoder:
    """The tower of these settings; what starts at random follows from the seed."""
    return kind_of(tower.kind).build(tower, place)


def read_encoder(folder: Path, settings: dict[str, Any], beside: Encoder | None = None) -> Encoder:
    """The encoder in a folder, beside another tower or alone; whatever is wrong with it is told as damage."""
    try:
        if settings["kind"] not in KINDS:
            raise DamagedModel(f"{folder / layout.SETTINGS_FILE}: no encoder of kind {settings['kind']!r} is known")
        return KINDS[settings["kind"]].read(folder, settings, beside)
    except KeyError as missing:
        raise DamagedModel(f"{folder}: {missing} is missing; copy or save the model again") from missing
    except BadConfig:  # the folder is whole, but this machine cannot do what it asks for
        raise
    except BadInput as problem:
        raise DamagedModel(f"{problem}; copy or save the model again") from problem
    except (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as problem:
        raise DamagedModel(f"{folder}: cannot be read ({problem}); copy or save the model again") from problem


_SAMPLE = 5_000  # texts whose lengths are looked at
_LONGEST = 512  # tokens that "auto" gives at most; many transformers know no more positions
_LONGEST_READ_ONCE = 2_048  # of a frozen transformer, which reads what is longer than its positions in pieces


def with_lengths(config: EncoderConfig, dataset: Dataset) -> EncoderConfig:
    """The settings with each max_length = "auto" as the data needs it: all tokens of 99 texts in 100.

    Queries and labels have one length, so that both towers can read with one frozen transformer.
    """
    texts = [dataset.with_validation_in_train().train.texts, dataset.labels.texts]

    def fitted(tower: TextTower) -> TextTower:
        if tower.max_length != "auto":
            return tower
        special = not isinstance(tower, StaticTower)
        window = positions_of(tower.start) if special else None
        longest = _LONGEST_READ_ONCE if isinstance(tower, FrozenTower) else min(_LONGEST, window or _LONGEST)
        tokenizer = TextTokenizer.load(tower.start, longest, special_tokens=special).within(window)
        lengths = [tokenizer.uncut_lengths(sample_of(some)) or [1] for some in texts]
        wanted = max(int(np.percentile(each, 99)) for each in lengths)
        return tower.model_copy(update={"max_length": min(longest, max(16, 8 * -(-wanted // 8)))})

    return config.each(fitted)


def share_cut(tower: Encoder, texts: Texts) -> float:
    """The share of the texts' tokens that lie beyond the max_length of whatever reads them; of several, the most."""
    some, shares = sample_of(texts), [0.0]
    for leaf, _ in tower.leaves(tokens_now(tower, some[:1])):
        lengths = np.array(leaf.tokenizer.uncut_lengths(some))
        beyond = np.maximum(0, lengths - leaf.tokenizer.max_length).sum()
        shares.append(float(beyond / max(1, lengths.sum())))
    return max(shares)


def sample_of(texts: Texts) -> list[str]:
    """Texts from all over, the same each time."""
    return [texts[row] for row in range(0, len(texts), -(-len(texts) // _SAMPLE) if len(texts) else 1)]


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
        if label is not None and label.shares != query.shares:
            raise BadConfig(
                "the towers' parts cannot be compared: give them the same dimensions and weights, query "
                f"{query.describe()}, label {label.describe()}"
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
            return cls(query, build_encoder(config.label_tower, Place(seed + 1, labels, query)))

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
        sides = [(config.query, self.query, queries), (config.label_tower, self.label, labels)]
        leaves = [leaf for _, tower, tokens in sides for leaf in tower.leaves(tokens)]
        for settings, tower, _ in sides[: 1 if self.shared else 2]:
            kind_of(settings.kind).start(tower, settings, Beginning(leaves, vectors))

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
        """Learned numbers of each tower and in all, those of a label table over all processes; and those that stay."""
        query, label = _parameter_count(self.query), _parameter_count(self.label)
        readers = dict.fromkeys([*self.query.readers, *self.label.readers])
        frozen = sum(weight.numel() for reader in readers for weight in reader.encoder.parameters())
        return {"query": query, "label": label, "total": query if self.shared else query + label, "frozen": frozen}

    def save(self, folder: Path) -> None:
        """Writes a folder that sentence-transformers loads; for all-or-nothing, call it in storage.atomic_folder.

        Where labels are more than their texts, what loads there is the query tower.
        """
        folder = Path(folder)
        if self.shared:
            self.query.save(folder)
            return
        self.query.save(folder / QUERY_FOLDER)
        self.label.save(folder / LABEL_FOLDER, self.query)
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
        query = read_encoder(folder / QUERY_FOLDER, layout.read_settings(folder / QUERY_FOLDER))
        label = read_encoder(folder / LABEL_FOLDER, layout.read_settings(folder / LABEL_FOLDER), query)
        return cls(query, label).eval()


def _parameter_count(tower: Encoder) -> int:
    tables = row_tables(tower)
    counts = {name: weight.numel() for name, weight in tower.named_parameters() if weight.requires_grad}
    return sum((counts | {name: table.count * table.dimension for name, table in tables.items()}).values())
