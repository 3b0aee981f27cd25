"""A model folder from a stranger touches nothing outside it; one that is put back or replaced loses nothing."""

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from small_catalogue import entries

from answers import same_answers
from miniature import EndsAfter, Enough, command, files_of, listing, part_of, refused, write_recipe
from umpteen.errors import DamagedModel
from umpteen.model.catalogue import open_labels
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import refuse_links
from umpteen.model.index import build_index, remove_index
from umpteen.model.train import train
from umpteen.model.writing import standing_in
from umpteen.training.observer import Observer

TEXTS = ["law of fish", "dog of tree"]


def database_of(model: Path) -> Path:
    return next(model.glob("model-*.db"))


def test_links_are_refused_everywhere_and_what_they_lead_to_is_left_alone(plain_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in (".profile", "part.json", "letter.txt", "lock.lock"):
        (home / name).write_text("mine")
    encoder = files_of(plain_model) / "encoder" / "query"
    places: dict[Path, Callable[[Path], None]] = {
        plain_model / "catalogue": lambda place: place.symlink_to(home),
        plain_model / "index": lambda place: place.symlink_to(home),
        plain_model / "index-00000000": lambda place: place.symlink_to(home),
        plain_model / ".model-00000000.partial": lambda place: place.symlink_to(home),
        encoder / "more": lambda place: place.symlink_to(home / "letter.txt"),
        plain_model / "pipe": lambda place: os.mkfifo(place),
    }
    before = listing(home)
    for place, make in places.items():
        make(place)
        for asked in (
            ["labels", "add", plain_model, "k", "a text"],
            ["labels", "list", plain_model],
            ["index", "build", plain_model, "--kind", "exact"],
            ["predict", plain_model, "fish"],
            ["verify", plain_model],
        ):
            refused(command(*asked), place.name, "is a link or no file")
        assert listing(home) == before
        place.unlink()
    assert command("verify", plain_model).code == 0 and open_labels(plain_model).labels.version == 0


def test_a_file_that_vanishes_while_links_are_looked_for_is_no_link(
    plain_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system does not tell what an entry is, it is looked at later, and may be gone."""
    scandir = os.scandir

    class Gone:
        path = str(plain_model / "model-00000000.db-wal")

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return False

        is_file = is_dir

    @contextmanager
    def vanishing(folder: str) -> Iterator[Iterator[object]]:
        with scandir(folder) as entries:
            yield chain([Gone()], entries)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", vanishing)
        refuse_links(plain_model)


def test_a_database_or_manifest_that_is_a_link_is_refused(plain_model: Path, tmp_path: Path) -> None:
    for file in (database_of(plain_model), plain_model / "manifest.json"):
        elsewhere = tmp_path / file.name
        file.rename(elsewhere)
        file.symlink_to(elsewhere)
        before = elsewhere.read_bytes()
        with pytest.raises(DamagedModel):
            Classifier.load(plain_model)
        refused(command("labels", "add", plain_model, "k", "a text"))
        assert elsewhere.read_bytes() == before
        file.unlink()
        elsewhere.rename(file)
    Classifier.load(plain_model)


@pytest.mark.parametrize("name", ["../../outside", "/outside", "encoder/../../outside", "a\\b"])
def test_a_manifest_that_names_files_elsewhere_is_refused(name: str, plain_model: Path) -> None:
    import hashlib

    content = json.loads((plain_model / "manifest.json").read_text())
    content["files"][name] = {"bytes": 1, "sha256": "0"}
    del content["checksum"]
    seal = hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    (plain_model / "manifest.json").write_text(json.dumps({**content, "checksum": seal}))
    with pytest.raises(DamagedModel, match="no file of the model"):
        Classifier.load(plain_model)


@pytest.mark.parametrize("folder", ["../neighbour", "model-00000000.db", "ranker-00000000", "index-1", "/etc"])
def test_a_part_said_to_be_elsewhere_is_refused(folder: str, plain_model: Path) -> None:
    build_index(plain_model, "exact", k=1)
    alter_index(plain_model, lambda about: about, folder=folder)
    for read in (Classifier.load, verify):
        with pytest.raises(DamagedModel, match="do not use this model"):
            read(plain_model)
    remove_index(plain_model)
    Classifier.load(plain_model)


def alter_index(model: Path, change: Callable[[dict[str, Any]], dict[str, Any]], folder: str | None = None) -> None:
    """As somebody could who makes a folder to do harm."""
    with closing(sqlite3.connect(database_of(model))) as connection:
        (about, where) = connection.execute("SELECT about, folder FROM parts WHERE name = 'index'").fetchone()
        connection.execute(
            "UPDATE parts SET about = ?, folder = ? WHERE name = 'index'",
            (json.dumps(change(json.loads(about))), folder or where),
        )
        connection.commit()


def test_a_milvus_address_in_a_folder_is_not_believed_and_hears_nothing(
    plain_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(plain_model, "milvus", recall=0.9, k=1)
    expected = Classifier.load(plain_model, index=False).predict(TEXTS, 3)
    monkeypatch.setenv("UMPTEEN_MILVUS_TOKEN", "root:secret")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        alter_index(plain_model, lambda about: {**about, "uri": address})
        classifier = Classifier.load(plain_model)
        same_answers(classifier.predict(TEXTS, 3), expected)
        assert f"UMPTEEN_MILVUS_URI={address}" in str(classifier.index.away)
        classifier.index.close()
        left = remove_index(plain_model)
        assert left is not None and "is not believed" in left
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert Classifier.load(plain_model).index.kind == "exact"


def test_a_path_as_milvus_address_touches_nothing_there(plain_model: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious.db"
    for file in (target, tmp_path / "precious.db.lock"):
        file.write_text("mine")
    build_index(plain_model, "milvus", recall=0.9, k=1)
    for uri in (str(target), "../../precious.db", "milvus/../../../precious.db"):
        alter_index(plain_model, lambda about, uri=uri: {**about, "uri": uri})  # type: ignore[misc]
        classifier = Classifier.load(plain_model)
        assert len(classifier.predict(TEXTS, 3)) == 2
        classifier.index.close()
        assert target.read_text() == (tmp_path / "precious.db.lock").read_text() == "mine"


def test_a_collection_that_is_not_one_of_umpteen_s_is_neither_used_nor_dropped(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(plain_model, "milvus", recall=0.9, k=1)
    monkeypatch.setenv("UMPTEEN_MILVUS_URI", str(tmp_path / "somebody.db"))
    alter_index(plain_model, lambda about: {**about, "uri": str(tmp_path / "somebody.db"), "collection": "customers"})
    with pytest.raises(DamagedModel, match=r"the collection customers is not one of umpteen's.*index remove"):
        Classifier.load(plain_model)
    assert remove_index(plain_model) == "the collection customers is left alone: it is not one of umpteen's"
    assert not (tmp_path / "somebody.db").exists()


def test_labels_put_back_under_a_model_in_use_are_taken_as_they_are_and_the_next_change_lasts(
    plain_model: Path, tmp_path: Path
) -> None:
    served = Classifier.load(plain_model)
    served.add_labels({"one": "a first label"})
    backup = shutil.copyfile(database_of(plain_model), tmp_path / "backup.db")
    served.add_labels({"two": "a second label"})
    served.add_labels({"three": "a third label"})

    shutil.copyfile(backup, database_of(plain_model))
    assert served.add_labels({"four": "a fourth label"}) == 2
    assert [key in served.labels for key in ("one", "two", "three", "four")] == [True, False, False, True]
    again = Classifier.load(plain_model)
    assert entries(again.labels) == entries(served.labels) and verify(plain_model) == []

    beside = Classifier.load(plain_model)
    served.add_labels({"five": "a fifth label"})
    shutil.copyfile(backup, database_of(plain_model))
    assert beside.refresh() and "four" not in beside.labels
    served.refresh()
    assert served.version == 1 and entries(served.labels) == entries(beside.labels)


def test_a_change_made_while_another_model_takes_the_folder_is_in_that_model_or_refused(
    plain_model: Path, tmp_path: Path
) -> None:
    """Whoever had the old one open when the manifest was replaced."""
    old = Classifier.load(plain_model)
    other = Classifier.load(plain_model)
    other.retire_labels([other.labels.keys[0]])
    other.save(tmp_path / "other")
    Classifier.load(tmp_path / "other").save(plain_model)
    old.add_labels({"new": "a new label"})
    now = Classifier.load(plain_model)
    assert "new" in now.labels and entries(now.labels) == entries(old.labels) and now.labels.count() == 10
    assert verify(plain_model) == []


def test_labels_changed_while_a_new_model_was_trained_are_kept_aside(plain: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(plain / "model", tmp_path / "model"))
    told: list[str] = []

    class Changes(Observer):
        def started(self, *begun: Any) -> None:
            command("labels", "add", model, "meanwhile", "a label of the old model")

        def notice(self, message: str) -> None:
            told.append(message)

    recipe = write_recipe(plain, "training.steps=1", "seed=7")
    train(recipe, output=model, overwrite=True, observers=[Changes()])
    (kept,) = tmp_path.glob("model.kept-*")
    assert "meanwhile" in Classifier.load(kept).labels and verify(kept) == []
    assert "meanwhile" not in Classifier.load(model).labels and verify(model) == []
    assert any(str(kept) in line for line in told)

    train(recipe, output=model, overwrite=True)
    assert len(list(tmp_path.iterdir())) == 2  # nothing had changed, so nothing more was kept


def test_labels_changed_between_a_kill_and_the_resume_are_kept_aside(plain: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(plain / "model", tmp_path / "model"))
    recipe = write_recipe(plain, "training.steps=3", "training.checkpoint_minutes=0", "seed=7")
    with pytest.raises(Enough):
        train(recipe, output=model, overwrite=True, observers=[EndsAfter(1)])
    command("labels", "add", model, "meanwhile", "a label of the old model")
    train(recipe, output=model, resume=True)
    (kept,) = tmp_path.glob("model.kept-*")
    assert "meanwhile" in Classifier.load(kept).labels and "meanwhile" not in Classifier.load(model).labels

    with pytest.raises(Enough):
        train(recipe, output=model, overwrite=True, observers=[EndsAfter(1)])
    train(recipe, output=model, resume=True)
    assert list(tmp_path.glob("model.kept-*")) == [kept]  # nothing had changed


def test_a_model_put_where_a_killed_run_was_to_write_its_own_is_kept_aside(plain: Path, tmp_path: Path) -> None:
    recipe = write_recipe(plain, "training.steps=3", "training.checkpoint_minutes=0", "seed=7")
    with pytest.raises(Enough):
        train(recipe, output=tmp_path / "model", observers=[EndsAfter(1)])
    shutil.copytree(plain / "model", tmp_path / "model")
    train(recipe, output=tmp_path / "model", resume=True)
    (kept,) = tmp_path.glob("model.kept-*")
    assert standing_in(kept) == standing_in(plain / "model") != standing_in(tmp_path / "model")


def test_somebody_s_files_in_a_model_folder_are_never_swept(plain_model: Path) -> None:
    mine = ["index-0badcafe", "model-0badcafe", "calibration", "ranker-0badcafe.bak", ".index-0badcafe.mine"]
    for name in mine:
        (plain_model / name).mkdir()
        (plain_model / name / "letter.txt").write_text("mine")
    (plain_model / "model-0badcafe.db").write_text("no database")
    (plain_model / "index-0badcafe" / "part.json").write_text('{"umpteen": "calibration"}')
    build_index(plain_model, "exact", k=1)
    first = part_of(plain_model, "index")
    build_index(plain_model, "exact", k=1)
    remove_index(plain_model)
    assert not first.exists()
    assert all((plain_model / name / "letter.txt").read_text() == "mine" for name in mine)
    assert (plain_model / "model-0badcafe.db").exists()
