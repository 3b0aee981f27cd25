"""From a recipe's [encoder] section to its towers, and to the weights they start from."""

from typing import Any

import torch

from umpteen.classifier import Classifier
from umpteen.config import (
    EncoderConfig,
    TowerConfig,
)
from umpteen.data.token_table import TokenTable
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.label_table import FusedEncoder, LabelTable
from umpteen.encoders.row_table import RowTable
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.encoders.towers import Towers
from umpteen.encoding import NEW
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.token_weights import inverse_document_frequencies


def build_towers(config: EncoderConfig, seed: int, labels: Shard | None = None) -> Towers:
    """The towers of a recipe; what starts at random follows from the seed.

    A tower with a vector per label holds those of this process's shard of the labels.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        query = build_encoder(config.query, seed)
        tower = config.label_tower
        if config.towers == "shared":
            return Towers(query)
        if tower.kind == "table":
            table = RowTable.gaussian(labels or Shard(World(), 0), query.dimension, seed + 1)
            return Towers(query, LabelTable(table, normalise=tower.normalise, dropout=tower.dropout))
        text = build_encoder(tower, seed + 1)
        if not tower.residual:
            return Towers(query, text)
        residual = RowTable.zeros(labels or Shard(World(), 0), text.dimension)
        return Towers(query, FusedEncoder(text, residual, normalise=tower.normalise))


def trained_towers(model: Classifier, keys: list[str], seed: int, labels: Shard) -> Towers:
    """A model's towers for labels with these keys: a label's own vector goes with its key, a new one starts anew."""
    towers, tower = model.towers, model.towers.label
    if isinstance(tower, LabelTable | FusedEncoder):
        known = {key: row for row, key in enumerate(model.labels.keys)}
        trained = (tower.table if isinstance(tower, LabelTable) else tower.residual).count  # others came later
        rows = torch.tensor([row if (row := known.get(key, NEW)) < trained else NEW for key in keys])
        if isinstance(tower, LabelTable):
            tower.table = tower.table.rearranged(rows, RowTable.gaussian(labels, tower.dimension, seed + 1))
        else:
            tower.residual = tower.residual.rearranged(rows, RowTable.zeros(labels, tower.dimension))
    return towers


def build_encoder(tower: TowerConfig, seed: int) -> Encoder:
    """One tower; a static one that starts at random follows from the seed."""
    settings: dict[str, Any] = {"normalise": tower.normalise, "dropout": tower.dropout, "max_length": tower.max_length}
    if tower.kind == "transformer":
        from umpteen.encoders.transformer import TransformerEncoder  # seconds, which static towers need not wait for

        return TransformerEncoder.load(
            tower.start,
            pooling=tower.pooling,
            projection=tower.projection,
            precision=tower.precision,
            random_weights=tower.random_weights,
            hidden_dropout=tower.hidden_dropout,
            **settings,
        )
    if tower.random_weights:
        return StaticEncoder.random(tower.start, tower.dimension or 384, seed, bigrams=tower.bigrams, **settings)
    return StaticEncoder.from_token_table(tower.start, dimension=tower.dimension, bigrams=tower.bigrams, **settings)


def build_tokenizers(config: EncoderConfig) -> tuple[TextTokenizer, TextTokenizer]:
    """The towers' tokenizers without the towers, for preparing data."""
    query, label = (
        TextTokenizer.load(tower.start, tower.max_length, special_tokens=tower.kind == "transformer")
        for tower in (config.query, config.label_tower)
    )
    return query, label


def start_token_weights(towers: Towers, config: EncoderConfig, queries: TokenTable, labels: TokenTable) -> None:
    """Static towers start each word piece at its inverse document frequency over training queries and labels."""
    sides: list[tuple[Encoder, TokenTable, TowerConfig]] = [(towers.query, queries, config.query)]
    if isinstance(towers.label, FusedEncoder):
        sides.append((towers.label.text, labels.without_firsts(), config.label_tower))
    elif not isinstance(towers.label, LabelTable):
        sides.append((towers.label, labels, config.label_tower))
    for tower, _, settings in sides[: 1 if towers.shared else 2]:
        if isinstance(tower, StaticEncoder) and settings.idf:
            same = [table for other, table, _ in sides if other.tokenizer.fingerprint == tower.tokenizer.fingerprint]
            tower.set_token_weights(inverse_document_frequencies(same, tower.tokenizer.vocabulary_size))
