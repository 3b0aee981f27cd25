import gzip
import json
from pathlib import Path

import pytest
from tests.data.folders import (
    KEYS,
    MULTILINGUAL,
    TRAIN_LABELS,
    opened,
    write_dexml,
    write_json_lines,
    write_lines,
    write_text,
    write_xc_json,
    write_xc_sparse,
)

from umpteen.errors import BadFile


def first_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")


@pytest.mark.parametrize("ending", [".json.gz", ".json"])
def test_json_gives_the_same_dataset_as_the_dexml_layout(tmp_path: Path, ending: str) -> None:
    dataset = opened(write_xc_json(tmp_path / "a" / "set", ending))
    assert dataset == opened(write_dexml(tmp_path / "b" / "set"))


@pytest.mark.parametrize(
    "names",
    [
        ("trn_X.txt", "tst_X.txt", "Y.txt"),
        ("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
        ("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt"),
    ],
)
def test_sparse_text_gives_the_same_dataset_as_the_dexml_layout(tmp_path: Path, names: tuple[str, str, str]) -> None:
    dataset = opened(write_xc_sparse(tmp_path / "a" / "set", names))
    assert dataset == opened(write_dexml(tmp_path / "b" / "set", ids=False))


def test_content_follows_the_title_when_there_is_any(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set", ".json")
    records: list[dict[str, object]] = [
        {"uid": "q1", "title": "Title", "content": "and body", "target_ind": [0], "target_rel": [1.0]},
        {"uid": "q2", "title": "Title", "content": "", "target_ind": []},
        {"uid": "q3", "title": "", "content": "only body", "target_ind": [1]},
        {"uid": "q4", "title": "Title", "content": None, "target_ind": [1]},
    ]
    write_json_lines(folder / "trn.json", records)
    assert list(opened(folder).train.texts) == ["Title and body", "Title", "only body", "Title"]


def test_target_rel_grades_the_pairs(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set", ".json")
    record = {"uid": "q", "title": "t", "target_ind": [2, 0], "target_rel": [0.5, 2]}
    write_json_lines(folder / "trn.json", [record] * 4)
    relevance = opened(folder).train.relevance
    assert relevance.of(0).tolist() == [0, 2] and relevance.weights_of(0).tolist() == [2, 0.5]


def test_labels_without_uid_get_their_row_as_key_and_numbers_become_strings(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set", ".json")
    write_json_lines(folder / "lbl.json", [{"title": "a"}, {"uid": 17, "title": "b"}, {"uid": None, "title": "c"}])
    assert opened(folder).labels.keys == ["0", "17", "2"]


def test_a_folder_without_test_files_has_no_test(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set")
    (folder / "tst.json.gz").unlink()
    assert opened(folder).test is None


def test_a_query_line_without_labels_is_read(tmp_path: Path) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    write_lines(folder / "trn_X_Y.txt", ["4 3", "0:1", "", "2:0.5 1:1e-1", "2:1 2:3"])
    relevance = opened(folder).train.relevance
    assert [relevance.of(query).tolist() for query in range(4)] == [[0], [], [1, 2], [2]]
    assert relevance.weights_of(2).tolist() == pytest.approx([0.1, 0.5])
    assert relevance.weights_of(3).tolist() == [3]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ('{"title": "t", "target_ind": [0', "is no valid JSON"),
        ("[1, 2]", "not an object"),
        ('{"uid": "q", "target_ind": [0]}', "has no 'title'; it has 'uid', 'target_ind'"),
        ('{"title": 3, "target_ind": [0]}', "'title' is 3, not a string"),
        ('{"title": "t"}', "has no 'target_ind'"),
        ('{"title": "t", "target_ind": 0}', r"'target_ind' is 0, not a list; wrap it in one: \[0\]"),
        ('{"title": "t", "target_ind": [0.5]}', "must be a list of whole numbers but holds 0.5"),
        ('{"title": "t", "target_ind": [true]}', "must be a list of whole numbers but holds true"),
        ('{"title": "t", "target_ind": [3]}', "label row 3 is out of range: there are 3 labels, rows 0 to 2"),
        ('{"title": "t", "target_ind": [-1]}', "label row -1 is out of range"),
        ('{"title": "t", "target_ind": [0], "target_rel": [NaN]}', "weight nan of label row 0"),
        ('{"title": "t", "target_ind": [0], "target_rel": [-2]}', "weight -2 of label row 0"),
        ('{"title": "t", "target_ind": [0], "target_rel": [Infinity]}', "weight inf of label row 0"),
        ('{"title": "t", "target_ind": [0], "target_rel": [1e39]}', r"weight 1e\+39 of label row 0"),
        ('{"title": "t", "target_ind": [0, 1], "target_rel": [1]}', "2 labels but 1 weights"),
        ('{"title": " ", "content": "", "target_ind": [0]}', "the query's text is empty"),
        ('{"title": "\\ud800", "target_ind": [0]}', "U\\+D800, half of a surrogate pair"),
    ],
)
def test_a_broken_query_is_named_with_its_line(tmp_path: Path, record: str, problem: str) -> None:
    folder = write_xc_json(tmp_path / "set")
    write_lines(folder / "trn.json.gz", ['{"title": "t", "target_ind": [0]}', record])
    with pytest.raises(BadFile, match=rf"trn\.json\.gz, line 2: .*{problem}"):
        opened(folder)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("9:1", "label row 9 is out of range"),
        ("0:nan", "weight nan"),
        ("0:-1", "weight -1.0"),
        ("0", "is not a list of"),
        ("0:1:2", "is not a list of"),
        ("zero:1", "is not a list of"),
    ],
)
def test_a_broken_line_of_labels_is_named(tmp_path: Path, line: str, problem: str) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    write_lines(folder / "trn_X_Y.txt", ["4 3", "0:1", line, "0:1", "0:1"])
    with pytest.raises(BadFile, match=rf"trn_X_Y\.txt, line 3: .*{problem}"):
        opened(folder)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("4 2", r"line 1: the header says 2 labels but 3 label texts were read"),
        ("4", r"line 1: .*is not the header"),
        ("5 3", r"has 4 rows of labels but its header says 5"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, header: str, problem: str) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    write_lines(folder / "trn_X_Y.txt", [header, *first_lines(folder / "trn_X_Y.txt")[1:-1]])
    with pytest.raises(BadFile, match=rf"trn_X_Y\.txt.*{problem}"):
        opened(folder)


@pytest.mark.parametrize("lines", [3, 6])
def test_texts_and_labels_must_have_as_many_rows(tmp_path: Path, lines: int) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    write_lines(folder / "trn_X.txt", (MULTILINGUAL * 2)[:lines])
    with pytest.raises(BadFile, match=rf"trn_X\.txt: has {lines} queries but .*trn_X_Y\.txt has 4"):
        opened(folder)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Y.txt", r"lbl\.json\.gz: is missing, and so are lbl\.raw\.txt.*one of them must give the labels"),
        ("trn_X.txt", r"trn_X\.txt: is missing, and so is trn\.raw\.txt"),
        ("tst_X_Y.txt", r"tst_X_Y\.txt: is missing"),
        ("tst_X.txt", r"tst_X\.txt: is missing"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, problem: str) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    (folder / name).unlink()
    with pytest.raises(BadFile, match=problem):
        opened(folder)


@pytest.mark.parametrize("name", ["Y.txt", "trn_X.txt", "trn_X_Y.txt"])
def test_an_empty_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    write_text(folder / name, "")
    with pytest.raises(BadFile, match=f"/{name}: is empty"):
        opened(folder)


def test_an_empty_text_is_named_in_the_file_of_texts(tmp_path: Path) -> None:
    folder = write_xc_sparse(tmp_path / "set")
    write_lines(folder / "trn_X.txt", [*MULTILINGUAL[:3], ""])
    with pytest.raises(BadFile, match=r"trn_X\.txt, line 4: the query's text is empty"):
        opened(folder)


def test_a_label_uid_given_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set", ".json")
    write_json_lines(folder / "lbl.json", [{"uid": uid, "title": "t"} for uid in "abb"])
    with pytest.raises(BadFile, match=r"lbl\.json, line 3: label key 'b' .* line 2"):
        opened(folder)


def test_a_packed_file_cut_short_is_refused(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set")
    path = folder / "trn.json.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadFile, match=r"trn\.json\.gz.*is no whole gzip file"):
        opened(folder)
    path.write_bytes(b"plain text")
    with pytest.raises(BadFile, match=r"trn\.json\.gz.*is no whole gzip file"):
        opened(folder)


def test_undecodable_bytes_in_a_packed_file_are_named_by_their_unpacked_offset(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set")
    good = json.dumps({"title": "t", "target_ind": TRAIN_LABELS[0]}).encode() + b"\n"
    (folder / "trn.json.gz").write_bytes(gzip.compress(good + b'{"title": "\xff"}\n'))
    with pytest.raises(BadFile, match=rf"trn\.json\.gz, line 2: byte 0xff at offset {len(good) + 11}"):
        opened(folder)


def test_json_is_preferred_to_texts_extracted_from_it(tmp_path: Path) -> None:
    folder = write_xc_json(tmp_path / "set")
    write_xc_sparse(folder)
    for name in ("trn_filter_labels.txt", "tst_filter_labels.txt"):
        (folder / name).unlink()
    assert opened(folder).labels.keys == KEYS
