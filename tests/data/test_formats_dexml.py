import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array, save_npz
from tests.data.folders import (
    KEYS,
    LABEL_TEXTS,
    MULTILINGUAL,
    TEST_FILTER,
    TRAIN_FILTER,
    TRAIN_LABELS,
    matrix,
    opened,
    write_dexml,
    write_lines,
    write_text,
)

from umpteen.data.dataset import open_dataset
from umpteen.data.labels import Relevance
from umpteen.errors import BadFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_dexml(tmp_path / "small")


def pairs_of(relevance: Relevance) -> list[tuple[int, int]]:
    return [(query, int(label)) for query in range(len(relevance)) for label in relevance.of(query)]


def test_every_part_of_the_layout_is_read(folder: Path) -> None:
    dataset = opened(folder)
    assert dataset.name == "small"
    assert dataset.labels.keys == KEYS and list(dataset.labels.texts) == LABEL_TEXTS
    assert list(dataset.train.texts) == MULTILINGUAL[:4]
    assert [dataset.train.relevance.of(query).tolist() for query in range(4)] == TRAIN_LABELS
    assert pairs_of(dataset.train.filtered) == TRAIN_FILTER
    assert dataset.test is not None and list(dataset.test.texts) == MULTILINGUAL[4:]
    assert pairs_of(dataset.test.filtered) == TEST_FILTER
    assert dataset.validation is None


def test_without_ids_the_row_number_is_the_key(tmp_path: Path) -> None:
    assert opened(write_dexml(tmp_path / "set", ids=False)).labels.keys == ["0", "1", "2"]


def test_without_filter_files_nothing_is_filtered(tmp_path: Path) -> None:
    dataset = opened(write_dexml(tmp_path / "set", filters=False))
    assert dataset.train.filtered.pairs == 0 and dataset.train.filtered.labels == 3


def test_an_empty_filter_file_filters_nothing(folder: Path) -> None:
    write_text(folder / "filter_labels_train.txt", "")
    assert opened(folder).train.filtered.pairs == 0


def test_a_filter_pair_given_twice_counts_once(folder: Path) -> None:
    write_lines(folder / "filter_labels_train.txt", ["0 1", "0 1"])
    assert opened(folder).train.filtered.matrix.data.tolist() == [1]


def test_a_dataset_without_test_files_has_no_test(folder: Path) -> None:
    (folder / "raw" / "tst_X.txt").unlink()
    (folder / "Y.tst.npz").unlink()
    assert opened(folder).test is None


def test_label_texts_may_repeat(folder: Path) -> None:
    write_lines(folder / "raw" / "Y.txt", ["bank", "bank", "bench"])
    assert list(opened(folder).labels.texts) == ["bank", "bank", "bench"]


def test_windows_line_ends_and_a_missing_last_one_do_not_matter(folder: Path) -> None:
    write_text(folder / "raw" / "trn_X.txt", "\ufeff" + "\r\n".join(MULTILINGUAL[:4]))
    assert list(opened(folder).train.texts) == MULTILINGUAL[:4]


def test_weights_are_kept_and_other_sparse_forms_are_read(folder: Path) -> None:
    weights = np.array([2.0, 0.5, 1.0, 3.0])
    pairs = coo_array((weights, ([0, 1, 2, 3], [2, 1, 0, 2])), shape=(4, 3))
    save_npz(folder / "Y.trn.npz", pairs)
    relevance = opened(folder).train.relevance
    assert relevance.matrix.data.tolist() == weights.tolist() and relevance.graded


def test_a_pair_twice_in_the_matrix_keeps_its_greater_weight(folder: Path) -> None:
    starts, rows = np.array([0, 2, 2, 2, 2]), np.array([1, 1])
    save_npz(folder / "Y.trn.npz", csr_array((np.array([3.0, 2.0]), rows, starts), shape=(4, 3)))
    relevance = opened(folder).train.relevance
    assert relevance.of(0).tolist() == [1] and relevance.weights_of(0).tolist() == [3]


@pytest.mark.parametrize("name", ["raw/Y.txt", "raw/trn_X.txt", "raw/tst_X.txt", "Y.trn.npz", "Y.tst.npz"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BadFile, match=f"{name}: is missing"):
        opened(folder)


@pytest.mark.parametrize("name", ["raw/Y.txt", "raw/Y_ids.txt", "raw/trn_X.txt", "Y.trn.npz"])
def test_an_empty_file_is_named(folder: Path, name: str) -> None:
    write_text(folder / name, "")
    with pytest.raises(BadFile, match=f"{name}"):
        opened(folder)


@pytest.mark.parametrize("lines", [3, 5])
def test_texts_and_matrix_must_have_as_many_rows(folder: Path, lines: int) -> None:
    write_lines(folder / "raw" / "trn_X.txt", (MULTILINGUAL * 2)[:lines])
    with pytest.raises(BadFile, match=rf"trn_X\.txt: has {lines} queries but .*Y\.trn\.npz has 4"):
        opened(folder)


def test_the_matrix_must_have_a_column_for_each_label(folder: Path) -> None:
    save_npz(folder / "Y.tst.npz", matrix([[3], [0]], labels=4))
    with pytest.raises(BadFile, match=r"Y\.tst\.npz: has 4 columns but raw/Y\.txt has 3 lines"):
        opened(folder)


@pytest.mark.parametrize("ids", [2, 5])
def test_label_ids_and_texts_must_be_as_many(folder: Path, ids: int) -> None:
    write_lines(folder / "raw" / "Y_ids.txt", [str(n) for n in range(ids)])
    with pytest.raises(BadFile, match=rf"Y\.txt: has 3 lines but .*Y_ids\.txt has {ids}"):
        opened(folder)


def test_a_label_row_out_of_range_inside_the_matrix_is_named(folder: Path) -> None:
    good = matrix(TRAIN_LABELS)
    good.indices[2] = 7
    save_npz(folder / "Y.trn.npz", good)
    with pytest.raises(BadFile, match=r"Y\.trn\.npz, line 2: label row 7 is out of range: .*0 to 2"):
        opened(folder)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_an_impossible_weight_is_named_with_its_row(folder: Path, weight: float) -> None:
    bad = matrix(TRAIN_LABELS)
    bad.data[3] = weight
    save_npz(folder / "Y.trn.npz", bad)
    with pytest.raises(BadFile, match=r"Y\.trn\.npz, line 3: weight"):
        opened(folder)


@pytest.mark.parametrize("size", [0, 10, 200, 600])
def test_a_matrix_cut_short_is_refused(folder: Path, size: int) -> None:
    path = folder / "Y.trn.npz"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadFile, match=r"Y\.trn\.npz: is no whole scipy sparse matrix"):
        opened(folder)


def test_a_dense_array_in_place_of_the_matrix_is_refused(folder: Path) -> None:
    with (folder / "Y.trn.npz").open("wb") as file:
        np.save(file, np.eye(4, 3))
    with pytest.raises(BadFile, match=r"Y\.trn\.npz: is no whole scipy sparse matrix"):
        opened(folder)
    np.savez(folder / "Y.trn.npz", np.eye(4, 3))
    with pytest.raises(BadFile, match=r"Y\.trn\.npz: is no whole scipy sparse matrix"):
        opened(folder)


def test_a_byte_that_is_not_utf8_is_named_with_line_and_offset(folder: Path) -> None:
    (folder / "raw" / "trn_X.txt").write_bytes(b"one\ntwo\nth\xe9e\nfour\n")
    with pytest.raises(BadFile, match=r"trn_X\.txt, line 3: byte 0xe9 at offset 10 is not UTF-8.*iconv"):
        opened(folder)


@pytest.mark.parametrize("name", ["trn_X.txt", "tst_X.txt", "Y.txt"])
def test_an_empty_text_is_named_with_its_line(folder: Path, name: str) -> None:
    path = folder / "raw" / name
    lines = path.read_text(encoding="utf-8").split("\n")
    write_text(path, "\n".join([lines[0], " ", *lines[2:]]))
    kind = "label" if name == "Y.txt" else "query"
    with pytest.raises(BadFile, match=rf"{name}, line 2: the {kind}'s text is empty"):
        opened(folder)


def test_a_label_id_given_twice_is_named_with_both_lines(folder: Path) -> None:
    write_lines(folder / "raw" / "Y_ids.txt", ["7", "8", "7"])
    with pytest.raises(BadFile, match=r"Y_ids\.txt, line 3: label key '7' .* line 1"):
        opened(folder)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("4 0", "query row 4 is out of range: train has 4 queries, rows 0 to 3"),
        ("-1 0", "query row -1 is out of range"),
        ("0 3", "label row 3 is out of range: there are 3 labels"),
        ("0", "two whole numbers"),
        ("0 1 2", "two whole numbers"),
        ("0 x", "two whole numbers"),
    ],
)
def test_a_filter_line_that_cannot_be_is_named(folder: Path, line: str, problem: str) -> None:
    write_lines(folder / "filter_labels_train.txt", ["0 0", line])
    with pytest.raises(BadFile, match=rf"filter_labels_train\.txt, line 2: .*{problem}"):
        opened(folder)


def test_two_filter_files_for_one_split_are_refused(folder: Path) -> None:
    shutil.copy(folder / "filter_labels_test.txt", folder / "tst_filter_labels.txt")
    with pytest.raises(BadFile, match=r"tst_filter_labels\.txt: stands beside filter_labels_test\.txt"):
        opened(folder)


def test_texts_beside_the_folder_raw_are_not_taken_for_those_in_it(folder: Path) -> None:
    before = open_dataset(folder)
    for name in ("Y.txt", "trn_X.txt", "lbl.raw.txt"):
        (folder / name).write_text("another text\n")
    after = open_dataset(folder)
    assert after.fingerprint == before.fingerprint and list(after.labels.texts) == list(before.labels.texts)
