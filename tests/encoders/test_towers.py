"""Two towers or one: parameters once, comparable vectors, folders that are whole or refused."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from tiny import tiny_tokenizer, tiny_transformer
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadConfig, DamagedModel, NotSaved
from umpteen.files.storage import atomic_folder


@pytest.fixture
def encoder(tmp_path: Path) -> StaticEncoder:
    return StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 8, seed=0)


def test_a_shared_tower_is_one_object_listed_once(encoder: StaticEncoder) -> None:
    for towers in (Towers(encoder), Towers(encoder, encoder)):
        assert towers.shared and towers.label is towers.query is encoder
        assert len(list(towers.parameters())) == len(list(encoder.parameters()))
        assert len(towers.state_dict()) == len(encoder.state_dict())


def test_separate_towers_start_alike_and_part(encoder: StaticEncoder) -> None:
    towers = Towers(encoder, deepcopy(encoder))
    assert not towers.shared
    assert len(list(towers.parameters())) == 2 * len(list(encoder.parameters()))
    assert isinstance(towers.label, StaticEncoder)
    assert torch.equal(encoder.table, towers.label.table)
    towers.label.table.data.zero_()
    assert encoder.table.any()
    assert towers.label.tokenizer is encoder.tokenizer


def test_towers_of_different_dimensions_are_refused_with_the_way_out(encoder: StaticEncoder, tmp_path: Path) -> None:
    transformer = TransformerEncoder.load(tiny_transformer(tmp_path / "model"), max_length=9)
    with pytest.raises(BadConfig, match=r"32.*8.*projection"):
        Towers(transformer, encoder)
    projected = TransformerEncoder.load(str(tmp_path / "model"), max_length=9, projection=8)
    assert Towers(projected, encoder).dimension == 8


def test_one_tower_s_weights_stand_in_one_file(encoder: StaticEncoder, tmp_path: Path) -> None:
    Towers(encoder).save(tmp_path / "saved")
    assert len(list((tmp_path / "saved").glob("**/*.safetensors"))) == 1
    assert not list((tmp_path / "saved").glob("**/*.bin"))


def test_saved_weights_are_as_readable_as_the_files_around_them(encoder: StaticEncoder, tmp_path: Path) -> None:
    Towers(encoder).save(tmp_path / "saved")
    modes = {file.stat().st_mode for file in (tmp_path / "saved" / "0_StaticEmbedding").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("umpteen_encoder.json", None, "umpteen_encoder.json is missing"),
        ("umpteen_encoder.json", "{", "is damaged"),
        ("umpteen_encoder.json", '{"format": 99, "kind": "static"}', "format 99"),
        ("umpteen_encoder.json", '{"format": 1, "kind": "oracle"}', "oracle"),
        ("umpteen_encoder.json", '{"format": 1, "kind": "static"}', "'bigrams' is missing"),
        ("0_StaticEmbedding/model.safetensors", None, "model.safetensors"),
        ("0_StaticEmbedding/model.safetensors", "cut", "cannot be read"),
        ("0_StaticEmbedding/tokenizer.json", "{}", "tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(
    encoder: StaticEncoder, tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    Towers(encoder).save(tmp_path / "saved")
    damaged = tmp_path / "saved" / file
    damaged.unlink()
    if content is not None:
        damaged.write_text(content)
    with pytest.raises(DamagedModel, match=message):
        Towers.load(tmp_path / "saved")


def test_a_transformer_folder_with_cut_weights_is_damaged(tmp_path: Path) -> None:
    Towers(TransformerEncoder.load(tiny_transformer(tmp_path / "model"), max_length=9)).save(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DamagedModel, match="saved"):
        Towers.load(tmp_path / "saved")


def test_settings_survive_the_folder(tmp_path: Path) -> None:
    source = tiny_transformer(tmp_path / "model")
    query = TransformerEncoder.load(
        source, pooling="first", projection=8, dropout=0.2, max_length=9, hidden_dropout=0.0
    )
    label = StaticEncoder.random(source, 8, seed=0, bigrams=5, dropout=0.4, normalise=False, max_length=7)
    Towers(query, label).save(tmp_path / "saved")
    loaded = Towers.load(tmp_path / "saved")
    assert isinstance(loaded.query, TransformerEncoder) and isinstance(loaded.label, StaticEncoder)
    assert (loaded.query.pooling, loaded.query.dropout, loaded.query.dimension) == ("first", 0.2, 8)
    assert loaded.query.model.config.hidden_dropout_prob == 0.0
    assert (loaded.label.dropout, loaded.label.normalise, loaded.label.tokenizer.max_length) == (0.4, False, 7)
    assert loaded.describe() == Towers(query, label).describe()


def test_a_failed_save_leaves_the_old_folder(encoder: StaticEncoder, tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "saved") as folder:
        Towers(encoder).save(folder)
    before = json.loads((tmp_path / "saved" / "umpteen_encoder.json").read_text())
    other = StaticEncoder(encoder.tokenizer, torch.zeros(len(encoder.table), 3), dropout=0.9)
    with pytest.raises(NotSaved), atomic_folder(tmp_path / "saved") as folder:
        (folder / "0_StaticEmbedding").mkdir()
        (folder / "0_StaticEmbedding" / "model.safetensors").symlink_to("/dev/full")
        (folder / "0_StaticEmbedding" / "tokenizer.json").symlink_to("/dev/full")
        other.save(folder)
    assert json.loads((tmp_path / "saved" / "umpteen_encoder.json").read_text()) == before
    assert Towers.load(tmp_path / "saved").dimension == 8
