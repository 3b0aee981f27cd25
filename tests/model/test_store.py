"""The database of a model: every change whole or absent, damage and strangers refused by name, nobody waits unasked."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from forked import on_a_small_disk
from small_catalogue import LABELS, alter, ask, database, entries, without_database

from miniature import listing
from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.model import catalogue as catalogue_module
from umpteen.model import folder as model_folder
from umpteen.model.catalogue import change_labels, open_labels
from umpteen.model.changes import (
    PATIENCE,
    Add,
    Locked,
    Rename,
    Replaced,
    Retire,
    Step,
    Store,
    versions_of,
)
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import ModelFolder


@pytest.fixture
def changed(model: Path) -> Path:
    """A model with three versions."""
    classifier = Classifier.load(model)
    classifier.change_labels([Add("n", "network of food"), Rename("f", "trade")], note="why")
    classifier.retire_labels(["t"])
    classifier.add_labels({"m": "more"})
    return model


def test_a_version_is_rows_that_any_sqlite_reads(changed: Path) -> None:
    path = database(changed)
    assert ask(path, "SELECT version, note FROM versions") == [(0, ""), (1, "why"), (2, ""), (3, "")]
    assert ask(path, "SELECT version, do, key, row, text, length(vector) FROM changes ORDER BY version, place") == [
        (1, "add", "n", 5, "network of food", 64),
        (1, "rename", "f", 0, "trade", 64),
        (2, "retire", "t", 1, None, None),
        (3, "add", "m", 6, "more", 64),
    ]
    assert ask(path, "SELECT model FROM about") == [(ModelFolder(changed).model,)]


def test_a_database_at_rest_is_one_file_that_writers_and_readers_can_share(changed: Path) -> None:
    path = database(changed)
    assert [found.name for found in changed.glob(f"{path.name}*")] == [path.name]
    assert path.read_bytes()[18:20] == b"\2\2"  # SQLite's mark of a write-ahead log
    shutil.copytree(changed, changed.with_name("copy"))
    assert entries(Classifier.load(changed.with_name("copy")).labels) == entries(Classifier.load(changed).labels)


def test_the_files_of_the_training_are_never_touched(model: Path) -> None:
    before = without_database(listing(model))
    Classifier.load(model).change_labels([Add("n", "new"), Rename("f", "trade"), Retire("t")])
    assert without_database(listing(model)) == before


@pytest.mark.parametrize(
    ("statement", "version"),
    [
        ("UPDATE versions SET note = 'because' WHERE version = 1", 1),
        ("UPDATE versions SET time = '' WHERE version = 2", 2),
        ("UPDATE versions SET digest = replace(digest, substr(digest, 1, 1), 'x') WHERE version = 3", 3),
        ("UPDATE changes SET text = 'network of foot' WHERE key = 'n'", 1),
        ("UPDATE changes SET vector = zeroblob(64) WHERE key = 'm'", 3),
        ("UPDATE changes SET key = 'M' WHERE key = 'm'", 3),
        ("DELETE FROM versions WHERE version = 2", 3),
        ("DELETE FROM changes WHERE version = 3", 3),
    ],
)
def test_an_altered_version_is_refused_by_its_number(statement: str, version: int, changed: Path) -> None:
    path = database(changed)
    alter(path, statement)
    (found,) = verify(changed)
    assert found.startswith(f"{path}: version {version} does not follow the one before it")
    for load in (Classifier.load, open_labels):
        with pytest.raises(DamagedModel, match=rf"{path.name}: version {version} does not follow"):
            load(changed)


def test_verify_finds_each_byte_of_a_version_that_was_flipped(changed: Path) -> None:
    path = database(changed)
    content = path.read_bytes()
    ((vector,),) = ask(path, "SELECT vector FROM changes WHERE key = 'm'")
    assert isinstance(vector, bytes)
    for part in (b"why", b"network of food", vector[:8]):
        assert content.count(part) == 1
        for place in range(content.index(part), content.index(part) + len(part)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert [problem.partition(":")[0] for problem in verify(changed)] == [str(path)]
    path.write_bytes(content)
    assert verify(changed) == []


@pytest.mark.parametrize(
    ("step", "vector", "said"),
    [
        (Step("retire", "x", None), None, "retire 'x' does not fit"),
        (Step("retire", "f", "a text"), None, "retire 'f' does not fit"),
        (Step("add", "f", "fish"), None, "add 'f' does not fit"),
        (Step("add", "x", "extra"), None, "version 4 and its vectors do not fit"),
        (Step("retire", "f", None), bytes(64), "version 4 and its vectors do not fit"),
        (Step("add", "x", "extra"), bytes(60), "the vector of 'x' has 60 bytes"),
        (Step("add", "x", "extra"), b"\xff" * 64, "NaN or infinity"),
    ],
)
def test_a_history_that_makes_no_sense_is_refused_although_its_digests_are_right(
    step: Step, vector: bytes | None, said: str, changed: Path
) -> None:
    with ModelFolder(changed).store.changing() as connection:
        versions = versions_of(ModelFolder(changed).store, 0)
        versions += versions.unread(connection)
        versions.record(connection, [(step.do, step.key, 7, step.text)], [vector], "")
    for load in (Classifier.load, open_labels):
        with pytest.raises(DamagedModel, match=rf"model-\w+\.db: is not a history of these labels.*{said}"):
            load(changed)


def test_a_row_that_no_label_has_misleads_nobody_who_goes_back_to_an_older_version(changed: Path) -> None:
    alter(database(changed), "UPDATE changes SET row = 99 WHERE key = 'n'")
    labels = open_labels(changed)
    then = entries(labels.at(2), retired=False)
    labels.undo(2)
    assert entries(labels.labels, retired=False) == then


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER mine AFTER INSERT ON versions BEGIN DELETE FROM changes; END",
        "CREATE VIEW mine AS SELECT * FROM parts",
        "CREATE TABLE mine (own TEXT)",
        "CREATE INDEX mine ON versions (note)",
        "DROP TABLE verified",
        "ALTER TABLE parts ADD COLUMN mine TEXT",
    ],
)
def test_a_database_with_more_or_less_than_umpteen_makes_is_refused(statement: str, changed: Path) -> None:
    path = database(changed)
    alter(path, statement)
    before = path.read_bytes()
    for work in (
        lambda: Classifier.load(changed),
        lambda: change_labels(changed, lambda _: [Retire("f")]),
        lambda: verify(changed),
    ):
        with pytest.raises(DamagedModel, match=r"model-\w+\.db: was altered, it has other tables than umpteen makes"):
            work()
    assert path.read_bytes() == before


def test_a_trigger_that_comes_while_the_model_is_in_use_never_runs(changed: Path) -> None:
    classifier = Classifier.load(changed)
    alter(database(changed), "CREATE TRIGGER mine AFTER INSERT ON versions BEGIN DELETE FROM changes; END")
    with pytest.raises(DamagedModel, match="other tables"):
        classifier.add_labels({"x": "extra"})
    assert len(ask(database(changed), "SELECT * FROM changes")) == 4


def test_a_journal_that_a_stranger_put_beside_the_database_is_refused_and_left_alone(changed: Path) -> None:
    stranger = Path(f"{database(changed)}-journal")
    stranger.write_bytes(b"whatever it names would be deleted")
    for work in (lambda: Classifier.load(changed), lambda: change_labels(changed, lambda _: [Retire("f")])):
        with pytest.raises(DamagedModel, match=r"model-\w+\.db-journal: is none of umpteen's files"):
            work()
    assert stranger.exists()


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no database":
        path.write_bytes(b"x" * len(content))
    elif how == "of another program":
        alter(path, "PRAGMA application_id = 7")
    else:
        alter(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize("how", ["gone", "cut", "empty", "no database", "of another program", "of another version"])
def test_a_damaged_database_is_refused_by_name(how: str, changed: Path) -> None:
    path = database(changed)
    damaged(path, how)
    with pytest.raises(DamagedModel, match=rf"{path.name}: (is missing|is damaged|is no database)"):
        Classifier.load(changed)
    with pytest.raises(DamagedModel, match=rf"{path.name}: (is missing|is damaged|is no database)"):
        change_labels(changed, lambda _: [Retire("f")])
    assert path.exists() == (how != "gone")  # nothing is made in its place


def test_the_database_of_another_model_is_refused(changed: Path, written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Classifier.load(written).save(other, recipe="seed = 2\n")
    shutil.copyfile(database(changed), database(other))
    with pytest.raises(DamagedModel, match=r"model-\w+\.db: belongs to another model"):
        Classifier.load(other)


def test_a_history_that_parts_from_the_one_in_use_is_another_one(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    classifier, other = Classifier.load(model), Classifier.load(copy)
    classifier.add_labels({"n": "network of food"})
    other.rename_labels({"f": "trade"})
    shutil.copyfile(database(copy), database(model))  # an old copy comes back
    assert (
        classifier.refresh() is True
        and entries(classifier.labels) == entries(other.labels)
        and "n" not in classifier.labels
    )


def test_a_reader_s_snapshot_stays_what_it_was_while_others_write(changed: Path) -> None:
    classifier, store = Classifier.load(changed), ModelFolder(changed).store
    with store.reading() as early:
        assert [version.number for version in versions_of(store, 0).unread(early)] == [1, 2, 3]
        classifier.retire_labels(["m"])
        with store.reading() as late:
            assert len(versions_of(store, 0).unread(late)) == 4
        classifier.undo(0)
        assert [version.number for version in versions_of(store, 0).unread(early)] == [1, 2, 3]
        assert not store.nobody_reads_older()
    assert store.nobody_reads_older()
    with store.reading() as connection:
        assert len(versions_of(store, 0).unread(connection)) == 5


def test_what_fails_in_the_middle_leaves_nothing(changed: Path) -> None:
    store = ModelFolder(changed).store
    with pytest.raises(ZeroDivisionError), store.changing() as connection:
        connection.execute("DELETE FROM changes")
        raise ZeroDivisionError
    assert verify(changed) == [] and Classifier.load(changed).version == 3


def test_who_waits_too_long_is_told(model: Path) -> None:
    classifier, store = Classifier.load(model), ModelFolder(model).store
    assert issubclass(Locked, NotSaved) and PATIENCE >= 60
    with store.changing():
        for patience, said in ((0.05, " for 0.05 s"), (0.0, "")):
            with pytest.raises(Locked, match=rf"another process has been changing it{said}; nothing was changed"):
                classifier.change_labels([Add("n", "new")], patience=patience)
        with pytest.raises(Locked):
            classifier.undo(0, patience=0.0)
        assert Classifier.load(model).version == 0  # who only reads does not wait
    assert classifier.add_labels({"n": "new"}) == 1


def test_who_changes_a_model_that_was_replaced_is_told_and_changes_nothing(model: Path) -> None:
    folder = ModelFolder(model)
    with folder.store.reading():  # so that it stays
        Classifier.load(model).save(model, recipe="seed = 2\n")
        with pytest.raises(Replaced), folder.store.changing():
            raise AssertionError("nobody may come here")
        with pytest.raises(NotSaved, match="holds another model by now; nothing was changed"), folder.changing():
            raise AssertionError("nobody may come here")


def test_a_store_without_a_path_goes_with_its_object() -> None:
    store = Store.create(None, "", 7)
    with store.changing() as connection:
        connection.execute("UPDATE versions SET note = 'here'")
    with pytest.raises(sqlite3.IntegrityError), store.changing() as connection:
        connection.execute("UPDATE versions SET note = 'gone'")
        connection.execute("INSERT INTO versions VALUES (7, '', '', '')")
    with store.reading() as connection:
        assert connection.execute("SELECT version, note FROM versions").fetchall() == [(7, "here")]


def test_a_disk_that_fills_up_leaves_the_last_version(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()

    def fill(_: Callable[[], None]) -> None:
        shutil.copytree(model, place / "model")
        classifier = Classifier.load(place / "model")
        with pytest.raises(NotSaved, match=r"model-\w+\.db.*full.*nothing was changed"):
            for number in range(10_000):
                classifier.add_labels({f"key-{number}": "word " * 2000})
        again = Classifier.load(place / "model")
        assert entries(again.labels) == entries(classifier.labels) and 0 < again.version < 10_000
        assert verify(place / "model") == []

    on_a_small_disk(place, fill)


def test_a_read_only_folder_is_read_and_not_changed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 100)  # so that there are large files, whose check is remembered
    place = tmp_path / "disk"
    place.mkdir()

    def change(make_read_only: Callable[[], None]) -> None:
        shutil.copytree(model, place / "model")
        Classifier.load(place / "model").add_labels({"n": "network of food"})
        make_read_only()
        classifier = Classifier.load(place / "model")
        assert verify(place / "model") == [] and classifier.predict(["network of food"], k=1)[0][0].key == "n"
        for change in (lambda: classifier.add_labels({"m": "more"}), classifier.undo):
            with pytest.raises(NotSaved, match=r"could not be written.*nothing was changed.*a place you may write to"):
                change()
        assert classifier.version == 1 and classifier.refresh() is False

    on_a_small_disk(place, change)


def test_a_read_only_folder_that_a_killed_process_left_is_told_as_that(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()

    def read(make_read_only: Callable[[], None]) -> None:
        with ModelFolder(model).store.reading():  # so that nobody takes the log in
            Classifier.load(model).add_labels({"n": "network of food"})
            shutil.copytree(model, place / "model", ignore=shutil.ignore_patterns("*-shm"))
        make_read_only()
        with pytest.raises(DamagedModel, match=r"is not at rest, a killed process left .*-wal"):
            Classifier.load(place / "model")

    on_a_small_disk(place, read)


def test_a_folder_that_is_gone_is_said_so_and_answers_go_on(model: Path) -> None:
    classifier = Classifier.load(model)
    shutil.rmtree(model)
    for work in (classifier.refresh, lambda: classifier.add_labels({"n": "new"})):
        with pytest.raises(BadInput, match="there is no such model folder"):
            work()
    assert classifier.predict(["fish"], k=1)[0][0].key == "f" and list(classifier.labels.keys) == list(LABELS)
    assert not model.exists()


def test_vectors_that_are_no_numbers_are_not_saved(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.load(model)
    nothing = torch.full((1, 16), torch.nan)
    monkeypatch.setattr(catalogue_module, "encode_new", lambda *_, **__: nothing)
    with pytest.raises(BadInput, match="NaN or infinity"):
        classifier.add_labels({"n": "new"})
    assert Classifier.load(model).version == 0


def test_strangers_may_read_while_it_is_changed(changed: Path) -> None:
    """A person with sqlite3 neither disturbs a change nor is disturbed by one."""
    with closing(sqlite3.connect(f"file:{database(changed)}?mode=ro", uri=True)) as stranger:
        before = stranger.execute("BEGIN") and stranger.execute("SELECT max(version) FROM versions").fetchone()
        assert Classifier.load(changed).retire_labels(["m"]) == 4
        assert stranger.execute("SELECT max(version) FROM versions").fetchone() == before == (3,)
