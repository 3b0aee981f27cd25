"""`compact` folds versions into the model's own files: same rows, same answers, no history."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_catalogue import ask, database, entries

from answers import same_answers
from miniature import command, files_of, flip_a_byte, listing, part_of
from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.model.catalogue import open_labels
from umpteen.model.changes import Add, Rename, Retire
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import INDEX, ModelFolder
from umpteen.model.index import certificate_of
from umpteen.model.live import LiveModel
from umpteen.model.writing import compact
from umpteen.search.index import BOUND

TEXTS = ["the fish trade", "a tax in law", "library network", "food for a dog"]


@pytest.fixture
def changed(model: Path) -> Path:
    (model / "notes.txt").write_text("mine")
    classifier = Classifier.load(model)
    classifier.change_labels([Add("n", "network of food"), Rename("f", "trade"), Retire("t")])
    classifier.add_labels({"m": "more"})
    return model


def add_index(model: Path, version: int, **about: object) -> None:
    with ModelFolder(model).adding(INDEX) as part:
        (part.folder / "file.bin").write_bytes(b"content")
        part.labels_version, part.about = version, {"kind": "exact", **about}


def test_the_answers_stay_and_the_history_ends(changed: Path) -> None:
    before = Classifier.load(changed)
    answers, old = before.rank(TEXTS, 6), files_of(changed)
    assert compact(changed) == (2, 2, 6, False)
    after = Classifier.load(changed)
    assert after.version == 2 and after.history() == [] and entries(after.labels) == entries(before.labels)
    np.testing.assert_array_equal(after.rank(TEXTS, 6).rows, answers.rows)
    np.testing.assert_allclose(after.rank(TEXTS, 6).scores, answers.scores, atol=1e-6)
    assert not old.exists() and len(list(changed.glob("model-*"))) == 2 and verify(changed) == []
    assert (changed / "notes.txt").read_text() == "mine" and after.recipe == "seed = 1\n"
    assert [after.labels.entry(row).origin for row in range(7)] == [
        "renamed", "trained", "trained", "trained", "trained", "added", "added"
    ]  # fmt: skip
    card = (changed / "README.md").read_text()
    assert "# A text classifier over 6 labels" in card and "- labels: 6, in labels.db, and 1 retired ones" in card
    assert files_of(changed).name in card and old.name not in card
    assert before.refresh() is True and entries(before.labels) == entries(after.labels)


def test_versions_count_on_afterwards_and_retired_rows_come_back(changed: Path) -> None:
    compact(changed)
    classifier = Classifier.load(changed)
    with pytest.raises(BadInput, match="there are 2 to 2"):
        classifier.undo(0)
    assert classifier.add_labels({"t": "tax law"}) == 3
    assert classifier.labels.row("t") == 1 and classifier.labels.entry(1).origin == "trained"
    assert Classifier.load(changed).predict(["tax law"], k=1)[0][0].key == "t"
    assert classifier.undo() == 4 and "t" not in classifier.labels
    assert compact(changed).versions == 2 and compact(changed).versions == 0


def test_a_compacted_model_s_rows_say_what_they_are(changed: Path) -> None:
    compact(changed)
    rows = ask(files_of(changed) / "labels.db", "SELECT key, text, origin, retired FROM labels ORDER BY row")
    assert rows[0] == ("f", "trade", 2, 0) and rows[1] == ("t", "tax law", 0, 1)
    assert rows[5] == ("n", "network of food", 1, 0)


def test_what_people_wrote_into_the_card_and_beside_the_model_stays(changed: Path) -> None:
    card = changed / "README.md"
    card.write_text(card.read_text() + "\nMind the gap.\n")
    compact(changed)
    assert card.read_text().endswith("\nMind the gap.\n") and (changed / "notes.txt").exists()


def test_a_full_disk_leaves_the_model_as_it_was(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Classifier.load(changed)
    before = listing(changed)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotSaved, match="No space left"):
        compact(changed)
    assert listing(changed) == before


@pytest.mark.parametrize("about", [{}, {BOUND: True}], ids=["files", "bound to its folder"])
def test_an_index_of_these_labels_comes_along(about: dict[str, object], changed: Path) -> None:
    add_index(changed, 2, **about)
    before = part_of(changed, INDEX)
    assert compact(changed).dropped_index is False
    assert part_of(changed, INDEX) == before and (before / "file.bin").read_bytes() == b"content"
    assert Classifier.load(changed).parts[INDEX].labels_version == 2 and verify(changed) == []


def test_an_index_of_older_labels_is_dropped_only_on_demand(changed: Path) -> None:
    add_index(changed, 1)
    index, before = part_of(changed, INDEX), Classifier.load(changed).labels
    with pytest.raises(BadInput, match=r"umpteen index build"):
        compact(changed)
    assert index.exists() and Classifier.load(changed).history() != []
    outcome = command("labels", "compact", changed, "--drop-index")
    assert outcome.code == 0 and "2 versions folded" in outcome.out and "its index was of older labels" in outcome.out
    assert not index.exists() and INDEX not in Classifier.load(changed).parts
    assert Classifier.load(changed).version == 2 and entries(Classifier.load(changed).labels) == entries(before)
    assert "nothing to compact" in command("labels", "compact", changed).out


def test_saving_over_the_own_folder_never_loses_an_index(changed: Path) -> None:
    add_index(changed, 1)
    kept = part_of(changed, INDEX)
    with pytest.raises(BadInput, match=rf"older labels.*umpteen index build {changed}.*umpteen index remove {changed}"):
        Classifier.load(changed, index=False).save(changed)
    assert part_of(changed, INDEX) == kept and kept.exists() and len(Classifier.load(changed).history()) == 2
    add_index(changed, 2)
    assert not kept.exists()
    for how in ({}, {"ranker": False}):
        Classifier.load(changed, index=False, **how).save(changed)
        assert Classifier.load(changed).parts[INDEX].labels_version == 2


def test_parts_of_a_model_that_has_taken_the_place_of_this_one_are_not_taken_for_its_own(
    changed: Path, tmp_path: Path
) -> None:
    classifier = Classifier.load(changed)
    other = Classifier.load(changed)
    other.rename_labels({"f": "fish of the tax"})
    other.save(changed)
    add_index(changed, other.version)
    classifier.save(tmp_path / "saved")
    assert INDEX not in Classifier.load(tmp_path / "saved").parts and verify(tmp_path / "saved") == []
    same_answers(Classifier.load(tmp_path / "saved").predict(TEXTS, 6), classifier.predict(TEXTS, 6))


def test_labels_that_others_change_before_it_begins_are_folded_in(
    changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = LiveModel.load

    def meanwhile(*asked: Any, **named: bool) -> LiveModel:
        monkeypatch.setattr(LiveModel, "load", load)
        found = load(*asked, **named)
        Classifier.load(changed).add_labels({"late": "a late one"})
        return found

    monkeypatch.setattr(LiveModel, "load", meanwhile)
    assert compact(changed)[:3] == (3, 3, 7)
    assert "late" in open_labels(changed).labels and open_labels(changed).versions == []


def test_a_part_that_is_altered_or_gone_is_refused_by_name(model: Path) -> None:
    add_index(model, 0)
    place = part_of(model, INDEX)
    flip_a_byte(place / "file.bin")
    for read in (Classifier.load, certificate_of):
        with pytest.raises(DamagedModel, match=rf"{place.name}/file\.bin: was altered.*umpteen index remove"):
            read(model)
    (problem,) = verify(model)
    assert f"{place.name}/file.bin" in problem
    (place / "file.bin").unlink()
    with pytest.raises(DamagedModel, match=rf"{place.name}/file\.bin: is missing"):
        Classifier.load(model)
    Classifier.load(model, index=False)


def test_the_database_is_new_and_says_with_which_version_it_begins(changed: Path) -> None:
    compact(changed)
    assert ask(database(changed), "SELECT version, note FROM versions") == [(2, "")]
    assert ask(database(changed), "SELECT model, first_version FROM about") == [(ModelFolder(changed).model, 2)]
