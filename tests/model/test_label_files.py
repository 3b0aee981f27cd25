"""Labels come from files and go to files; what is wrong with a file is said with its line."""

from pathlib import Path

import pytest
from small_catalogue import LABELS

from umpteen.data.labels import LabelCatalogue
from umpteen.errors import BadFile
from umpteen.model.changes import Add, Rename, Retire
from umpteen.model.classifier import Classifier
from umpteen.model.label_files import changes_of, write_label_file
from umpteen.model.labels import LiveLabels

CURRENT = LiveLabels(LabelCatalogue([*LABELS, "a/b"], [*LABELS.values(), "a trained key with a slash"]))


def written(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_a_file_is_compared_with_the_labels_there_are(tmp_path: Path) -> None:
    file = written(
        tmp_path / "new.jsonl",
        '{"key": "f", "text": "fish"}\n\n{"key": "t", "text": "taxes"}\n{"key": "n", "text": "new"}\n'
        '{"key": "d", "retired": true}\n{"key": "x", "text": "was never there", "retired": true}\n'
        '{"key": "a/b", "text": "slashed"}\n',
    )
    wanted = [Rename("t", "taxes"), Add("n", "new"), Retire("d"), Rename("a/b", "slashed")]
    assert changes_of(file, CURRENT) == wanted
    assert changes_of(file, CURRENT, retire_missing=True) == [*wanted, Retire("l"), Retire("ключ")]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_tables_are_read_too(ending: str, tmp_path: Path) -> None:
    text = 'text,key\n"new, and ""quoted""",n\n"two\nlines",m\n'.replace(",n", "\tn").replace(",m", "\tm")
    text = (
        text.replace("text,key", "text\tkey")
        if ending == "tsv"
        else 'text,key\n"new, and ""quoted""",n\n"two\nlines",m\n'
    )
    file = written(tmp_path / f"new.{ending}", text)
    assert changes_of(file, CURRENT) == [Add("n", 'new, and "quoted"'), Add("m", "two\nlines")]


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.csv", "labels.tsv"])
def test_what_is_exported_is_imported_without_a_change(name: str, model: Path, tmp_path: Path) -> None:
    classifier = Classifier.load(model)
    classifier.change_labels([Add("n", 'a\tnew, "quoted"\ntext'), Rename("f", "fishes"), Retire("t")])
    assert write_label_file(tmp_path / name, classifier.labels) == 5
    assert changes_of(tmp_path / name, classifier.labels, retire_missing=True) == []
    assert write_label_file(tmp_path / f"all-{name}", classifier.labels, retired=True) == 6
    first = LiveLabels(LabelCatalogue(LABELS.keys(), LABELS.values()))
    assert changes_of(tmp_path / f"all-{name}", first) == [
        Rename("f", "fishes"), Retire("t"), Add("n", 'a\tnew, "quoted"\ntext')
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        ('{"key": "n", "text": "x"}\n{"key": "n", "text": "y"}\n', 2, "'n' stands twice, first in line 1"),
        ('{"key": "n", "text": "  "}\n', 1, "'n' has an empty text"),
        ('{"key": "n/m", "text": "x"}\n', 1, "a slash"),
        ('{"key": "n\\nm", "text": "x"}\n', 1, r"U\+000A"),
        ('{"key": "n\\u0007", "text": "x"}\n', 1, r"U\+0007"),
        ('{"key": "n"}\n', 1, "has no 'text'"),
        ('{"key": 3, "text": "x"}\n', 1, "'key' is 3, not a string"),
        ("{\n", 1, "no valid JSON"),
        ("[]\n", 1, "not an object"),
        ("", None, "is empty"),
        ('{"key": "f", "text": ""}\n', 1, "'f' has an empty text"),
        ('{"key": "", "text": "x"}\n', 1, "key is empty"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(lines: str, line: int | None, said: str, tmp_path: Path) -> None:
    file = written(tmp_path / "labels.jsonl", lines)
    where = r"labels\.jsonl: " if line is None else rf"labels\.jsonl, line {line}: "
    with pytest.raises(BadFile, match=f"{where}.*{said}"):
        changes_of(file, CURRENT)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        changes_of(tmp_path / "nowhere.jsonl", CURRENT)
    with pytest.raises(BadFile, match=r"\.jsonl, \.csv, \.tsv"):
        changes_of(written(tmp_path / "labels.xlsx", ""), CURRENT)
    with pytest.raises(BadFile, match=r"written as \.jsonl, \.csv or \.tsv"):
        write_label_file(tmp_path / "labels.txt", CURRENT)


def test_a_line_marked_as_retired_is_not_brought_to_life_by_the_file(tmp_path: Path) -> None:
    labels = LiveLabels(LabelCatalogue(["a"], ["first"]))
    path = tmp_path / "labels.jsonl"
    path.write_text('{"key": "b", "text": "second", "retired": true}\n')
    assert changes_of(path, labels) == []


def test_a_text_that_no_new_label_could_have_may_stay_as_it_is(tmp_path: Path) -> None:
    labels = LiveLabels(LabelCatalogue(["a"], ["x" * 20_000]))
    write_label_file(tmp_path / "labels.jsonl", labels)
    assert changes_of(tmp_path / "labels.jsonl", labels) == []
