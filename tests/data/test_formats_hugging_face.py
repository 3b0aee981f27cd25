"""Datasets as Hugging Face saves them, written here as it writes them, and its own objects in memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.data.folders import write_json_lines, write_native_folder

import umpteen
from miniature import command, refused
from umpteen.data.dataset import given_dataset, open_dataset
from umpteen.data.prepared import cache_folder
from umpteen.data.texts import class_names
from umpteen.errors import BadFile, BadInput

pa = pytest.importorskip("pyarrow")
NAMED = {"names": ["fish", "tax", "law"], "_type": "ClassLabel"}


def save(folder: Path, columns: dict[str, list[Any]], features: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    table = pa.table(columns)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as to,
    ):
        to.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_indices_data_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def test_classes_are_named_and_splits_found(tmp_path: Path) -> None:
    features = {"sentence": {"dtype": "string", "_type": "Value"}, "label": NAMED}
    save(tmp_path / "all" / "train", {"sentence": ["a", "b", "a"], "label": [0, 1, 2]}, features)
    save(tmp_path / "all" / "dev", {"sentence": ["c", "d"], "label": [0, -1]}, features)
    (tmp_path / "all" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "dev", "extra"]}))
    dataset = open_dataset(tmp_path / "all")
    assert dataset.labels.keys == ["fish", "tax", "law"] and dataset.test is None and not dataset.is_one_file
    assert list(dataset.train.texts) == ["a", "b"] and dataset.train.relevance.of(0).tolist() == [0, 2]
    assert dataset.told == (
        "texts are in 'sentence', labels in 'label'",
        "1 rows repeat a text; their labels are merged",
    )
    assert dataset.validation is not None and dataset.validation.relevance.of(1).tolist() == []


@pytest.mark.parametrize(
    "kind", [{"feature": NAMED, "_type": "Sequence"}, {"feature": NAMED, "_type": "List"}, [NAMED]]
)
def test_a_folder_of_rows_is_train_and_lists_of_classes_are_named(kind: Any, tmp_path: Path) -> None:
    save(tmp_path / "one", {"text": ["a", "b"], "other": ["x", "y"], "tags": [[0, 2], [1]]}, {"tags": kind})
    dataset = open_dataset(f"{tmp_path / 'one'}?text=other&labels=tags")
    assert dataset.is_one_file and list(dataset.train.texts) == ["x", "y"]
    assert [dataset.labels.keys[row] for row in dataset.train.relevance.of(0)] == ["fish", "law"]


def test_other_names_of_classes_are_noticed(tmp_path: Path) -> None:
    folder = save(tmp_path / "one", {"text": ["a", "b"], "label": [0, 1]}, {"label": NAMED})
    assert open_dataset(folder).labels.keys == ["fish", "tax"]
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": {"names": ["dog", "cat"]}}}))
    assert open_dataset(folder).labels.keys == ["dog", "cat"]


@pytest.mark.parametrize("name", ["gone.arrow", "../outside.arrow", "", None, 7])
def test_only_files_beside_it_are_read(name: Any, tmp_path: Path) -> None:
    folder = save(tmp_path / "one", {"text": ["a"], "label": ["x"]}, {})
    (folder / "data-00000-of-00001.arrow").rename(tmp_path / "outside.arrow")
    for files in ([{"filename": name}], [name], name):
        (folder / "state.json").write_text(json.dumps({"_data_files": files}))
        with pytest.raises(BadFile, match=r"state\.json.*which is no file beside it; save the dataset again"):
            open_dataset(folder)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "one", {"text": ["a"], "label": ["x"]}, {})
    (folder / "data-00000-of-00001.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(BadInput, match=r"00001\.arrow, line 1: is no whole Arrow file"):
        open_dataset(folder)
    (folder / "state.json").write_text(json.dumps({"_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(BadInput, match="flatten_indices"):
        open_dataset(folder)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["one"]}))
    with pytest.raises(BadInput, match="has no split called train; it has 'one'"):
        open_dataset(tmp_path)


TABLE = {"body": ["a", "b", "a"], "topic": [0, 1, 2], "tags": [[0, 2], [], [1]]}


def in_memory(**features: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=NAMED["names"])
    kinds = {"body": datasets.Value("string"), "topic": names, "tags": [names], **features}
    return datasets.Dataset.from_dict(TABLE, features=datasets.Features(kinds))


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_classes_in_a_column_are_keys_by_their_names(form: str | None) -> None:
    rows = in_memory().with_format(form)
    if not hasattr(rows["topic"], "features"):
        pytest.skip("columns know what they hold since datasets 4.0")
    named = given_dataset(TABLE["body"], rows["topic"])
    assert named.labels.keys == ["fish", "tax", "law"] and list(named.train.texts) == ["a", "b"]
    listed = given_dataset(rows["body"], rows["tags"])
    assert [listed.labels.keys[row] for row in listed.train.relevance.of(0)] == ["fish", "law", "tax"]


def test_a_dataset_in_memory_is_read_as_if_it_had_been_saved(tmp_path: Path) -> None:
    rows = in_memory()
    splits = pytest.importorskip("datasets").DatasetDict({"train": rows, "dev": rows.select([2, 1])})
    splits.save_to_disk(tmp_path / "saved")
    opened = open_dataset(splits)
    assert replace(opened, name="saved") == open_dataset(tmp_path / "saved")
    assert opened.validation is not None and list(opened.validation.texts) == ["a", "b"]
    assert open_dataset(rows).is_one_file and open_dataset(rows).train == opened.train
    assert not any((cache_folder() / "datasets").glob("dataset-*"))  # which nobody could find again


def test_what_is_written_for_hugging_face_reads_back_and_has_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = write_native_folder(tmp_path / "set")
    records: list[dict[str, object]] = [
        {"text": "plain", "labels": ["10"], "ignore": ["税"]},  # which is known as a label only from the next row on
        {"text": "graded", "labels": ["10", "税"], "weights": [0.1, 1]},
    ]
    write_json_lines(folder / "train.jsonl", records)
    assert command("data", "convert", folder, tmp_path / "out", "--to", "hugging-face").code == 0
    found = datasets.load_from_disk(str(tmp_path / "out"))["train"]
    dataset, again = open_dataset(folder), open_dataset(tmp_path / "out")
    assert class_names(found.features["labels"]) == dataset.labels.keys
    assert list(found["label_texts"]) == 2 * [[dataset.labels.texts[dataset.labels.row(key)] for key in ("10", "税")]]
    assert [again.labels.texts[again.labels.row(key)] for key in ("10", "税")] == found["label_texts"][1]
    assert list(again.train.texts) == ["plain", "graded"] and again.test is not None
    assert again.train.relevance.weights_of(1).tolist() == dataset.train.relevance.weights_of(1).tolist()
    assert [again.labels.keys[row] for row in again.train.filtered.of(0)] == ["税"]
    refused(command("data", "convert", folder, tmp_path / "out", "--to", "hugging-face"), "exists and is not empty")


def test_labels_are_asked_for_unless_a_dataset_has_them() -> None:
    for texts, meaning in ((["a text"], None), (in_memory(), {"fish": "a fish"})):
        with pytest.raises(BadInput, match="labels are missing; give each text its own"):
            umpteen.fit(texts, label_texts=meaning)
