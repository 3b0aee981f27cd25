"""An encoder's folder may come from anybody: its code stays still, and only its own files are read."""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tiny import tiny_tokenizer, tiny_transformer
from umpteen.encoders.backbone import ATTENTION
from umpteen.encoders.folder import TextTokenizer
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import RowTable
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.table import LabelTable
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput, DamagedModel

EVIL = "raise SystemExit('the code of a stranger ran')\n"
AUTO_MAP = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoTokenizer": ["evil.Slow", "evil.Fast"]}


class Exploit:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("something was unpickled",)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved transformer with a projection, beside code that must not run; nobody is asked whether it may."""
    encoder = TransformerEncoder.load(tiny_transformer(tmp_path / "start"), max_length=16, projection=8)
    Towers(encoder).save(tmp_path / "saved")
    (tmp_path / "saved" / "evil.py").write_text(EVIL)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked whether to run code"))
    return tmp_path / "saved"


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


def test_a_known_model_that_brings_code_is_loaded_as_the_plain_class(saved: Path) -> None:
    expected = Towers.load(saved).query.encode(["law of fish"])
    for file in ("config.json", "tokenizer_config.json"):
        edit(saved / file, auto_map=AUTO_MAP)
    assert torch.equal(Towers.load(saved).query.encode(["law of fish"]), expected)
    assert "evil" not in sys.modules


@pytest.mark.parametrize("wish", ["kernels-community/flash-attn2", "flash_attention_2", "eager"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_configuration_does_not_choose_what_computes_its_attention(saved: Path, key: str, wish: str) -> None:
    edit(saved / "config.json", **{key: wish})
    model = next(module for module in Towers.load(saved).modules() if isinstance(module, PreTrainedModel))
    assert model.config._attn_implementation == ATTENTION


@pytest.mark.parametrize("auto_map", [AUTO_MAP, {"AutoConfig": "somebody/else--evil.Config"}])
def test_a_model_that_needs_code_of_its_own_is_refused_without_a_question(saved: Path, auto_map: object) -> None:
    edit(saved / "config.json", auto_map=auto_map, model_type="evil")
    with pytest.raises(DamagedModel, match=r"config\.json"):
        Towers.load(saved)
    with pytest.raises(BadInput, match=r"config\.json"):
        TransformerEncoder.load(saved)


def test_a_tokenizer_that_needs_code_of_its_own_is_refused_without_a_question(saved: Path) -> None:
    edit(saved / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="Evil")
    (saved / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match=r"no tokenizer\.json"):
        TextTokenizer.load(saved, 16, special_tokens=True)
    with pytest.raises(DamagedModel, match=r"tokenizer\.json: is missing"):
        Towers.load(saved)


@pytest.mark.parametrize("named", ["../start/model.safetensors", "/model.safetensors", "weights.bin", 7])
def test_the_names_of_shards_are_of_files_in_the_folder(saved: Path, named: object) -> None:
    names = list(load_file(saved / "model.safetensors"))
    (saved / "model.safetensors").unlink()
    (saved / "weights.bin").write_bytes(pickle.dumps(Exploit()))
    edit(saved / "model.safetensors.index.json", metadata={}, weight_map=dict.fromkeys(names, named))
    with pytest.raises(DamagedModel, match=r"index\.json: names .*no \.safetensors file beside it"):
        Towers.load(saved)


@pytest.mark.parametrize(
    "changes",
    [{"transformers_weights": "../start/model.safetensors"}, {"configuration_files": ["../start/config.5.0.json"]}],
)
def test_a_configuration_names_no_files_elsewhere(saved: Path, changes: dict[str, object]) -> None:
    edit(saved / "config.json", **changes)
    with pytest.raises(DamagedModel, match=r"config\.json: names '\.\./start"):
        Towers.load(saved)


def test_an_adapter_is_refused_because_it_points_to_another_model(saved: Path) -> None:
    edit(saved / "adapter_config.json", base_model_name_or_path="somebody/else")
    with pytest.raises(DamagedModel, match=r"adapter_config\.json"):
        Towers.load(saved)


def test_pickled_weights_are_refused_unread(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(DamagedModel, match="cannot load the model"):
        Towers.load(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "2_Dense", "somewhere"])
def test_a_link_that_leads_out_of_the_folder_is_refused(saved: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (saved / name).rename(outside) if (saved / name).exists() else outside.touch()
    (saved / name).symlink_to(outside)
    with pytest.raises(DamagedModel, match=rf"{name}: is a link to .*outside"):
        Towers.load(saved)


def test_a_model_may_itself_be_reached_through_a_link(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(saved)
    (saved / "again.json").symlink_to("config.json")
    assert Towers.load(tmp_path / "current").dimension == 8


def test_a_tokenizer_cannot_add_tokens_that_the_model_has_no_rows_for(saved: Path) -> None:
    content = json.loads((saved / "tokenizer.json").read_text())
    content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [10**6]
    (saved / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DamagedModel, match="the tokenizer has 1,000,001 tokens"):
        Towers.load(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("projection", 2**40),
        ("max_length", 2**70),
        ("max_length", "16"),
        ("dropout", None),
        ("precision", []),
        ("precision", "int8"),
        ("pooling", "last"),
    ],
)
def test_absurd_settings_of_a_transformer_are_damage_and_cost_no_memory(saved: Path, key: str, value: object) -> None:
    edit(saved / "umpteen_encoder.json", **{key: value})
    if key == "projection":
        assert Towers.load(saved).dimension == 8  # what the file holds
    else:
        with pytest.raises(DamagedModel, match=str(saved)):
            Towers.load(saved)


@pytest.mark.parametrize(
    "settings", [{"bigrams": 2**40}, {"bigrams": -1}, {"max_length": None}, {"dropout": "none"}, {"dropout": 1.0}]
)
def test_absurd_settings_of_a_static_encoder_are_damage(tmp_path: Path, settings: dict[str, object]) -> None:
    encoder = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 8, seed=0, bigrams=4)
    Towers(encoder).save(tmp_path / "saved")
    edit(tmp_path / "saved" / "umpteen_encoder.json", **settings)
    with pytest.raises(DamagedModel, match="saved"):
        Towers.load(tmp_path / "saved")


def test_an_absurd_share_of_skipped_texts_is_damage(tmp_path: Path) -> None:
    encoder = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 8, seed=0)
    Towers(PartsEncoder({"static": encoder}, "concat")).save(tmp_path / "saved")
    edit(tmp_path / "saved" / "umpteen_encoder.json", skip={"static": 1.5})
    with pytest.raises(DamagedModel, match=r"saved: skips the parts .*1\.5"):
        Towers.load(tmp_path / "saved")


@pytest.mark.parametrize("table", [torch.zeros(400), torch.zeros(400, 8, dtype=torch.int64)])
def test_tables_that_are_no_rows_of_numbers_are_damage(tmp_path: Path, table: torch.Tensor) -> None:
    encoder = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 8, seed=0)
    Towers(encoder, LabelTable(RowTable(torch.ones(3, 8)))).save(tmp_path / "saved")
    place = tmp_path / "saved" / "query" / "0_StaticEmbedding" / "model.safetensors"
    whole = load_file(place)
    save_file({"embedding.weight": table}, place)
    with pytest.raises(DamagedModel, match="row of numbers"):
        Towers.load(tmp_path / "saved")
    save_file(whole, place)
    save_file({"table": table}, tmp_path / "saved" / "label" / "model.safetensors")
    with pytest.raises(DamagedModel, match="row of numbers"):
        Towers.load(tmp_path / "saved")
