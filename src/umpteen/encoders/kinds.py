"""The kinds of towers, one row each: how one is built from its settings, starts, and is read from its folder.

A new kind is a module with its encoder, a row here, and its settings in config/settings.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from umpteen.config.settings import StaticTower, TableTower, TextTower, TowerConfig, TransformerTower
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.rows import RowTable
from umpteen.encoders.static import StaticEncoder, inverse_document_frequencies
from umpteen.encoders.table import TEXT_FOLDER, FusedEncoder, LabelTable
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.errors import BadConfig, BadInput, DamagedModel
from umpteen.parallel.shard import Shard


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
    if name not in KINDS:
        raise BadConfig(f"no encoder of kind {name!r} is known; there is {', '.join(KINDS)}")
    return KINDS[name]


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
