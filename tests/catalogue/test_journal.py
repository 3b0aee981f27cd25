"""Versions on disk: damage is refused by name, leftovers do no harm, a failing disk leaves the labels as they were."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import on_a_small_disk
from safetensors.torch import load_file

from umpteen import manifest
from umpteen.catalogue import lock
from umpteen.catalogue.changes import Add, Rename, Retire
from umpteen.catalogue.lock import locked
from umpteen.classifier import Classifier, verify
from umpteen.errors import DamagedModel, NotSaved
from umpteen.manifest import MANIFEST, checksum_of


@pytest.fixture
def changed(model: Path) -> Path:
    """A model with three versions."""
    classifier = Classifier.load(model)
    classifier.change_labels([Add("n", "network of food"), Rename("f", "trade")], note="why")
    classifier.retire_labels(["t"])
    classifier.add_labels({"m": "more"})
    return model


def test_a_version_is_a_file_a_person_can_read(changed: Path) -> None:
    content = json.loads((changed / "catalogue" / "00000001.json").read_text(encoding="utf-8"))
    assert content["version"] == 1 and content["note"] == "why" and content["previous"] is None
    assert content["belongs_to"] == json.loads((changed / MANIFEST).read_text())["checksum"]
    assert content["changes"] == [
        {"do": "add", "key": "n", "text": "network of food"},
        {"do": "rename", "key": "f", "text": "trade"},
    ]
    assert content["vectors"]["file"] == "00000001.safetensors"
    assert load_file(changed / "catalogue" / "00000001.safetensors")["vectors"].shape == (2, 16)
    assert sorted(path.name for path in (changed / "catalogue").iterdir()) == [
        "00000001.json", "00000001.safetensors", "00000002.json", "00000003.json", "00000003.safetensors", "lock"
    ]  # fmt: skip


def test_the_trained_files_are_never_touched(model: Path) -> None:
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    Classifier.load(model).change_labels([Add("n", "new"), Rename("f", "trade"), Retire("t")])
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", ["00000001.json", "00000001.safetensors", "00000003.json", "00000003.safetensors"])
def test_an_altered_version_is_refused_by_name(name: str, changed: Path) -> None:
    file = changed / "catalogue" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedModel, match=name.replace(".", r"\.")):
        Classifier.load(changed)
    assert any(name in problem for problem in verify(changed))


def sealed(file: Path, **changes: object) -> None:
    content = {**json.loads(file.read_text()), **changes}
    content.pop("checksum")
    file.write_text(json.dumps({**content, "checksum": checksum_of(content)}))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "00000002.json").unlink(), r"00000002\.json: is missing, but 00000003"),
        (lambda folder: (folder / "00000001.safetensors").unlink(), r"00000001\.safetensors: cannot be read"),
        (lambda folder: (folder / "00000003.safetensors").write_bytes(b"x"), "has 1 bytes instead of"),
        (lambda folder: (folder / "00000002.json").write_text("{"), r"00000002\.json: is damaged"),
        (lambda folder: (folder / "00000002.json").write_text("[]"), r"00000002\.json: is damaged"),
        (lambda folder: sealed(folder / "00000002.json", belongs_to="0" * 64), "belongs to another model"),
        (lambda folder: sealed(folder / "00000001.json", note="x"), r"00000002\.json: does not follow"),
        (lambda folder: sealed(folder / "00000003.json", changes=[]), "needs 0 vectors"),
        (
            lambda folder: sealed(folder / "00000003.json", vectors=None, changes=[{"do": "retire", "key": "x"}]),
            "retire 'x' does not fit",
        ),
    ],
)
def test_a_history_that_makes_no_sense_is_refused(damage: Callable[[Path], None], named: str, changed: Path) -> None:
    damage(changed / "catalogue")
    with pytest.raises(DamagedModel, match=named):
        Classifier.load(changed)


def test_a_history_of_another_model_is_refused(changed: Path, written: Path, tmp_path: Path) -> None:
    Classifier.load(written).save(tmp_path / "other", recipe="seed = 2\n")
    shutil.copytree(changed / "catalogue", tmp_path / "other" / "catalogue")
    with pytest.raises(DamagedModel, match=r"00000001\.json: belongs to another model"):
        Classifier.load(tmp_path / "other")
    assert len(verify(tmp_path / "other")) == 1


def test_what_a_killed_process_leaves_does_no_harm_and_is_cleaned_up(changed: Path) -> None:
    folder = changed / "catalogue"
    (folder / "00000004.safetensors").write_bytes(b"half")
    (folder / ".00000004.json.partial.host.1.abc").write_bytes(b"{")
    classifier = Classifier.load(changed)
    assert classifier.version == 3 and verify(changed) == []
    classifier.retire_labels(["m"])
    assert not (folder / "00000004.safetensors").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert Classifier.load(changed).version == 4


def test_a_full_disk_changes_nothing(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.load(changed)
    before = {path: path.read_bytes() for path in changed.rglob("*") if path.is_file()}
    answers = classifier.predict(["fish", "tax law"], k=4)
    real, calls = os.fsync, 0

    def full_at(call: int) -> None:
        def fsync(handle: int) -> None:
            nonlocal calls
            calls += 1
            if calls == call:
                raise OSError(28, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    failures = 0
    for call in range(1, 10):
        calls = 0
        full_at(call)
        try:
            version = classifier.change_labels([Add("x", "a new text"), Retire("l")])
        except NotSaved as error:
            failures += 1
            assert "No space left" in str(error) and "as they were, version 3" in str(error)
            assert {path: path.read_bytes() for path in changed.rglob("*") if path.is_file()} == before
            assert classifier.version == 3 and classifier.predict(["fish", "tax law"], k=4) == answers
        else:
            break
    monkeypatch.undo()
    assert failures == 4 and version == 4  # two files, each flushed with its name
    assert Classifier.load(changed).labels == classifier.labels


def test_a_disk_that_really_fills_up_leaves_the_last_version(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()

    def fill(_: Callable[[], None]) -> None:
        shutil.copytree(model, place / "model")
        classifier = Classifier.load(place / "model")
        with pytest.raises(NotSaved, match=r"No space left.*The labels are as they were"):
            for number in range(10_000):
                classifier.add_labels({f"key-{number}": "word " * 2000})
        again = Classifier.load(place / "model")
        assert again.labels == classifier.labels and 0 < again.version < 10_000
        assert verify(place / "model") == []
        assert not [path for path in (place / "model" / "catalogue").iterdir() if path.name.startswith(".")]

    on_a_small_disk(place, fill)


def test_a_read_only_folder_is_read_and_not_changed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_ALWAYS_HASHED", 100)  # so that there are large files, whose check is remembered
    place = tmp_path / "disk"
    place.mkdir()

    def change(make_read_only: Callable[[], None]) -> None:
        shutil.copytree(model, place / "model")
        make_read_only()
        classifier = Classifier.load(place / "model")
        assert verify(place / "model") == [] and classifier.predict(["fish"], k=1)[0][0].key == "f"
        for change in (lambda: classifier.add_labels({"n": "new"}), classifier.undo):
            with pytest.raises(NotSaved, match=r"Read-only file system.*labels cannot be changed here"):
                change()
        assert classifier.version == 0 and classifier.refresh() is False

    on_a_small_disk(place, change)


def test_a_folder_that_may_not_be_written_is_said_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.load(model)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NotSaved, match=r"Permission denied.*labels cannot be changed here.*nothing was changed"):
        classifier.add_labels({"n": "new"})


def test_who_waits_too_long_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    classifier = Classifier.load(model)
    with locked(model), pytest.raises(NotSaved, match="another process has been changing its labels"):
        classifier.add_labels({"n": "new"})
    assert classifier.add_labels({"n": "new"}) == 1


def test_a_folder_that_is_gone_is_said_so(model: Path) -> None:
    classifier = Classifier.load(model)
    shutil.rmtree(model)
    assert classifier.refresh() is False and classifier.predict(["fish"], k=1)[0][0].key == "f"
    with pytest.raises(NotSaved, match="no model folder any more"):
        classifier.add_labels({"n": "new"})


def test_vectors_that_are_no_numbers_are_not_saved(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.load(model)
    monkeypatch.setattr(classifier, "_encode", lambda texts: torch.full((len(texts), 16), torch.nan))
    with pytest.raises(Exception, match="NaN or infinity"):
        classifier.add_labels({"n": "new"})
    assert Classifier.load(model).version == 0
