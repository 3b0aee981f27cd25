"""`compact` folds versions into the model's own files: same rows, same answers, no history."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from umpteen.compacting import compact
from umpteen.manifest import CALIBRATION, INDEX, MANIFEST, PART, read_manifest, read_part, write_part

from miniature import command, listing, refused
from umpteen import model_folder
from umpteen.catalogue.changes import Add, Rename, Retire
from umpteen.classifier import Classifier, verify
from umpteen.errors import BadInput, DamagedModel, NotSaved

TEXTS = ["the fish trade", "a tax in law", "library network", "food for a dog"]


@pytest.fixture
def changed(model: Path) -> Path:
    (model / "notes.txt").write_text("mine")
    classifier = Classifier.load(model)
    classifier.change_labels([Add("n", "network of food"), Rename("f", "trade"), Retire("t")])
    classifier.add_labels({"m": "more"})
    return model


def add_part(model: Path, name: str, version: int, **settings: str) -> None:
    (model / name).mkdir()
    (model / name / "file.bin").write_bytes(b"content")
    write_part(model / name, read_manifest(model)["checksum"], {"what": name, **settings}, version)


def test_the_answers_stay_and_the_history_ends(changed: Path) -> None:
    before = Classifier.load(changed)
    answers = before.rank(TEXTS, 6)
    assert compact(changed) == (2, 2, 6, False)
    after = Classifier.load(changed)
    assert after.version == 2 and after.history() == [] and after.labels == before.labels
    np.testing.assert_array_equal(after.rank(TEXTS, 6).rows, answers.rows)
    np.testing.assert_allclose(after.rank(TEXTS, 6).scores, answers.scores, atol=1e-6)
    assert not (changed / "catalogue").exists() and verify(changed) == []
    assert (changed / "notes.txt").read_text() == "mine" and after.recipe == "seed = 1\n"
    assert [after.labels.origin(row) for row in range(7)] == [
        "renamed", "trained", "trained", "trained", "trained", "added", "added"
    ]  # fmt: skip
    card = (changed / "README.md").read_text()
    assert "# A text classifier over 6 labels" in card and "- labels: 6, in labels.jsonl, and 1 retired ones" in card
    assert before.refresh() is True and before.labels == after.labels


def test_versions_count_on_afterwards_and_retired_rows_come_back(changed: Path) -> None:
    compact(changed)
    classifier = Classifier.load(changed)
    with pytest.raises(BadInput, match="there are 2 to 2"):
        classifier.undo(0)
    assert classifier.add_labels({"t": "tax law"}) == 3
    assert classifier.labels.row("t") == 1 and classifier.labels.origin(1) == "trained"
    assert Classifier.load(changed).predict(["tax law"], k=1)[0][0].key == "t"
    assert classifier.undo() == 4 and "t" not in classifier.labels
    assert compact(changed).versions == 2 and compact(changed).versions == 0


def test_a_compacted_model_s_lines_say_what_they_are(changed: Path) -> None:
    compact(changed)
    lines = [json.loads(line) for line in (changed / "labels.jsonl").read_text().splitlines()]
    assert lines[0] == {"key": "f", "text": "trade", "origin": "renamed"}
    assert lines[1] == {"key": "t", "text": "tax law", "retired": True}
    assert lines[5] == {"key": "n", "text": "network of food", "origin": "added"}


def test_a_full_disk_leaves_the_model_as_it_was(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(changed)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotSaved, match="No space left"):
        compact(changed)
    assert listing(changed) == before


def test_parts_come_along_if_they_still_hold(changed: Path) -> None:
    add_part(changed, INDEX, 2)
    compact(changed)
    assert read_part(changed / INDEX, read_manifest(changed)["checksum"])["settings"] == {"what": INDEX}
    assert verify(changed) == []


def test_an_index_of_older_labels_is_dropped_only_on_demand(changed: Path) -> None:
    add_part(changed, INDEX, 1)
    with pytest.raises(BadInput, match=r"umpteen index build.*--drop-index"):
        compact(changed)
    outcome = command("labels", "compact", changed, "--drop-index")
    assert outcome.code == 0 and "2 versions folded" in outcome.out and "its index was of older labels" in outcome.out
    assert not (changed / INDEX).exists() and Classifier.load(changed).version == 2
    assert "nothing to compact" in command("labels", "compact", changed).out


def test_an_index_in_milvus_has_to_be_removed_first(changed: Path) -> None:
    add_part(changed, INDEX, 2, kind="milvus")
    refused(command("labels", "compact", changed, "--drop-index"), "kept by Milvus", "umpteen index remove")


def test_saving_over_the_own_folder_never_loses_an_index(changed: Path) -> None:
    def save(**how: bool) -> None:
        Classifier.load(changed, index=False, **how).save(changed)

    for version, kind, told in (
        (1, "exact", rf"older labels.*umpteen index build {changed}.*umpteen index remove {changed}"),
        (2, "milvus", rf"kept by Milvus.*umpteen index remove {changed}"),
    ):
        add_part(changed, INDEX, version, kind=kind)
        before = listing(changed)
        with pytest.raises(BadInput, match=told):
            save()
        assert listing(changed) == before
        shutil.rmtree(changed / INDEX)
    add_part(changed, INDEX, 2)
    for how in ({}, {"ranker": False}):
        save(**how)
        assert read_part(changed / INDEX, read_manifest(changed)["checksum"])["catalogue_version"] == 2


def test_parts_of_a_model_that_has_taken_the_place_of_this_one_are_not_taken_for_its_own(
    changed: Path, tmp_path: Path
) -> None:
    classifier = Classifier.load(changed)
    other = Classifier.load(changed)
    other.rename_labels({"f": "fish of the tax"})
    other.save(changed)
    add_part(changed, INDEX, classifier.version)
    classifier.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / INDEX).exists() and verify(tmp_path / "saved") == []


def test_parts_of_a_model_that_comes_while_this_one_is_saved_are_not_taken_for_its_own(
    changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, other = Classifier.load(changed), Classifier.load(changed)
    other.rename_labels({"f": "fish of the tax"})
    real = model_folder.write_manifest

    def meanwhile(folder: Path, settings: dict[str, object]) -> str:
        monkeypatch.setattr(model_folder, "write_manifest", real)
        other.save(changed)
        add_part(changed, INDEX, classifier.version)
        return real(folder, settings)

    monkeypatch.setattr(model_folder, "write_manifest", meanwhile)
    classifier.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / INDEX).exists() and verify(tmp_path / "saved") == []


def test_a_part_that_is_altered_or_of_another_model_is_refused_by_name(model: Path) -> None:
    add_part(model, INDEX, 0)
    checksum = read_manifest(model)["checksum"]
    with pytest.raises(DamagedModel, match=r"index/part\.json: belongs to another model"):
        read_part(model / INDEX, "0" * 64)
    (model / INDEX / "file.bin").write_bytes(b"CONTENT")
    with pytest.raises(DamagedModel, match=r"index/file\.bin: was altered"):
        read_part(model / INDEX, checksum)
    assert any("index/file.bin" in problem for problem in verify(model))
    part = model / INDEX / PART
    part.write_text(part.read_text().replace('"catalogue_version": 0', '"catalogue_version": 1'))
    with pytest.raises(DamagedModel, match=r"index/part\.json: was altered"):
        read_part(model / INDEX, checksum)
    for content in ("", "[]", "{}", '{"format_version": 9}'):
        part.write_text(content)
        with pytest.raises(DamagedModel, match=r"index/part\.json"):
            read_part(model / INDEX, checksum)
    part.unlink()
    with pytest.raises(DamagedModel, match=r"part\.json is missing"):
        read_part(model / INDEX, checksum)


def test_the_manifest_lists_no_parts(model: Path) -> None:
    listed = json.loads((model / MANIFEST).read_text())["files"]
    assert not [name for name in listed if name.split("/")[0] in (INDEX, CALIBRATION, "catalogue")]
