"""Files of texts are answered whole, at constant memory, and the same after a kill."""

import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import umpteen.model.batch
from miniature import command, listing, refused, trained
from umpteen.errors import BadFile, BadInput, InUse, NotSaved, Stopped
from umpteen.model.batch import (
    State,
    Wanted,
    bad_rows_of,
    folder_of,
    merge_shards,
    predict_file,
    record_of,
    shard_of,
)
from umpteen.model.classifier import Classifier

WORDS = ["law", "fish", "tax", "trade", "food", "library", "book", "network", "dog", "tree"]
TEXTS = [f"{WORDS[n % 10]} of {WORDS[n * 7 % 10]} {n}" for n in range(23)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    trained(folder, "training.epochs=1")
    return folder


@pytest.fixture(scope="module")
def classifier(home: Path) -> Classifier:
    return Classifier.load(home / "model")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(umpteen.model.batch, "TEXTS_AT_A_TIME", 5)


def write(path: Path, texts: list[str] = TEXTS) -> Path:
    """The texts in the format that the name says, ids n-0, n-1, …."""
    plain = Path(path.stem) if path.suffix == ".gz" else path
    if plain.suffix == ".jsonl":
        content = "".join(
            json.dumps({"id": f"n-{n}", "body": text, "text": text}) + "\n" for n, text in enumerate(texts)
        )
    elif plain.suffix == ".txt":
        content = "".join(f"{text}\n" for text in texts)
    else:
        tab = "\t" if plain.suffix == ".tsv" else ","
        content = f"id{tab}text\r\n" + "".join(f'n-{n}{tab}"{text}"\r\n' for n, text in enumerate(texts))
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def expected(classifier: Classifier, texts: list[str] = TEXTS, k: int = 5) -> list[list[dict[str, Any]]]:
    return [
        [{"key": one.key, "text": one.text, "score": pytest.approx(one.score, abs=1e-6)} for one in found]
        for found in classifier.predict(texts, k)
    ]


@pytest.mark.parametrize(
    "name", ["t.jsonl", "t.csv", "t.tsv", "t.txt", "t.jsonl.gz", "t.csv.gz", "t.tsv.gz", "t.txt.gz"]
)
def test_every_text_of_every_format_gets_what_predict_gives(name: str, classifier: Classifier, tmp_path: Path) -> None:
    done = predict_file(classifier, write(tmp_path / name), tmp_path / "out.jsonl", Wanted())
    answers = read(tmp_path / "out.jsonl")
    assert [answer["labels"] for answer in answers] == expected(classifier)
    first = 2 if name[2] in "ct" and "txt" not in name else 1  # under a header
    assert [answer["line"] for answer in answers] == list(range(first, first + len(TEXTS)))
    assert isinstance(done, State) and (done.texts, done.labels, done.bad) == (23, 115, 0)
    assert {path.name for path in tmp_path.iterdir()} == {name, "out.jsonl"}


def test_fields_and_ids_are_taken_as_named(classifier: Classifier, tmp_path: Path) -> None:
    source = write(tmp_path / "t.jsonl")
    predict_file(classifier, source, tmp_path / "out.jsonl", Wanted(k=2, field="body", id_field="id"))
    answers = read(tmp_path / "out.jsonl")
    assert [answer["id"] for answer in answers] == [f"n-{n}" for n in range(23)]
    assert [answer["labels"] for answer in answers] == expected(classifier, k=2)
    (tmp_path / "two.csv").write_text("title,body\nthe fish,of law\n")
    predict_file(classifier, tmp_path / "two.csv", tmp_path / "two.jsonl", Wanted(field="title+body"))
    assert read(tmp_path / "two.jsonl")[0]["labels"] == expected(classifier, ["the fish of law"])[0]


def test_without_a_field_texts_are_where_a_fit_finds_them_and_one_of_several_may_be_missing(
    classifier: Classifier, tmp_path: Path
) -> None:
    (tmp_path / "two.csv").write_text(",id,title,body,tags\n0,7,the fish,of law,a|b\n")
    (tmp_path / "two.jsonl").write_text(
        '{"body": "of law", "title": "the fish"}\n{"title": "the fish", "body": null}\n'
    )
    for name, texts in (("two.csv", ["the fish of law"]), ("two.jsonl", ["the fish of law", "the fish"])):
        predict_file(classifier, tmp_path / name, tmp_path / "out.jsonl", Wanted(), overwrite=True)
        assert [answer["labels"] for answer in read(tmp_path / "out.jsonl")] == expected(classifier, texts)


def test_cells_and_texts_may_hold_line_ends_quotes_and_any_script(classifier: Classifier, tmp_path: Path) -> None:
    texts = ['a "law"\nof fish', "図書館, book\u2028tree", "x" * 200_000 + " dog"]
    lines = "".join(f'"{text.replace(chr(34), chr(34) * 2)}"\n' for text in texts)
    (tmp_path / "t.csv").write_text("\ufefftext\n" + lines, encoding="utf-8")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n\n" for text in texts))
    for name, numbers in (("t.csv", [2, 4, 5]), ("t.jsonl", [1, 3, 5])):
        predict_file(classifier, tmp_path / name, tmp_path / f"{name}.out.jsonl", Wanted())
        answers = read(tmp_path / f"{name}.out.jsonl")
        assert [answer["labels"] for answer in answers] == expected(classifier, texts)
        assert [answer["line"] for answer in answers] == numbers


class Killed(BaseException):
    """Ends the work as a kill would."""


def kill_at(chunk: int, monkeypatch: pytest.MonkeyPatch, *, within: bool) -> None:
    """The process dies at a chunk: before it, or after its answers were written."""
    real = umpteen.model.batch.Work.append
    count = 0

    def dying(work: Any, *parts: Any) -> None:
        nonlocal count
        count += 1
        if count == chunk:
            if within:
                real(work, *parts)
            raise Killed
        real(work, *parts)

    monkeypatch.setattr(umpteen.model.batch.Work, "append", dying)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_after_a_kill_the_output_is_that_of_an_unkilled_run(
    form: str, chunk: int, within: bool, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "t.jsonl.gz"
    write(source)
    bad = gzip.decompress(source.read_bytes()).decode().splitlines()
    source.write_bytes(gzip.compress("\n".join([*bad[:3], "{", *bad[3:], '{"text": ""}']).encode()))
    wanted = Wanted(skip_bad=True)
    unkilled, killed = tmp_path / f"unkilled.{form}", tmp_path / f"killed.{form}"
    predict_file(classifier, source, unkilled, wanted)
    with monkeypatch.context() as patch:
        kill_at(chunk, patch, within=within)
        with pytest.raises(Killed):
            predict_file(classifier, source, killed, wanted)
    assert not killed.exists() and folder_of(killed).is_dir()
    with pytest.raises(BadInput, match="holds an unfinished prediction; --resume goes on"):
        predict_file(classifier, source, killed, wanted)
    done = predict_file(classifier, source, killed, wanted, resume=True)
    assert isinstance(done, State) and (done.texts, done.bad) == (23, 2)
    assert killed.read_bytes() == unkilled.read_bytes()
    assert bad_rows_of(killed).read_bytes() == bad_rows_of(unkilled).read_bytes()
    assert not folder_of(killed).exists()


def test_a_kill_between_the_bad_rows_and_the_output_loses_nothing(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "t.txt", [*TEXTS, " "]), tmp_path / "out.jsonl"
    real = umpteen.model.batch.atomic_file

    def dying(target: Path) -> Any:
        if target == output:
            raise Killed
        return real(target)

    with monkeypatch.context() as patch:
        patch.setattr(umpteen.model.batch, "atomic_file", dying)
        with pytest.raises(Killed):
            predict_file(classifier, source, output, Wanted(skip_bad=True))
    assert bad_rows_of(output).exists() and not output.exists()
    assert predict_file(classifier, source, output, Wanted(skip_bad=True), resume=True) is not None
    assert len(read(output)) == 23 and len(read(bad_rows_of(output))) == 1
    assert predict_file(classifier, source, output, Wanted(), resume=True) is None  # nothing is left to do


# The command, killed by itself when the answers of its second chunk are written.
KILLED = """
import os, signal
from umpteen.cli.main import main
from umpteen.model.batch import Work
append, chunks = Work.append, iter(range(1))
def killed(work, *given):
    append(work, *given)
    next(chunks, None) is None and os.kill(os.getpid(), signal.SIGKILL)
Work.append = killed
main()
"""


def test_a_killed_process_is_gone_on_with_from_the_command_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umpteen.model.batch, "TEXTS_AT_A_TIME", 4096)  # as the other process has it
    texts = [f"{text} {n}" for n in range(1000) for text in TEXTS[:10]]
    source, output = write(tmp_path / "t.jsonl", texts), tmp_path / "out.jsonl"
    arguments = ["predict", str(home / "model"), "--input", str(source), "--output", str(output)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], stderr=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    done = [json.loads(chunk.read_text()) for chunk in sorted(folder_of(output).glob("*.chunk"))]
    assert [chunk["state"]["texts"] for chunk in done] == [4096, 8192] and not output.exists()
    outcome = command(*arguments, "--resume", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {
        "output": str(output),
        "complete": True,
        "texts": 10_000,
        "labels": 50_000,
        "bad_rows": 0,
    }
    assert [answer["line"] for answer in read(output)] == list(range(1, 10_001))


def test_an_unfinished_prediction_goes_on_only_with_the_same_input_settings_and_model(
    home: Path, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        kill_at(3, patch, within=False)
        with pytest.raises(Killed):
            predict_file(classifier, source, output, Wanted(k=3))
    with pytest.raises(BadInput, match=r"begun with k = 3, not 4"):
        predict_file(classifier, source, output, Wanted(k=4), resume=True)
    write(source, [*TEXTS[:7], "another text", *TEXTS[8:]])
    with pytest.raises(BadInput, match="has changed: its first 10 rows"):
        predict_file(classifier, source, output, Wanted(k=3), resume=True)
    write(source, TEXTS[:7])
    with pytest.raises(BadInput, match="has changed: its first 10 rows"):
        predict_file(classifier, source, output, Wanted(k=3), resume=True)
    other = Classifier(classifier.towers, classifier.labels.catalogue(), classifier.vectors)
    other.add_labels({"new": "a new one"})
    with pytest.raises(BadInput, match="begun with labels_version = 0, not 1"):
        predict_file(other, source, output, Wanted(k=3), resume=True)
    write(source, [*TEXTS, "one more"])  # behind what was answered
    assert predict_file(classifier, source, output, Wanted(k=3), resume=True) is not None
    assert len(read(output)) == 24


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_blank_lines_at_the_end_are_no_reason_to_begin_again(
    name: str, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / name), tmp_path / "out.jsonl"
    source.write_bytes(source.read_bytes() + b"\n  \n\n" if name == "t.jsonl" else source.read_bytes() + b"\r\n\r\n")

    def dying(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(umpteen.model.batch.Work, "finish", dying)
        with pytest.raises(Killed):
            predict_file(classifier, source, output, Wanted())
    assert predict_file(classifier, source, output, Wanted(), resume=True) is not None
    assert len(read(output)) == 23


def test_a_list_of_bad_rows_goes_with_the_output_it_belongs_to(classifier: Classifier, tmp_path: Path) -> None:
    source, output = write(tmp_path / "t.txt", [*TEXTS, ""]), tmp_path / "out.jsonl"
    predict_file(classifier, source, output, Wanted(skip_bad=True))
    assert bad_rows_of(output).exists()
    predict_file(classifier, write(source), output, Wanted(), overwrite=True)
    assert len(read(output)) == 23 and not bad_rows_of(output).exists()


def test_an_output_that_is_there_is_never_lost(classifier: Classifier, tmp_path: Path) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"
    output.write_text("precious\n")
    with pytest.raises(BadInput, match="exists already"):
        predict_file(classifier, source, output, Wanted())
    with pytest.raises(BadInput, match="give one of them"):
        predict_file(classifier, source, output, Wanted(), resume=True, overwrite=True)
    with pytest.raises(BadInput, match="is the input itself"):
        predict_file(classifier, write(tmp_path / "t.jsonl"), tmp_path / "t.jsonl", Wanted(), overwrite=True)
    write(source, [*TEXTS, ""])
    with pytest.raises(BadFile, match=r"t\.txt, line 24: has an empty text"):
        predict_file(classifier, source, output, Wanted(), overwrite=True)
    assert output.read_text() == "precious\n"
    assert predict_file(classifier, source, output, Wanted(skip_bad=True), resume=True) is not None
    assert len(read(output)) == 23  # replaced at the end, as was asked for at the beginning


def test_a_file_where_bad_rows_would_be_listed_is_never_lost(classifier: Classifier, tmp_path: Path) -> None:
    source, output = write(tmp_path / "t.txt", [*TEXTS, ""]), tmp_path / "out.jsonl"
    mine = bad_rows_of(output)

    def appears(*_: object) -> None:
        mine.write_text("precious\n")

    with pytest.raises(NotSaved, match=r"bad\.jsonl: has appeared meanwhile"):
        predict_file(classifier, source, output, Wanted(skip_bad=True), progress=appears)
    with pytest.raises(BadInput, match=r"bad\.jsonl exists already.*move one of them away"):
        predict_file(classifier, source, output, Wanted(skip_bad=True), resume=True)
    shutil.rmtree(folder_of(output))
    with pytest.raises(BadInput, match=r"bad\.jsonl exists already"):
        predict_file(classifier, source, output, Wanted(skip_bad=True))
    assert mine.read_text() == "precious\n" and not output.exists()


def test_an_output_that_appears_meanwhile_is_left_alone(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"

    def appears(*_: object) -> None:
        output.write_text("x")

    with pytest.raises(NotSaved, match="has appeared meanwhile"):
        predict_file(classifier, source, output, Wanted(), progress=appears)
    assert output.read_text() == "x"
    with pytest.raises(BadInput, match="move one of them away"):
        predict_file(classifier, source, output, Wanted(), resume=True)
    output.unlink()
    assert predict_file(classifier, source, output, Wanted(), resume=True) is not None and len(read(output)) == 23


BAD_ROWS = {
    "t.jsonl": [
        ('{"text": "law"', "is no valid JSON"),
        ("[1]", "holds [1], not an object"),
        ('{"body": "law"}', "has no 'text'; it has 'body'"),
        ('{"text": 7}', "'text' is 7, not a string"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ('{"text": " "}', "has an empty text"),
    ],
    "t.csv": [("law,fish", "has 2 cells but the header has 1"), ('" "', "has an empty text")],
    "t.txt": [("", "has an empty text"), ("\x85", "has an empty text")],
}


@pytest.mark.parametrize(("name", "row", "problem"), [(name, *row) for name, rows in BAD_ROWS.items() for row in rows])
def test_a_bad_row_is_named_by_file_and_line_or_skipped_and_listed(
    name: str, row: str, problem: str, classifier: Classifier, tmp_path: Path
) -> None:
    good = ['{"text": "law"}', '{"text": "fish"}'] if name == "t.jsonl" else ["law", "fish"]
    lines = ["text", *good] if name == "t.csv" else good
    (tmp_path / name).write_text("\n".join([*lines[:-1], row, lines[-1], ""]), encoding="utf-8")
    number = len(lines)
    with pytest.raises(BadFile) as refusal:
        predict_file(classifier, tmp_path / name, tmp_path / "out.jsonl", Wanted())
    assert f"{name}, line {number}: " in str(refusal.value) and problem in str(refusal.value)
    done = predict_file(classifier, tmp_path / name, tmp_path / "out.jsonl", Wanted(skip_bad=True), resume=True)
    assert isinstance(done, State) and (done.texts, done.bad) == (2, 1)
    (listed,) = read(tmp_path / "out.jsonl.bad.jsonl")
    assert listed["line"] == number and problem in listed["problem"]
    assert [answer["line"] for answer in read(tmp_path / "out.jsonl")] == [number - 1, number + 1]


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.txt"])
def test_bytes_that_are_no_utf8_spoil_their_row_alone(name: str, classifier: Classifier, tmp_path: Path) -> None:
    rows = {"t.jsonl": b'{"text": "%s"}\n', "t.csv": b"%s\n", "t.txt": b"%s\n"}[name]
    content = rows % b"law" + rows % b"caf\xe9" + rows % b"fish"
    (tmp_path / name).write_bytes((b"text\n" if name == "t.csv" else b"") + content)
    with pytest.raises(BadFile, match="is not UTF-8"):
        predict_file(classifier, tmp_path / name, tmp_path / "out.jsonl", Wanted())
    predict_file(classifier, tmp_path / name, tmp_path / "out.jsonl", Wanted(skip_bad=True), resume=True)
    assert [answer["labels"] for answer in read(tmp_path / "out.jsonl")] == expected(classifier, ["law", "fish"])


def test_a_file_of_bad_rows_only_gives_an_empty_output(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n")
    done = predict_file(classifier, tmp_path / "t.txt", tmp_path / "out.jsonl", Wanted(skip_bad=True))
    assert isinstance(done, State) and done.texts == 0 and (tmp_path / "out.jsonl").read_bytes() == b""


def test_files_that_cannot_be_read_are_refused_by_name(home: Path, classifier: Classifier, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    (tmp_path / "empty.txt").touch()
    (tmp_path / "header.csv").write_text("words\nlaw\n")
    (tmp_path / "twice.csv").write_text("text,text\na,b\n")
    (tmp_path / "quotes.csv").write_text('text\nlaw\n"fish" x\n')
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"law\n" * 9999)[:-9])
    for name, problem in {
        "empty.txt": r"empty\.txt: holds no text",
        "header.csv": r"header\.csv, line 1: has no column 'text'; it has 'words'",
        "twice.csv": "names a column twice: 'text'",
        "quotes.csv": r"quotes\.csv, line 3: breaks the quoting rules",
        "cut.txt.gz": "is no whole gzip file",
        "nothing.txt": r"nothing\.txt: cannot be read: No such file",
        "t.pdf": r"ends in \.jsonl, \.csv, \.tsv, \.txt",
    }.items():
        with pytest.raises(BadInput, match=problem):
            predict_file(classifier, tmp_path / name, output, Wanted(skip_bad=True), overwrite=True)
    source = write(tmp_path / "t.jsonl")
    for bad, problem in {"out.txt": "end it in .jsonl", "": "end it in .jsonl"}.items():
        refused(command("predict", home / "model", "--input", source, "--output", tmp_path / bad), problem)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        predict_file(classifier, source, tmp_path / "folder.jsonl", Wanted())
    assert not output.exists()


def test_a_table_has_a_row_for_each_text(classifier: Classifier, tmp_path: Path) -> None:
    predict_file(classifier, write(tmp_path / "t.csv"), tmp_path / "out.csv", Wanted(k=2, id_field="id"))
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"n-{n}" for n in range(23)]
    answers = classifier.predict(TEXTS, 2)
    assert [row["labels"].split("|") for row in rows] == [[one.key for one in found] for found in answers]
    scores = [[float(score) for score in row["scores"].split("|")] for row in rows]
    assert scores == [[pytest.approx(one.score, rel=1e-4) for one in found] for found in answers]


def test_what_failed_before_its_first_row_is_not_in_the_way(classifier: Classifier, tmp_path: Path) -> None:
    source = write(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="has no column 'body_text'"):
        predict_file(classifier, source, tmp_path / "out.csv", Wanted(field="body_text"))
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv"}
    predict_file(classifier, source, tmp_path / "out.csv", Wanted(k=1))
    assert (tmp_path / "out.csv").exists()


def test_options_that_go_together_are_asked_for_together(home: Path, tmp_path: Path) -> None:
    model, source = home / "model", write(tmp_path / "t.txt")
    for arguments in (
        ("--input", source),
        ("--output", tmp_path / "out.jsonl"),
        ("--input", source, "--output", tmp_path / "out.jsonl", "a text"),
        ("a text", "--resume"),
        ("a text", "--shard", "1/2"),
        ("a text", "--id-field", "id"),
    ):
        outcome = command("predict", model, *arguments)
        assert outcome.code == 2 and "--input" in outcome.err
    people = command("predict", model, "--input", source, "--output", tmp_path / "out.jsonl", "--k", "1")
    assert people.code == 0 and "23 labels for 23 texts" in people.out
    again = command("predict", model, "--input", source, "--output", tmp_path / "out.jsonl", "--k", "1", "--resume")
    assert again.code == 0 and "is complete" in again.out


def test_two_processes_do_not_write_one_output(classifier: Classifier, tmp_path: Path) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"

    def meanwhile(*_: object) -> None:
        for how in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(InUse, match=r"another process \(pid \d+\) is at work in .*out.jsonl.predicting"):
                predict_file(classifier, source, output, Wanted(), **how)

    assert predict_file(classifier, source, output, Wanted(), progress=meanwhile) is not None


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_neighbour_named_like_the_unfinished_work_is_refused_and_left_alone(
    overwrite: bool, classifier: Classifier, tmp_path: Path
) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"
    folder_of(output).mkdir()
    (folder_of(output) / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"out\.jsonl\.predicting is in the way.*move it away"):
        predict_file(classifier, source, output, Wanted(), overwrite=overwrite, resume=not overwrite)
    assert listing(folder_of(output)) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("left", [None, 10])
def test_answers_that_got_lost_before_a_resume_are_refused_not_filled_up(
    left: int | None, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        kill_at(3, patch, within=False)
        with pytest.raises(Killed):
            predict_file(classifier, source, output, Wanted())
    first, second = sorted(folder_of(output).glob("*.chunk"))
    if left is None:
        first.unlink()
    else:
        os.truncate(second, left)
    with pytest.raises(BadInput, match=r"\d\.chunk: is lost or damaged .*--overwrite"):
        predict_file(classifier, source, output, Wanted(), resume=True)
    assert predict_file(classifier, source, output, Wanted(), overwrite=True) is not None
    assert [answer["labels"] for answer in read(output)] == expected(classifier)


def test_a_full_disk_keeps_what_is_done(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"
    synced = 0
    real = os.fsync

    def full(handle: int) -> None:
        nonlocal synced
        synced += 1
        if synced > 9:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NotSaved, match="No space left"):
            predict_file(classifier, source, output, Wanted())
    assert not output.exists() and folder_of(output).is_dir()
    assert predict_file(classifier, source, output, Wanted(), resume=True) is not None
    assert [answer["labels"] for answer in read(output)] == expected(classifier)


def test_ctrl_c_says_how_to_go_on(classifier: Classifier, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    source, output = write(tmp_path / "t.txt"), tmp_path / "out.jsonl"
    with pytest.raises(Stopped, match=r"5 texts are done, .*--resume"):
        predict_file(classifier, source, output, Wanted(), progress=interrupted)
    assert predict_file(classifier, source, output, Wanted(), resume=True) is not None


def test_memory_does_not_grow_with_the_file(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umpteen.model.batch, "TEXTS_AT_A_TIME", 50)
    peaks = []
    for count in (200, 2000):
        source = write(tmp_path / f"{count}.txt", [f"{TEXTS[n % 23]} {'x' * 300}" for n in range(count)])
        tracemalloc.start()
        predict_file(classifier, source, tmp_path / f"{count}.jsonl", Wanted(k=2))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] and peaks[1] < source.stat().st_size / 2


def test_long_texts_make_smaller_chunks(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umpteen.model.batch, "BYTES_AT_A_TIME", 30)
    seen: list[str] = []
    source = write(tmp_path / "t.txt", ["law " * 10, "fish", "tax", "dog"])
    predict_file(classifier, source, tmp_path / "out.jsonl", Wanted(), progress=lambda _, __, note: seen.append(note))
    assert seen == ["1 texts", "4 texts"]


def test_progress_counts_bytes_of_the_input_to_its_end(classifier: Classifier, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def told(done: int, size: int, _: str) -> None:
        seen.append((done, size))

    for name in ("t.txt", "t.txt.gz"):
        source = write(tmp_path / name)
        seen.clear()
        predict_file(classifier, source, tmp_path / f"{name}.jsonl", Wanted(), progress=told)
        assert len(seen) == 5 and seen == sorted(seen) and seen[-1] == (source.stat().st_size,) * 2


def in_shards(classifier: Classifier, source: Path, output: Path, count: int, wanted: Wanted) -> list[State]:
    """Every machine's part, the last machine first."""
    done = []
    for number in range(count, 0, -1):
        shard = number, count
        done.append(predict_file(classifier, source, shard_of(output, shard), wanted, shard=shard))
    return [state for state in done[::-1] if state is not None]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("name", "form"), [("t.jsonl", "jsonl"), ("t.csv", "csv"), ("t.txt", "csv"), ("t.tsv.gz", "csv")]
)
def test_merged_shards_are_the_output_of_one_machine_to_the_byte(
    name: str, form: str, count: int, classifier: Classifier, tmp_path: Path
) -> None:
    source, wanted = write(tmp_path / name, [" ", *TEXTS[:9], "\t", *TEXTS[9:]]), Wanted(skip_bad=True)
    whole, merged = tmp_path / f"whole.{form}", tmp_path / f"merged.{form}"
    alone = predict_file(classifier, source, whole, wanted)
    states = in_shards(classifier, source, merged, count, wanted)
    assert len(states) == count and sum(state.texts for state in states) == 23
    assert name.endswith("gz") or count == 7 or all(state.texts for state in states)
    done = merge_shards(merged)
    assert isinstance(alone, State) and (done.texts, done.labels, done.bad) == (23, alone.labels, 2)
    assert merged.read_bytes() == whole.read_bytes()
    assert bad_rows_of(merged).read_bytes() == bad_rows_of(whole).read_bytes()


@pytest.mark.parametrize("count", [2, 5])
def test_shards_meet_whatever_lies_between_their_rows(
    count: int, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umpteen.model.batch, "BYTES_AT_A_TIME", 40)
    source, rows = tmp_path / "t.jsonl", [json.dumps({"text": text}) for text in TEXTS]
    between = ["\n", "\n\n", "\r\n", "\n\u3000\n", "\n \t\n\n\n", "\n\x85\n"]
    content = "".join(row + between[at % len(between)] for at, row in enumerate(rows))
    source.write_bytes(f"\ufeff\n{content}\n\n".encode())
    predict_file(classifier, source, tmp_path / "whole.jsonl", Wanted())
    states = in_shards(classifier, source, tmp_path / "merged.jsonl", count, Wanted())
    assert sum(state.chunks for state in states) > 8 and all(state.texts for state in states)
    assert merge_shards(tmp_path / "merged.jsonl").texts == 23
    assert (tmp_path / "merged.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_shard_reads_nothing_behind_its_last_chunk(classifier: Classifier, tmp_path: Path) -> None:
    source, output = write(tmp_path / "t.jsonl"), tmp_path / "out.jsonl"
    lines = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join([*lines[:-1], b"{" + b"x" * (len(lines[-1]) - 2) + b"\n"]))  # of the same size
    first, last = (1, 2), (2, 2)
    done = predict_file(classifier, source, shard_of(output, first), Wanted(), shard=first)
    assert isinstance(done, State) and done.texts == 15
    with pytest.raises(BadFile, match=r"t\.jsonl, line 23: is no valid JSON"):
        predict_file(classifier, source, shard_of(output, last), Wanted(), shard=last)


def test_a_killed_shard_is_gone_on_with(
    home: Path, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, whole = write(tmp_path / "t.jsonl"), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    predict_file(classifier, source, whole, Wanted())
    with monkeypatch.context() as patch:
        kill_at(2, patch, within=False)
        with pytest.raises(Killed):
            predict_file(classifier, source, shard_of(output, (2, 2)), Wanted(), shard=(2, 2))
    assert folder_of(shard_of(output, (2, 2))).is_dir() and not record_of(shard_of(output, (2, 2))).exists()
    for number in (1, 2, 2):
        arguments = ("--input", source, "--output", output, "--shard", f"{number}/2", "--resume")
        outcome = command("predict", home / "model", *arguments)
        assert outcome.code == 0 and f"out-0000{number}-of-00002.jsonl" in outcome.out, outcome.err
    assert "is complete" in outcome.out
    outcome = command("merge", output)
    assert outcome.code == 0 and "115 labels for 23 texts" in outcome.out, outcome.err
    assert output.read_bytes() == whole.read_bytes()
    refused(command("merge", output), "exists already")
    assert json.loads(command("merge", output, "--overwrite", "--json").out)["texts"] == 23


def test_a_missing_or_foreign_shard_is_named_and_nothing_is_merged(classifier: Classifier, tmp_path: Path) -> None:
    source, output = write(tmp_path / "t.jsonl"), tmp_path / "out.jsonl"

    def merging_says(problem: str) -> None:
        refused(command("merge", output), problem)
        assert not output.exists()

    merging_says("no shard lies beside it")
    in_shards(classifier, source, output, 3, Wanted())
    second = shard_of(output, (2, 3))
    kept = second.read_bytes(), record_of(second).read_bytes()

    second.write_bytes(kept[0][:-2])
    merging_says("shard 2 of 3 has changed since it was made; copy it again")
    second.unlink()
    merging_says("shard 2 of 3 is missing or damaged")
    second.write_bytes(kept[0])
    record_of(second).unlink()
    merging_says("--shard 2/3")

    def made_again(wanted: Wanted, by: Classifier = classifier) -> None:
        predict_file(by, source, second, wanted, shard=(2, 3), overwrite=True)

    made_again(Wanted(k=4))
    merging_says("shard 2 of 3 was made with k = 4, shard 1 with None")
    other = Classifier(classifier.towers, classifier.labels.catalogue(), classifier.vectors)
    made_again(Wanted(), by=other)
    merging_says("shard 2 of 3 was made with model = None, shard 1 with '")
    write(source, ["something else", *TEXTS[1:]])
    made_again(Wanted())
    merging_says("shard 2 of 3 is of another input")
    write(source)
    made_again(Wanted())
    shutil.copy(second, shard_of(output, (2, 4)))
    merging_says("shards of 3 and of 4 lie beside it")
    shard_of(output, (2, 4)).unlink()
    assert merge_shards(output).texts == 23


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/2/3", "-1/2"])
def test_a_shard_that_is_none_is_refused(shard: str, home: Path, tmp_path: Path) -> None:
    files = ("--input", write(tmp_path / "t.txt"), "--output", tmp_path / "out.jsonl")
    outcome = command("predict", home / "model", *files, f"--shard={shard}")
    assert outcome.code == 2 and "for instance 2/5" in outcome.err
