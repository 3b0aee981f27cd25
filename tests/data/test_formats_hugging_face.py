"""Datasets as Hugging Face saves them, written here as it writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from umpteen.data.dataset import open_dataset
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
