import gzip
from pathlib import Path

import pytest
from tests.data.folders import (
    KEYS,
    LABEL_TEXTS,
    opened,
    write_dexml,
    write_json_lines,
    write_lines,
    write_native_folder,
    write_text,
)

from umpteen.data.dataset import Dataset, open_dataset
from umpteen.errors import BadFile

CSV_LABELS = ["key,text", "a,ant", "b,bee", 'c,"cat, or ""puss"""']


def table(folder: Path, train: list[str], *, labels: list[str] = CSV_LABELS, ending: str = ".csv") -> Dataset:
    write_lines(folder / f"labels{ending}", labels)
    write_lines(folder / f"train{ending}", train)
    return opened(folder)


def rows_of(dataset: Dataset) -> list[list[int]]:
    return [dataset.train.relevance.of(query).tolist() for query in range(len(dataset.train))]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_json_lines_give_the_same_dataset_as_the_dexml_layout(tmp_path: Path, ending: str) -> None:
    dataset = opened(write_native_folder(tmp_path / "a" / "set", ending))
    assert dataset == opened(write_dexml(tmp_path / "b" / "set"))


def test_weights_grade_the_pairs_and_a_pair_given_twice_keeps_the_greater(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    record = {"text": "t", "labels": ["税", "10", "税"], "weights": [0.5, 0, 2], "key": "q1", "source": "elsewhere"}
    write_json_lines(folder / "train.jsonl", [record])
    relevance = opened(folder).train.relevance
    assert relevance.of(0).tolist() == [0, 2] and relevance.weights_of(0).tolist() == [0, 2]


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_text(folder / "train.jsonl", '\ufeff{"text": "t", "labels": []}\r\n\r\n{"text": "u", "labels": ["10"]}\n\n')
    assert list(opened(folder).train.texts) == ["t", "u"]


def test_only_labels_and_train_are_needed(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    (folder / "test.jsonl").unlink()
    dataset = opened(folder)
    assert dataset.test is None and dataset.validation is None


def test_a_settings_file_names_the_dataset(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_text(folder / "dataset.toml", 'name = "my own"')
    assert opened(folder).name == "my own"


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_table_may_quote_delimiters_and_line_ends(tmp_path: Path, ending: str) -> None:
    train = ["text,labels", '"one, two\nand three",a|c', "four,b", "five,"]
    dataset = table(tmp_path / "set", train, ending=ending)
    assert list(dataset.train.texts) == ["one, two\nand three", "four", "five"]
    assert rows_of(dataset) == [[0, 2], [1], []]
    assert dataset.labels.texts[2] == 'cat, or "puss"'


def test_tabs_separate_the_cells_of_tsv(tmp_path: Path) -> None:
    labels = [line.replace(",", "\t", 1) for line in CSV_LABELS[:3]]
    dataset = table(
        tmp_path / "set", ["labels\ttext\tnote", "a; b;\tone, two\t", "b\tthree\tn"], labels=labels, ending=".tsv"
    )
    assert list(dataset.train.texts) == ["one, two", "three"] and rows_of(dataset) == [[0, 1], [1]]


def test_a_table_may_give_weights_and_pairs_to_ignore(tmp_path: Path) -> None:
    dataset = table(tmp_path / "set", ["text,labels,weights,ignore", "one,a|c,0.5|2,b", "two,b,,"])
    assert dataset.train.relevance.weights_of(0).tolist() == [0.5, 2]
    assert dataset.train.relevance.weights_of(1).tolist() == [1]
    assert dataset.train.filtered.of(0).tolist() == [1]


def test_a_mark_that_stands_in_a_key_does_not_separate(tmp_path: Path) -> None:
    dataset = table(tmp_path / "set", ["text,labels", "one,x|1;y", "two,x|1"], labels=["key,text", "x|1,ex", "y,why"])
    assert rows_of(dataset) == [[0, 1], [0]]


def test_keys_say_how_a_cell_falls_apart_whatever_marks_they_hold(tmp_path: Path) -> None:
    labels = ["key,text", "x|1,ex", "y;2,why", '"z, 3",zed']
    train = ["text,labels", 'one,"x|1,y;2"', 'two,"z, 3"', 'three,"z, 3;x|1"']
    assert rows_of(table(tmp_path / "set", train, labels=labels)) == [[0, 1], [2], [0, 2]]
    with pytest.raises(BadFile, match="line 5: label key 'x' is not among the labels"):
        table(tmp_path / "unclear", [*train, "four,y;2|x|1"], labels=labels)


def test_the_separator_can_be_said_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"label key 'a / b' is not among the labels.*separator"):
        table(tmp_path / "set", ["text,labels", "one,a / b"])
    assert rows_of(open_dataset(f"{tmp_path / 'set'}?separator=/", cache=tmp_path / "cache")) == [[0, 1]]


def test_a_cell_longer_than_the_csv_module_allows_is_read(tmp_path: Path) -> None:
    long = "word " * 40_000
    assert table(tmp_path / "set", ["text,labels", f"{long},a"]).train.texts[0] == long


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "t", "labels": ["10"]', "is no valid JSON"),
        ('"text"', "not an object"),
        ("[" * 100_000, "is no valid JSON"),
        ('{"text": "t", "labels": "10"}', r"""'labels' is "10", not a list; wrap it in one: \["10"\]"""),
        ('{"text": "t", "labels": [10]}', "must be a list of strings but holds 10"),
        ('{"text": "t", "label": ["10"]}', "has no 'labels'"),
        ('{"labels": ["10"]}', "has no 'text'"),
        ('{"text": ["t"], "labels": ["10"]}', r"""'text' is \["t"\], not a string"""),
        ('{"text": "", "labels": ["10"]}', "the query's text is empty"),
        ('{"text": "t", "labels": ["role"]}', "label key 'role' is not among the labels; did you mean 'rôle'"),
        ('{"text": "t", "labels": [], "ignore": ["x"]}', "label key 'x' is not among the labels; add it there"),
        ('{"text": "t", "labels": ["10"], "weights": [1, 2]}', "1 labels but 2 weights"),
        ('{"text": "t", "labels": ["10"], "weights": ["1"]}', 'must be a list of numbers but holds "1"'),
        ('{"text": "t", "labels": ["10"], "weights": [NaN]}', "weight nan"),
        ('{"text": "t", "labels": ["10"], "weights": [-0.5]}', "weight -0.5"),
        ('{"text": "t", "labels": ["10"], "weight": [2]}', "field 'weight' is unknown; did you mean 'weights'"),
    ],
)
def test_a_broken_query_is_named_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_lines(folder / "train.jsonl", ['{"text": "t", "labels": ["10"]}', line])
    with pytest.raises(BadFile, match=rf"train\.jsonl, line 2: .*{problem}"):
        opened(folder)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"key": "10", "text": "again"}', "label key '10' stands here for the second time, the first is line 1"),
        ('{"key": 11, "text": "t"}', "'key' is 11, not a string; put it in quotes"),
        ('{"key": "", "text": "t"}', "key is empty"),
        ('{"key": "x", "text": "\\n"}', "the label's text is empty"),
        ('{"key": "x"}', "has no 'text'; it has 'key'"),
        ('{"key": "\\udcff", "text": "t"}', "half of a surrogate pair"),
    ],
)
def test_a_broken_label_is_named_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_lines(folder / "labels.jsonl", ['{"key": "10", "text": "ten"}', "", line])
    with pytest.raises(BadFile, match=rf"labels\.jsonl, line 3: .*{problem}"):
        opened(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    (folder / "train.jsonl").unlink()
    with pytest.raises(BadFile, match=r"train\.jsonl: is missing, and so are train\.csv and train\.tsv"):
        opened(folder)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("labels.jsonl", "", "is empty"),
        ("train.jsonl", "", "is empty"),
        ("test.jsonl", "", "is empty"),
        ("labels.jsonl", "\n\n", "holds no labels"),
        ("train.jsonl", "\n\n", "holds no queries for train"),
    ],
)
def test_a_file_without_rows_is_named(tmp_path: Path, name: str, content: str, problem: str) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_text(folder / name, content)
    with pytest.raises(BadFile, match=f"{name}: {problem}"):
        opened(folder)


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_lines(folder / "train.csv", ["text,labels", "t,10"])
    with pytest.raises(BadFile, match=r"train\.csv: stands beside train\.jsonl"):
        opened(folder)


@pytest.mark.parametrize(
    ("rows", "line", "problem"),
    [
        (["text,labels", "one, two,a"], 2, "has 3 cells but the header has 2; quote cells that hold ','"),
        (["text,labels", '"one" two,a'], 2, "breaks the quoting rules"),
        (["text,labels", "one,a", '"two,a'], 3, "breaks the quoting rules"),
        (["text,labels", "one,a", "two,a b"], 3, "label key 'a b' is not among the labels.*separator"),
        (["text,labels,weights", "one,a,much"], 2, "weight 'much' is not a number"),
        (["text,labels,weights", "one,a,nan"], 2, "weight nan"),
        (["text,labels,weights", "one,a|b,1"], 2, "2 labels but 1 weights"),
        (["text,labels,weight", "one,a,2"], 2, "did you mean 'weights'"),
        (["text,labels,text", "one,a,two"], 1, "names a column twice"),
        (["text,note", "one,a"], 1, "has none of the columns that usually hold labels .*; it has 'text', 'note'"),
        (["text,labels", '"long\ncell",a', ",a"], 4, "the query's text is empty"),
    ],
)
def test_a_broken_table_is_named_with_its_line(tmp_path: Path, rows: list[str], line: int, problem: str) -> None:
    with pytest.raises(BadFile, match=rf"train\.csv, line {line}: .*{problem}"):
        table(tmp_path / "set", rows)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("name = ", "cannot be read as TOML"),
        ('name = "a"\nlabel_separator = "|"', "may hold the dataset's name.* and nothing else"),
        ("name = 3", "may hold the dataset's name, a string"),
        ('name = ""', "may hold .* a string that is not empty"),
    ],
)
def test_a_broken_settings_file_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    folder = write_native_folder(tmp_path / "set")
    write_text(folder / "dataset.toml", content)
    with pytest.raises(BadFile, match=rf"dataset\.toml: {problem}"):
        opened(folder)


def test_undecodable_bytes_are_named_with_file_line_and_offset(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    (folder / "test.jsonl").unlink()
    good = '{"text": "日本", "labels": []}\n'.encode()
    (folder / "test.jsonl.gz").write_bytes(gzip.compress(good + "café\n".encode("latin-1")))
    with pytest.raises(BadFile, match=rf"test\.jsonl\.gz, line 2: byte 0xe9 at offset {len(good) + 3}"):
        opened(folder)


def test_a_catalogue_too_large_to_compare_gives_no_nearest_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umpteen.data.prepared.KEYS_CHEAP_TO_COMPARE", len(KEYS) - 1)
    folder = write_native_folder(tmp_path / "set")
    write_json_lines(folder / "train.jsonl", [{"text": LABEL_TEXTS[0], "labels": ["role"]}])
    with pytest.raises(BadFile, match="'role' is not among the labels; add it there or correct it here"):
        opened(folder)


def test_a_query_may_ignore_a_label_that_only_a_later_split_has(tmp_path: Path) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "one", "labels": ["a"], "ignore": ["b"]}\n')
    (folder / "test.jsonl").write_text('{"text": "two", "labels": ["b"]}\n')
    dataset = open_dataset(folder)
    assert list(dataset.labels.keys) == ["a", "b"]
    assert dataset.train.filtered.of(0).tolist() == [1] and dataset.train.relevance.of(0).tolist() == [0]
