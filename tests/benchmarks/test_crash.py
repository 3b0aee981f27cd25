"""`bench crash` finds nothing to complain of, and would if there were something."""

import shutil
from pathlib import Path

import pytest
from benchmarks.ledger import Ledger

from benchmarks import crash
from tiny import tiny_tokenizer
from umpteen.model.catalogue import open_labels
from umpteen.model.changes import Add, Change, Rename, Retire
from umpteen.model.classifier import Classifier
from umpteen.model.folder import ModelFolder

WRONG = ("lost", "half_done", "damaged", "next_change_failed")


def none_yet() -> dict[str, int]:
    return dict.fromkeys(("unacknowledged", *WRONG), 0)


def test_killed_children_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "LONGEST_LIFE", 0.15)
    told: list[tuple[str, int, int]] = []
    found = crash.run(3, lambda *progress: told.append(progress), start=tiny_tokenizer(tmp_path / "start"))
    assert found["times"] == 3 and found["acknowledged"] >= 3 and found["versions"] >= found["acknowledged"]
    assert [found[name] for name in WRONG] == [0, 0, 0, 0]
    assert told[-1] == ("crashes", 3, 3)


def test_several_writers_that_are_killed_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "LONGEST_LIFE", 0.3)
    told: list[tuple[str, int, int]] = []
    start = tiny_tokenizer(tmp_path / "start")
    found = crash.run(1, lambda *progress: told.append(progress), writers=2, start=start)
    assert (found["times"], found["writers"]) == (1, 2)
    assert found["versions"] == found["acknowledged"] + found["unacknowledged"] + 1  # one more, to see that it works
    assert [found[name] for name in WRONG] == [0, 0, 0, 0]
    assert told == [("crashes", 1, 1)]


def test_a_ledger_tells_lost_changes_from_half_done_ones() -> None:
    def ledger() -> Ledger:
        promised = Ledger({"a": "x", "b": "y"}, 0)
        promised.intend([Add("c", "z")])
        promised.acknowledge(1)
        promised.intend([Add("d", "w"), Rename("a", "v"), Retire("b")])
        return promised

    there = {"a": "x", "b": "y", "c": "z"}
    assert ledger().judge(there, 1) == ([], [], False)
    assert ledger().judge({"a": "v", "c": "z", "d": "w"}, 2) == ([], [], True)
    assert ledger().judge({**there, "d": "w"}, 2) == ([], ["a", "b", "d"], False)
    assert ledger().judge({**there, "d": "w"}, 1) == ([], ["a", "b", "d"], False)
    assert ledger().judge({"a": "x", "b": "y"}, 1).lost == ["c"]
    assert ledger().judge({"a": "x", "b": "y"}, 0).lost == ["c"]
    assert ledger().judge(there, 0).lost == ["version 1"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    crash.write_small_model(tmp_path / "model", tiny_tokenizer(tmp_path / "start"))
    return tmp_path / "model"


def test_a_folder_that_forgets_is_found_out(model: Path, tmp_path: Path) -> None:
    database = ModelFolder(model).store.path
    assert database is not None
    shutil.copyfile(database, tmp_path / "older.db")
    classifier = Classifier.load(model)
    ledger = Ledger(crash.texts_of(classifier), 0)
    ledger.intend([Add("n", "new")])
    ledger.acknowledge(classifier.add_labels({"n": "new"}))
    shutil.copyfile(tmp_path / "older.db", database)
    counts = none_yet()
    crash.check(model, ledger, counts)
    assert counts == {**none_yet(), "lost": 1}
    database.write_text("no database")
    crash.check(model, ledger, counts)
    assert counts == {**none_yet(), "lost": 1, "damaged": 1}


def judged(model: Path, promises: list[crash.Promise], intended: list[list[Change]]) -> dict[str, int]:
    counts = none_yet()
    crash.judge_history(model, 0, promises, intended, counts)
    return counts


def test_a_history_as_it_was_promised_is_right(model: Path) -> None:
    changes: list[list[Change]] = [[Add("n", "new"), Retire("first-1")], [Rename("n", "newer")], [Add("m", "more")]]
    classifier = Classifier.load(model)
    promises = [crash.Promise(classifier.change_labels(some), some) for some in changes[:2]]
    promises.append(crash.Promise(classifier.undo(), None))
    classifier.change_labels(changes[2])  # of which the writer was never told
    assert judged(model, promises, changes) == {**none_yet(), "unacknowledged": 1}
    assert open_labels(model).labels.version == 5  # with the change that was to show that it works


def test_versions_that_were_promised_and_are_not_there_are_lost(model: Path) -> None:
    one: list[Change] = [Add("n", "new")]
    two: list[Change] = [Add("m", "more")]
    assert Classifier.load(model).change_labels(one) == 1
    made = crash.Promise(1, one)
    assert judged(model, [made, crash.Promise(2, two)], [one, two])["lost"] == 1


@pytest.mark.parametrize(
    "promised",
    [
        [crash.Promise(1, [Add("n", "another text")])],
        [crash.Promise(1, None)],
        [crash.Promise(1, [Add("n", "new")]), crash.Promise(1, [Add("n", "new")])],
    ],
    ids=["another change", "an undoing", "promised twice"],
)
def test_a_version_that_is_not_what_was_promised_is_lost(promised: list[crash.Promise], model: Path) -> None:
    made: list[Change] = [Add("n", "new")]
    Classifier.load(model).change_labels(made)
    assert judged(model, promised, [made]) == {**none_yet(), "lost": 1}


def test_a_version_with_a_part_of_a_change_is_half_done(model: Path) -> None:
    whole: list[Change] = [Add("n", "new"), Add("m", "more")]
    Classifier.load(model).change_labels(whole[:1])
    assert judged(model, [], [whole]) == {**none_yet(), "unacknowledged": 1, "half_done": 1}


def test_a_history_that_cannot_be_read_is_damaged(model: Path) -> None:
    database = ModelFolder(model).store.path
    assert database is not None
    database.write_text("no database")
    assert judged(model, [], [])["damaged"] == 1
