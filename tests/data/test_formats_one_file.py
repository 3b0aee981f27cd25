"""Data as people have it: one file, columns of any name, labels known by their names alone."""

import json
from pathlib import Path

import pytest
from folders import write_json_lines, write_text

from umpteen.data.dataset import Dataset, open_dataset, with_asked
from umpteen.data.formats.columns import guessed_separator
from umpteen.errors import BadFile, BadInput


def labels_of(dataset: Dataset) -> list[list[str]]:
    keys = dataset.labels.keys
    return [[keys[row] for row in dataset.train.relevance.of(query)] for query in range(len(dataset.train))]


def opened(path: Path, asked: str = "") -> Dataset:
    return open_dataset(f"{path}{asked}", cache=path.parent / "cache")


def test_one_csv_file_is_a_dataset_whose_labels_are_those_the_texts_have(tmp_path: Path) -> None:
    path = write_text(tmp_path / "tickets.csv", "text,labels\nlogs me out,login|mobile_app\nno sound,audio\nempty,\n")
    dataset = opened(path)
    assert dataset.name == "tickets" and dataset.labels_are_named
    assert dataset.labels.keys == ["login", "mobile_app", "audio"]
    assert list(dataset.labels.texts) == ["login", "mobile app", "audio"]
    assert labels_of(dataset) == [["login", "mobile_app"], ["audio"], []]
    assert dataset.told == ("labels are separated by '|'",)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["a|b", "a"], [["a", "b"], ["a"]]),
        (["a; b", "b"], [["a", "b"], ["b"]]),
        (['"a, b"', '"b, a"'], [["a", "b"], ["b", "a"]]),
        (['"Smith, John"', '"Doe, Jane"'], [["Smith, John"], ["Doe, Jane"]]),
        (['"[""a"", ""b""]"', "[]"], [["a", "b"], []]),
        (["\"['a', 'b']\"", "\"['b']\""], [["a", "b"], ["b"]]),
        (["7", "8"], [["7"], ["8"]]),
    ],
)
def test_what_separates_labels_is_made_out(tmp_path: Path, cells: list[str], found: list[list[str]]) -> None:
    lines = [f"query {number},{cell}" for number, cell in enumerate(cells)]
    dataset = opened(write_text(tmp_path / "set.csv", "\n".join(["text,tags", *lines]) + "\n"))
    assert [sorted(row) for row in labels_of(dataset)] == [sorted(row) for row in found]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("title,body,tags", "one three"),
        ("Body,headline,Tags", "three one"),
        ("id,question,labels", "three"),
        ("x,a_long_story,label", "three"),
    ],
)
def test_columns_of_other_names_are_made_out_and_told(tmp_path: Path, header: str, text: str) -> None:
    path = write_text(tmp_path / "set.tsv", header.replace(",", "\t") + "\none\tthree\tred\n")
    dataset = opened(path)
    assert list(dataset.train.texts) == [text] and labels_of(dataset) == [["red"]]
    assert "texts are in " in dataset.told[0] and "labels in " in dataset.told[0]


def test_which_columns_count_can_be_said(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", "text,labels,note,kind\nno,no,yes please,a/b\n")
    dataset = opened(path, "?text=note&labels=kind&separator=/")
    assert list(dataset.train.texts) == ["yes please"] and labels_of(dataset) == [["a", "b"]] and dataset.told == ()
    assert list(opened(path, "?text=text+note&labels=kind").train.texts) == ["no yes please"]
    assert labels_of(opened(path)) == [["no"]]  # another copy, not that of what was said before
    with pytest.raises(BadFile, match=r"set\.csv.*no column 'tag'; it has 'text', 'labels', 'note', 'kind'"):
        opened(path, "?labels=tag")
    with pytest.raises(BadInput, match=r"colour=x is none of text=…, labels=…, separator=…"):
        opened(path, "?colour=x")


def test_a_header_without_labels_is_shown(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", "when,what\ntoday,rain\n")
    with pytest.raises(BadFile, match=r"it has 'when', 'what': say which it is, with --labels COLUMN"):
        opened(path)


def test_json_lines_may_name_labels_in_a_list_or_a_string(tmp_path: Path) -> None:
    rows = [{"body": "x", "tags": ["a", 3]}, {"body": "y", "tags": "a;b"}, {"body": "z", "tags": None}]
    assert labels_of(opened(write_json_lines(tmp_path / "set.jsonl", rows))) == [["a", "3"], ["a", "b"], []]


def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": ["x", "y"], "labels": [["a", "b"], ["b"]]})
    parquet.write_table(table, tmp_path / "set.parquet")
    assert labels_of(opened(tmp_path / "set.parquet")) == [["a", "b"], ["b"]]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(BadFile, match=r"broken\.parquet.*no whole Parquet file"):
        opened(tmp_path / "broken.parquet")


def test_a_folder_without_a_file_of_labels_takes_those_of_all_its_splits(tmp_path: Path) -> None:
    write_text(tmp_path / "set" / "train.csv", "text,labels\nx,a\n")
    write_text(tmp_path / "set" / "test.csv", "text,labels\ny,b\n")
    dataset = open_dataset(tmp_path / "set", cache=tmp_path / "cache")
    assert dataset.labels.keys == ["a", "b"] and dataset.test is not None


def test_a_folder_with_labels_may_call_its_columns_otherwise(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "set" / "labels.jsonl", [{"key": "a,b", "text": "A and B"}])
    write_text(tmp_path / "set" / "train.csv", 'body,tags\nx,"a,b"\n')
    dataset = open_dataset(tmp_path / "set", cache=tmp_path / "cache")
    assert labels_of(dataset) == [["a,b"]] and "texts are in 'body'" in dataset.told[0]


def test_a_file_of_another_kind_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.xlsx", json.dumps({}))
    with pytest.raises(BadInput, match=r"set\.xlsx is none of the files that are read: \.jsonl, \.csv"):
        opened(path)


def test_the_column_of_labels_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", "name,description\nshoes,a red runner\n")
    assert list(opened(path, "?labels=name").train.texts) == ["a red runner"]


def test_odd_names_of_columns_can_be_said(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", "Question?,C++&\nwhy,a&b\n")
    source = with_asked(str(path), {"text": "Question?", "labels": "C++&", "separator": "&"})
    dataset = open_dataset(source, cache=tmp_path / "cache")
    assert list(dataset.train.texts) == ["why"] and labels_of(dataset) == [["a", "b"]]


def test_one_column_is_not_both(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", "text,labels\nx,a\n")
    with pytest.raises(BadFile, match="column 'labels' cannot hold both"):
        opened(path, "?text=labels&labels=labels")


def test_other_splits_are_separated_as_train_is(tmp_path: Path) -> None:
    write_text(tmp_path / "set" / "train.csv", 'text,labels\nx,"a, b"\ny,"b, a"\n')
    write_text(tmp_path / "set" / "test.csv", 'text,labels\nz,"a, c"\n')
    dataset = open_dataset(tmp_path / "set", cache=tmp_path / "cache")
    assert dataset.labels.keys == ["a", "b", "c"]


def test_a_missing_title_leaves_the_body(tmp_path: Path) -> None:
    rows = [{"title": None, "body": "only this", "tags": ["a"]}]
    assert list(opened(write_json_lines(tmp_path / "set.jsonl", rows)).train.texts) == ["only this"]


def test_weights_and_pairs_to_ignore_are_read_without_a_file_of_labels(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", "text,labels,weights,ignore,weight\nx,a|b,1|0.5,a,7\ny,a,,,8\n")
    dataset = opened(path)
    assert dataset.train.relevance.weights_of(0).tolist() == [1, 0.5] and dataset.train.filtered.of(0).tolist() == [0]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_table_may_have_semicolons_or_tabs_where_its_header_has_no_comma(mark: str, tmp_path: Path) -> None:
    path = write_text(tmp_path / "set.csv", f"text{mark}labels\nx, y{mark}a\n")
    assert list(opened(path).train.texts) == ["x, y"] and labels_of(opened(path)) == [["a"]]


@pytest.mark.parametrize("table", [",text,labels\n0,red,a\n1,blue,b\n", "text,labels,,\nred,a,,\nblue,b,,\n"])
def test_columns_without_a_name_are_passed_over(table: str, tmp_path: Path) -> None:
    dataset = opened(write_text(tmp_path / "set.csv", table))
    assert list(dataset.train.texts) == ["red", "blue"] and labels_of(dataset) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["dog, cat", "cat, R&amp;D", "dog", "fish, dog"], ","),  # the entity's semicolon is none
        (["Pets, Dogs", "Pets, Dogs", "Cars, Trucks", "Food"], None),  # repeated cells vouch for nothing
        (["a|b", "c|d"], "|"),
        (["J. Doe, Jr.; A. Roe", "B. Poe; C. Coe"], ";"),
        ([*(f"label {n}" for n in range(30)), "label 3; label 4"], ";"),
        ([*(f"label {n}" for n in range(30)), "ready; steady"], None),
        (["('a', 'b')", "['c' 'd']", '["e, f"]', "{'a'}"], None),
    ],
)
def test_what_separates_labels_is_guessed_from_what_the_cells_share(cells: list[str], mark: str | None) -> None:
    assert guessed_separator(cells) == mark


@pytest.mark.parametrize(
    "cell", ["['dog' 'cat, wild']", "['dog'\n 'cat, wild']", "('dog', 'cat, wild')", '["dog", "cat, wild"]']
)
def test_lists_are_read_as_numpy_python_and_json_write_them(cell: str, tmp_path: Path) -> None:
    quoted = cell.replace('"', '""')
    assert labels_of(opened(write_text(tmp_path / "set.csv", f'text,labels\nx,"{quoted}"\n'))) == [["dog", "cat, wild"]]


def test_a_late_cell_of_several_known_labels_is_told(tmp_path: Path) -> None:
    rows = "".join(f"text {n},label {n % 4}\n" for n in range(1000))
    dataset = opened(write_text(tmp_path / "set.csv", f"text,labels\n{rows}late,label 1|label 2\n"))
    assert len(dataset.labels) == 5
    assert any("set.csv, line 1002: 'label 1|label 2' would part at '|'" in told for told in dataset.told)


@pytest.mark.parametrize(("encoding", "kind"), [("utf-16", "UTF-16"), ("cp1252", "WINDOWS-1252")])
def test_what_is_not_utf_8_is_told_with_the_command_that_converts_it(encoding: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_bytes("text,labels\nürban,a\n".encode(encoding))
    with pytest.raises(BadFile, match=f"iconv -f {kind} -t UTF-8"):
        opened(path)


def test_columns_of_a_folder_can_be_said_if_its_format_has_some(tmp_path: Path) -> None:
    write_text(tmp_path / "set" / "train.csv", "body,abstract,tags\nx,y,a\n")
    dataset = open_dataset(f"{tmp_path / 'set'}?text=abstract", cache=tmp_path / "cache")
    assert list(dataset.train.texts) == ["y"] and not dataset.is_one_file
    write_text(tmp_path / "xc" / "trn_X_Y.txt", "1 1\n0:1\n")
    with pytest.raises(BadInput, match="has no columns that could be named"):
        open_dataset(f"{tmp_path / 'xc'}?text=abstract", cache=tmp_path / "cache")


def test_equal_texts_stand_on_one_side_of_the_validation_split(tmp_path: Path) -> None:
    lines = [f"text {number % 20},a{number % 3}" for number in range(100)]
    write_json_lines(tmp_path / "set" / "labels.jsonl", [{"key": f"a{n}", "text": f"a {n}"} for n in range(3)])
    write_text(tmp_path / "set" / "train.csv", "\n".join(["text,labels", *lines]) + "\n")
    dataset = opened(tmp_path / "set")  # where labels have a file of their own, rows stay as they are
    parted = dataset.with_validation(0.05, 0)
    assert parted.validation is not None
    assert not set(parted.train.texts) & set(parted.validation.texts)
    assert len(parted.train) + len(parted.validation) == 100


def test_rows_of_the_same_text_are_merged_where_the_first_stands(tmp_path: Path) -> None:
    path = write_text(
        tmp_path / "long.csv", "text,label\nno sound,audio\nlogs out,login\nno sound,phone\nno sound,audio\n"
    )
    dataset = opened(path)
    assert list(dataset.train.texts) == ["no sound", "logs out"] and labels_of(dataset) == [
        ["audio", "phone"],
        ["login"],
    ]
    assert "2 rows repeat a text; their labels are merged" in dataset.told


def test_merged_rows_without_weights_weigh_1_beside_others(tmp_path: Path) -> None:
    lines = [{"labels": ["a"]}, {"labels": ["b", "c"], "weights": [0.5, 2]}, {"labels": ["d"], "ignore": ["a"]}]
    dataset = opened(write_json_lines(tmp_path / "set.jsonl", [{"text": "same", **line} for line in lines]))
    assert labels_of(dataset) == [["a", "b", "c", "d"]]
    assert dataset.train.relevance.weights_of(0).tolist() == [1, 0.5, 2, 1] and dataset.train.filtered.of(0) == [0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": ["a", "list"], "labels": ["x"]}, r"line 3: 'text' is"),
        ({"text": "same", "labels": ["x"], "ignore": "x"}, r"line 3: 'ignore' is \"x\", not a list"),
        ({"text": "same", "labels": ["x"], "weights": 3}, r"line 3: 'weights' is 3, not a list"),
        ({"text": "same", "labels": ["x"], "weights": [1, 2]}, r"line 3: 1 labels but 2 weights"),
    ],
)
def test_a_bad_row_is_named_by_its_line_where_rows_are_merged(
    tmp_path: Path, row: dict[str, object], said: str
) -> None:
    good = {"text": "same", "labels": ["x"]}
    with pytest.raises(BadFile, match=said):
        opened(write_json_lines(tmp_path / "set.jsonl", [good, good, row]))
