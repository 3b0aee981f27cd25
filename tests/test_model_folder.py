"""Large files are hashed once after they have changed, and never two models are read as one."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from umpteen.compacting import compact
from umpteen.stamps import VERIFIED

from miniature import flip_a_byte
from tiny import tiny_tokenizer
from umpteen import manifest, model_folder
from umpteen.classifier import Classifier, verify
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import DamagedModel
from umpteen.index_building import build_index
from umpteen.storage import sha256_of

LABELS = {"f": "fish", "t": "tax law", "l": "library", "n": "network of food"}
VECTORS, INDEX = "vectors.safetensors", "index.faiss"

Hashed = Callable[[Callable[[], object]], list[str]]


@pytest.fixture(autouse=True)
def arrays_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_ALWAYS_HASHED", 200)  # bytes


def towers(folder: Path, seed: int) -> Towers:
    return Towers(StaticEncoder.random(tiny_tokenizer(folder / "tokenizer"), 16, seed=seed)).eval()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    labels = LabelCatalogue(LABELS.keys(), LABELS.values())
    Classifier.build(towers(tmp_path, 0), labels).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Which arrays are hashed in full during some work."""

    def during(work: Callable[[], object]) -> list[str]:
        names: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(manifest, "sha256_of", lambda path: names.append(path.name) or sha256_of(path))
            work()
        return sorted({VECTORS, INDEX}.intersection(names))

    return during


def test_a_large_file_is_hashed_once_after_it_has_changed(model: Path, tmp_path: Path, hashed: Hashed) -> None:
    assert hashed(lambda: Classifier.load(model)) == []  # who wrote it had hashed it
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    assert hashed(lambda: Classifier.load(copy)) == [VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []
    os.utime(copy / VECTORS, ns=(1, 1))
    assert hashed(lambda: Classifier.load(copy)) == [VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []
    (copy / VERIFIED).unlink()
    assert hashed(lambda: verify(copy)) == [VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []


def test_a_damaged_copy_is_refused_by_name_at_every_load(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    flip_a_byte(copy / VECTORS)
    for _ in range(2):
        with pytest.raises(DamagedModel, match=rf"copy/{VECTORS}: was altered"):
            Classifier.load(copy)
    shutil.copyfile(model / VECTORS, copy / VECTORS)
    assert Classifier.load(copy).predict(["fish"], k=1)[0][0].key == "f"


def test_an_index_is_treated_like_the_model_s_own_arrays(model: Path, tmp_path: Path, hashed: Hashed) -> None:
    build_index(model, "faiss-flat", k=2)
    assert hashed(lambda: Classifier.load(model)) == []
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    assert hashed(lambda: Classifier.load(copy)) == [INDEX, VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []
    flip_a_byte(copy / "index" / INDEX)
    with pytest.raises(DamagedModel, match=rf"index/{INDEX}: was altered"):
        Classifier.load(copy)


def test_what_was_verified_belongs_to_no_manifest_and_an_index_that_comes_along_is_verified_then(
    model: Path, tmp_path: Path, hashed: Hashed
) -> None:
    build_index(model, "faiss-flat", k=2)
    Classifier.load(model).add_labels({"d": "dog and tree"})
    build_index(model, "faiss-flat", k=2)
    assert {path.relative_to(model).as_posix() for path in model.rglob(VERIFIED)} == {VERIFIED, f"index/{VERIFIED}"}
    saved = tmp_path / "saved"
    for folder, write in ((model, lambda: compact(model)), (saved, lambda: Classifier.load(model).save(saved))):
        assert INDEX in hashed(write)
        assert not any(VERIFIED in name for name in manifest.read_manifest(folder)["files"])
        assert hashed(lambda: Classifier.load(folder)) == []  # noqa: B023 - called at once
        assert verify(folder) == []


@pytest.mark.parametrize("content", ["", "[]", '{"vectors.safetensors": 1}', "\xff"])
def test_a_list_of_verified_files_that_makes_no_sense_is_none(model: Path, content: str, hashed: Hashed) -> None:
    (model / VERIFIED).write_text(content, encoding="latin-1")
    assert hashed(lambda: Classifier.load(model)) == [VECTORS]
    assert hashed(lambda: Classifier.load(model)) == []


def test_where_nothing_can_be_remembered_size_and_header_decide(
    model: Path, hashed: Hashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / VERIFIED).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert hashed(lambda: Classifier.load(model)) == [] and not (model / VERIFIED).exists()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:  # a full disk costs time, no more
        patch.setattr(os, "fsync", full)
        assert hashed(lambda: Classifier.load(model)) == [VECTORS] and not (model / VERIFIED).exists()


def test_a_model_replaced_while_it_is_read_is_read_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Classifier.build(towers(tmp_path, 1), LabelCatalogue(LABELS.keys(), LABELS.values()))
    read = model_folder.read_vectors
    times: list[Path] = []

    def replaced_before(folder: Path) -> object:
        times.append(folder)
        if len(times) == 1:
            other.save(model)
        return read(folder)

    monkeypatch.setattr(model_folder, "read_vectors", replaced_before)
    loaded = Classifier.load(model)
    np.testing.assert_array_equal(loaded.towers.query.encode(["fish"]), other.towers.query.encode(["fish"]))
    assert loaded.predict(["fish"], k=4) == other.predict(["fish"], k=4) and len(times) == 2
