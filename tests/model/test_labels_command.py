"""`umpteen labels` for people and machines."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_catalogue import LABELS

from miniature import command, files_of, refused
from umpteen.model.classifier import Classifier, verify


def machine(*arguments: str | Path) -> dict[str, Any]:
    outcome = command("labels", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def people(*arguments: str | Path) -> str:
    outcome = command("labels", *arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_labels_are_added_renamed_retired_and_brought_back(model: Path) -> None:
    assert people("add", model, "n", "network of food") == "version 1: 1 added; 6 labels\n"
    assert people("rename", model, "f", "trade", "--note", "better") == "version 2: 1 renamed; 6 labels\n"
    assert machine("retire", model, "t", "l") == {
        "model": str(model), "version": 3, "labels": 4, "added": 0, "renamed": 0, "retired": 2
    }  # fmt: skip
    assert people("rename", model, "f", "trade") == "nothing to change; 4 labels, version 3\n"
    assert people("undo", model) == f"version 4: 2 added; 6 labels\n  + t: {LABELS['t']}\n  + l: {LABELS['l']}\n"
    assert machine("undo", model, "--to-version", "0")["labels"] == 5
    assert people("add", model, "n", "network of food") == "version 6: 1 added; 6 labels\n"
    assert Classifier.load(model).predict(["network of food"], k=1)[0][0].key == "n"
    lines = people("history", model).splitlines()
    assert len(lines) == 7 and "2 retired" in lines[3] and "(better)" in lines[4] and "own files" in lines[6]
    assert [line["version"] for line in machine("history", model, "--count", "2")["versions"]] == [6, 5]
    assert verify(model) == []


def test_labels_are_listed_page_by_page(model: Path) -> None:
    people("add", model, "n", "Network of fish")
    people("retire", model, "t")
    assert people("list", model, "--search", "FISH") == "f  fish\nn  Network of fish  [added]\n"
    assert people("list", model, "--origin", "added") == "n  Network of fish  [added]\n"
    assert "t  tax law  [retired]" in people("list", model, "--retired")
    page = machine("list", model, "--start", "1", "--count", "2")
    assert page["total"] == 5 and page["version"] == 2 and [label["key"] for label in page["labels"]] == ["l", "ключ"]
    assert page["labels"][0] == {"key": "l", "text": "library", "origin": "trained", "retired": False}
    assert "--start 2 shows more" in command("labels", "list", model, "--count", "2").err


def test_versions_are_compared_with_each_other_and_with_files(model: Path, tmp_path: Path) -> None:
    assert people("diff", model) == "no difference\n"
    people("add", model, "n", "new")
    people("rename", model, "f", "trade")
    people("retire", model, "t")
    assert people("diff", model) == "+ n  new\n~ f  fish → trade\n- t  tax law\n"
    assert people("diff", model, "--from-version", "1", "--to-version", "2") == "~ f  fish → trade\n"
    assert people("diff", model, "--from-version", "3", "--to-version", "0") == (
        "- n  new\n~ f  trade → fish\n+ t  tax law\n"
    )
    assert machine("diff", model, "--to-version", "2") == {
        "from_version": 0,
        "to_version": 2,
        "changes": [
            {"do": "add", "key": "n", "text": "new"},
            {"do": "rename", "key": "f", "text": "trade", "before": "fish"},
        ],
    }
    refused(command("labels", "diff", model, "--from-version", "9"), "no version 9", "0 to 3")
    file = tmp_path / "labels.csv"
    file.write_text("key,text\nn,newer\nx,extra\n")
    assert people("import", model, file, "--dry-run") == "~ n  new → newer\n+ x  extra\n"
    assert people("import", model, file, "--dry-run", "--retire-missing").count("- ") == 4


def test_an_import_is_one_version(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("key,text\nf,trade\nn,new\n")
    assert people("import", model, file) == "version 1: 1 added, 1 renamed; 6 labels\n"
    assert people("import", model, file, "--retire-missing") == "version 2: 4 retired; 2 labels\n"
    assert people("import", model, file, "--retire-missing").startswith("nothing to change")
    assert machine("history", model)["versions"][0]["note"] == "import labels.csv"
    assert people("export", model, tmp_path / "out.jsonl") == f"2 labels in {tmp_path / 'out.jsonl'}\n"
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [
        {"key": "f", "text": "trade", "origin": "renamed"},
        {"key": "n", "text": "new", "origin": "added"},
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("add", "f", "x"), "'f' already"),
        (("add", "a/b", "x"), "a slash"),
        (("add", "n", ""), "empty text"),
        (("rename", "nobody", "x"), "'nobody'"),
        (("retire", "nobody"), "'nobody'"),
        (("retire", "ключи"), "did you mean 'ключ'?"),
        (("retire", "f", "t", "l", "ключ", "d"), "last label"),
        (("undo",), "nothing to undo"),
        (("undo", "--to-version", "3"), "no version 3"),
        (("import", "nowhere.csv"), "no such file"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(arguments: tuple[str, ...], named: str, model: Path) -> None:
    refused(command("labels", arguments[0], model, *arguments[1:]), named)
    assert Classifier.load(model).version == 0 and verify(model) == []


def test_half_a_label_is_misuse(model: Path) -> None:
    for arguments in (("add", model), ("add", model, "n"), ("rename", model, "n"), ("retire", model)):
        assert command("labels", *arguments).code == 2


def test_damage_is_refused_by_name_before_anything_is_changed(model: Path) -> None:
    for name in ("labels.db", "encoder/umpteen_encoder.json"):
        file = files_of(model) / name
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        refused(command("labels", "add", model, "n", "new"), f"{name}: was altered")
        file.write_bytes(before)
    assert people("add", model, "n", "new").startswith("version 1")
