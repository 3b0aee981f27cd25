"""`bench crash` finds nothing to complain of, and would if there were something."""

from pathlib import Path

import pytest

from tiny import tiny_tokenizer
from umpteen.bench import crash
from umpteen.bench.ledger import Ledger
from umpteen.catalogue.changes import Add, Rename, Retire
from umpteen.classifier import Classifier


def test_killed_children_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "LONGEST_LIFE", 0.15)
    told: list[tuple[str, int, int]] = []
    found = crash.run(3, lambda *progress: told.append(progress), start=tiny_tokenizer(tmp_path / "start"))
    assert found["times"] == 3 and found["acknowledged"] >= 3 and found["versions"] >= found["acknowledged"]
    wrong = ("lost", "half_done", "damaged", "next_change_failed")
    assert [found[name] for name in wrong] == [0, 0, 0, 0]
    assert told[-1] == ("crashes", 3, 3)


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


def test_a_folder_that_forgets_is_found_out(tmp_path: Path) -> None:
    crash.write_small_model(tmp_path / "model", tiny_tokenizer(tmp_path / "start"))
    classifier = Classifier.load(tmp_path / "model")
    ledger = Ledger(crash.texts_of(classifier), 0)
    ledger.intend([Add("n", "new")])
    ledger.acknowledge(classifier.add_labels({"n": "new"}))
    (tmp_path / "model" / "catalogue" / "00000001.json").unlink()
    counts = dict.fromkeys(("lost", "half_done", "unacknowledged", "damaged", "next_change_failed"), 0)
    crash.check(tmp_path / "model", ledger, counts)
    assert counts["lost"] == 1 and counts["next_change_failed"] == 0
    (tmp_path / "model" / "catalogue" / "00000001.json").write_text("{")
    crash.check(tmp_path / "model", ledger, counts)
    assert counts["damaged"] == 1
