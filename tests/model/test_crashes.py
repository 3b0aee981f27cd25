"""A process that dies at any point leaves the last version or the new one, whole; processes that change at once lose
nothing."""

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import ends_of, fork
from small_catalogue import database, entries

from umpteen.model.changes import Add, Change, Rename, Retire
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import INDEX, ModelFolder
from umpteen.model.writing import compact

CHANGES: list[Change] = [Add("n", "network of food"), Rename("f", "trade"), Retire("t")]
DIED = 99
Call = Callable[..., Any]


def dying_at(call: int, *, after: bool) -> None:
    """From now on this process dies at its n-th statement, write, flush, rename or removal: before or after it."""
    counted = 0

    def dying(real: Call) -> Call:
        def instead(*arguments: Any, **named: Any) -> Any:
            nonlocal counted
            counted += 1
            own = counted
            if own == call and not after:
                os._exit(DIED)
            found = real(*arguments, **named)
            if own == call:
                os._exit(DIED)
            return found

        return instead

    class Dying(sqlite3.Connection):
        execute = dying(sqlite3.Connection.execute)
        executemany = dying(sqlite3.Connection.executemany)
        close = dying(sqlite3.Connection.close)

    connect = sqlite3.connect
    sqlite3.connect = lambda *given, **named: connect(*given, **named, factory=Dying)  # type: ignore[assignment]
    for owner, name in ((os, "fsync"), (os, "replace"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"),
                        (shutil, "rmtree")):  # fmt: skip
        setattr(owner, name, dying(getattr(owner, name)))


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_leaves_the_old_labels_or_the_new_ones(model: Path, after: bool) -> None:
    old = entries(Classifier.load(model).labels, retired=False)
    left, code = [], DIED
    while code == DIED:
        before = Classifier.load(model).version

        def change() -> None:
            classifier = Classifier.load(model)
            dying_at(len(left) + 1, after=after)
            classifier.change_labels(CHANGES)

        (code,) = ends_of(fork(change))
        assert code in (0, DIED) and verify(model) == []
        found = Classifier.load(model)
        left.append(found.version - before)
        if found.version == before:
            assert entries(found.labels, retired=False) == old and code == DIED
        else:
            assert [found.labels.text_of(key) for key in "nft"] == ["network of food", "trade", None]
            found.undo()  # the next change works
            assert entries(found.labels, retired=False) == old
    # Many deaths before the version counts, at least one after, and then none.
    assert left == sorted(left) and left.count(0) >= 8 and left.count(1) >= 2


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_while_it_learns_leaves_all_of_a_lesson_or_nothing(model: Path, after: bool) -> None:
    texts, left, code = ["fish law", "tax", "library"], [], DIED
    while code == DIED:

        def learn() -> None:
            classifier = Classifier.load(model)
            dying_at(len(left) + 1, after=after)
            classifier.learn(texts, ["f", "t", "l"])

        (code,) = ends_of(fork(learn))
        assert code in (0, DIED) and verify(model) == []
        found = Classifier.load(model)
        left.append(len(found.examples()))
        if left[-1]:
            found.undo_examples()  # the next change works
    assert left == sorted(left) and set(left) == {0, 3}


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_while_it_compacts_leaves_the_old_model_or_the_new_one(
    model: Path, tmp_path: Path, after: bool
) -> None:
    Classifier.load(model).change_labels(CHANGES)
    labels = Classifier.load(model).labels
    histories, code, first = [], DIED, 5 if after else 1  # with both, every fourth point
    while code == DIED:
        copy = Path(shutil.copytree(model, tmp_path / "copy"))

        def fold(copy: Path = copy) -> None:
            dying_at(8 * len(histories) + first, after=after)
            compact(copy)

        (code,) = ends_of(fork(fold))
        assert code in (0, DIED) and verify(copy) == []
        found = Classifier.load(copy)
        assert entries(found.labels) == entries(labels) and found.version == 1
        histories.append(len(found.history()))
        assert found.add_labels({"m": "more"}) == 2  # the next change works
        compact(copy)
        names = {path.name for path in copy.iterdir()}
        current = ModelFolder(copy)
        assert names == {"manifest.json", "README.md", current.trained.name, database(copy).name}  # all else is swept
        shutil.rmtree(copy)
    assert histories == sorted(histories, reverse=True) and {0, 1} == set(histories)


def killed_in(work: Callable[[Callable[[], None]], None]) -> None:
    """Runs the work in a process that is killed from outside at the point where the work calls what it is given."""
    here, there = os.pipe()

    def wait_for_the_end() -> None:
        os.write(there, b"!")
        while True:
            time.sleep(3600)

    process = fork(lambda: work(wait_for_the_end))
    os.close(there)
    try:
        assert os.read(here, 1) == b"!"
    finally:
        os.close(here)
        os.kill(process, signal.SIGKILL)
    assert ends_of(process) == [-signal.SIGKILL]


def test_a_writer_killed_in_the_middle_of_its_transaction_leaves_nothing_and_nobody_waits(model: Path) -> None:
    Classifier.load(model).add_labels({"m": "more"})

    def half_a_change(here: Callable[[], None]) -> None:
        with ModelFolder(model).store.changing() as connection:
            connection.execute("DELETE FROM changes")
            connection.execute("UPDATE versions SET note = ?", ("x" * 10_000_000,))  # more than it keeps in memory
            here()

    killed_in(half_a_change)
    assert verify(model) == []
    classifier = Classifier.load(model)
    assert classifier.history()[0].note == "" and classifier.labels.text_of("m") == "more"
    assert classifier.change_labels(CHANGES, patience=0.0) == 2


def test_what_a_killed_process_left_of_a_part_is_swept_with_the_next_one(model: Path) -> None:
    def half_a_part(here: Callable[[], None]) -> None:
        with ModelFolder(model).adding(INDEX) as part:
            (part.folder / "half").write_text("half")
            here()

    before = {path.name for path in model.iterdir()}
    killed_in(half_a_part)
    assert len(list(model.iterdir())) == len(before) + 1 and verify(model) == []
    with ModelFolder(model).adding(INDEX) as part:
        part.about = {"kind": "exact"}
        alive = part.folder
        ModelFolder(model).sweep()
        assert alive.exists()  # its process lives
    names = {path.name for path in model.iterdir()} - before
    assert names == {Classifier.load(model).parts[INDEX].folder}


def test_eight_processes_that_change_labels_at_once_lose_nothing(model: Path) -> None:
    def change(own: int) -> None:
        classifier = Classifier.load(model)
        for number in range(6):
            classifier.add_labels({f"{own}-{number}": f"word {own} of {number}"})
            if number % 3 == 2:
                classifier.change_labels([Retire(f"{own}-{number - 1}"), Rename(f"{own}-{number}", f"law {own}")])

    assert ends_of(*(fork(lambda own=own: change(own)) for own in range(8))) == [0] * 8  # type: ignore[misc]
    classifier = Classifier.load(model)
    assert classifier.version == 8 * 8 and verify(model) == []
    assert [line.version for line in classifier.history()] == list(range(1, 65))
    for own in range(8):
        assert [f"{own}-{number}" in classifier.labels for number in range(6)] == [
            number not in (1, 4) for number in range(6)
        ]
        assert classifier.labels.text_of(f"{own}-5") == f"law {own}"
    assert len(set(classifier.labels.keys)) == len(classifier.labels) == 5 + 48


def test_labels_and_parts_change_and_models_are_folded_at_once_and_every_reader_finds_a_whole_model(
    model: Path,
) -> None:
    def label(own: int) -> None:
        classifier = Classifier.load(model)
        for number in range(8):
            classifier.add_labels({f"{own}-{number}": f"word {own} of {number}"})

    def fold() -> None:
        for _ in range(4):
            compact(model, drop_index=True)

    def read() -> None:
        classifier = Classifier.load(model)
        for _ in range(12):
            assert Classifier.load(model).predict(["fish"], k=1)[0][0].key == "f"
            classifier.refresh()
            assert classifier.predict(["fish"], k=1)[0][0].key == "f" and verify(model) == []

    works = [lambda: label(0), lambda: label(1), fold, read, read]
    assert ends_of(*map(fork, works)) == [0] * len(works)
    labels = Classifier.load(model).labels
    assert labels.version == 16 and labels.count() == 5 + 16 and verify(model) == []
