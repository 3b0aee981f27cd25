from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.folders import opened, write_dexml, write_json_lines, write_native_folder, write_xc_json

from umpteen.data.dataset import Dataset, write_native
from umpteen.data.labels import LabelCatalogue, Relevance, Split
from umpteen.errors import BadInput, NotSaved

some_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@pytest.mark.parametrize("write", [write_dexml, write_xc_json, write_native_folder])
def test_what_is_written_reads_back_equal(tmp_path: Path, write: object) -> None:
    assert callable(write)
    dataset = opened(write(tmp_path / "a" / "set"))
    write_native(dataset, tmp_path / "b" / "other-name")
    assert opened(tmp_path / "b" / "other-name") == dataset


def test_a_validation_split_is_written_too(tmp_path: Path) -> None:
    dataset = opened(write_dexml(tmp_path / "a" / "set")).with_validation(0.25, 0)
    write_native(dataset, tmp_path / "b" / "set")
    again = opened(tmp_path / "b" / "set")
    assert (again.train, again.validation, again.test) == (dataset.train, dataset.validation, dataset.test)


@settings(max_examples=20, deadline=None)
@given(
    labels=st.dictionaries(some_text, some_text, min_size=1, max_size=4),
    queries=st.lists(
        st.tuples(some_text, st.dictionaries(st.integers(0, 99), st.floats(0, 2**20, width=32), max_size=4)),
        min_size=1,
        max_size=4,
    ),
    name=some_text,
)
def test_any_texts_keys_and_weights_survive(
    tmp_path_factory: pytest.TempPathFactory,
    labels: dict[str, str],
    queries: list[tuple[str, dict[int, float]]],
    name: str,
) -> None:
    rows = [[label % len(labels) for label in pairs] for _, pairs in queries]
    relevance = Relevance.from_lists(rows, len(labels), weights=[list(pairs.values()) for _, pairs in queries])
    split = Split.of([text for text, _ in queries], relevance, Relevance.from_lists([rows[0]] * len(rows), len(labels)))
    dataset = Dataset.of(name, LabelCatalogue(labels.keys(), labels.values()), split, test=split)
    folder = tmp_path_factory.mktemp("round") / "set"
    write_native(dataset, folder)
    assert opened(folder) == dataset


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    dataset = opened(write_dexml(tmp_path / "set"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("dear diary", encoding="utf-8")
    with pytest.raises(BadInput, match="full is there already and not empty"):
        write_native(dataset, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["diary.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_native(opened(write_dexml(tmp_path / "set")), tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["dataset.toml", "labels.jsonl", "test.jsonl", "train.jsonl"]


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(write_dexml(tmp_path / "set"))

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(NotSaved, match="No space left on device"):
        write_native(dataset, tmp_path / "out" / "native", progress=full_disk)
    assert list((tmp_path / "out").iterdir()) == []


def test_plain_pairs_are_written_without_weights_and_graded_ones_briefly(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    records: list[dict[str, object]] = [
        {"text": "plain", "labels": ["10"]},
        {"text": "graded", "labels": ["10", "税"], "weights": [0.1, 1]},
    ]
    write_json_lines(folder / "train.jsonl", records)
    write_native(opened(folder), tmp_path / "out")
    lines = (tmp_path / "out" / "train.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines[0] == '{"text": "plain", "labels": ["10"]}'
    assert lines[1] == '{"text": "graded", "labels": ["10", "税"], "weights": [0.1, 1.0]}'


def test_what_has_come_to_be_there_while_it_was_written_is_left_alone(tmp_path: Path) -> None:
    dataset = opened(write_dexml(tmp_path / "set"))

    def meanwhile(*_: int) -> None:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "diary.txt").write_text("dear diary", encoding="utf-8")

    with pytest.raises(NotSaved, match="new: could not be written"):
        write_native(dataset, tmp_path / "new", progress=meanwhile)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["diary.txt"]
