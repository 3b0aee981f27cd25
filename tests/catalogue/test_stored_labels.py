"""Labels open without being read, and are the ones that were written."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_catalogue import LABELS

from umpteen.catalogue import stored
from umpteen.catalogue.live import LiveLabels
from umpteen.catalogue.stored import StoredLabels, read_labels, write_labels
from umpteen.data.labels import LabelCatalogue
from umpteen.errors import DamagedModel

TEXTS = ["Fish", 'a "quoted" \\ text', "line\nend", "図書館 — book", "Straße", "key", "text: fish", "\x01\u2028"]
KEYS = ["f", 'q"', "n/l", "ключ", "s", "k", "text", "c"]


def labels_of(folder: Path, keys: list[str], texts: list[str]) -> StoredLabels:
    folder.mkdir(exist_ok=True)
    write_labels(folder, LiveLabels(LabelCatalogue(keys, texts)))
    return StoredLabels(folder)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    found = labels_of(tmp_path, KEYS, TEXTS)
    assert list(found.keys) == KEYS and list(found.texts) == TEXTS
    assert [found.keys[row] for row in range(len(found))] == KEYS and found.texts[-1] == TEXTS[-1]
    assert found.texts[2:4] == TEXTS[2:4] and found.keys == KEYS
    assert [found.find(key) for key in KEYS] == list(range(len(KEYS)))
    assert found.find("nobody") is None
    with pytest.raises(IndexError):
        found.keys[len(KEYS)]
    written = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_bytes().split(b"\n")[:-1]]
    assert written == [{"key": key, "text": text} for key, text in zip(KEYS, TEXTS, strict=True)]


def test_keys_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_hash", lambda key: len(key) % 2)
    keys = [f"{number}" for number in range(200)]
    found = labels_of(tmp_path, keys, keys)
    assert [found.find(key) for key in keys] == list(range(200))
    assert found.find("200") is None


@pytest.mark.parametrize(
    ("search", "rows"),
    [("fish", [0, 6]), ("QUOTED", [1]), ('"quoted"', [1]), ("\\", [1]), ("end", [2]), ("е", []), ("КЛЮЧ", [3]),
     ("STRASSE", [4]), ("straße", [4]), ("key", [5]), ("text", [1, 6]), ("\n", [2]), ("{", []), ("\u2028", [7])],
)  # fmt: skip
def test_a_search_finds_keys_and_texts_and_nothing_of_the_file_s_own(
    search: str, rows: list[int], tmp_path: Path
) -> None:
    assert list(labels_of(tmp_path, KEYS, TEXTS).matching(search)) == rows


_WORDS = st.text(st.sampled_from('aAßK"\\ \n/{}:,kéÉİı'), min_size=1, max_size=5).filter(str.strip)


@settings(max_examples=40, deadline=None)
@given(st.lists(_WORDS, min_size=1, max_size=12), _WORDS)
def test_the_file_and_the_memory_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], search: str
) -> None:
    keys = [f"{row}" for row in range(len(texts))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_LINES_AT_A_TIME", 3)
        found = list(labels_of(tmp_path_factory.mktemp("labels"), keys, texts).matching(search))
    assert found == list(LabelCatalogue(keys, texts).matching(search))


def test_origins_and_retired_labels_are_written_with_the_labels(tmp_path: Path) -> None:
    labels = LiveLabels(
        LabelCatalogue(["a", "b", "c"], ["x", "y", "z"]),
        active=np.array([True, False, True]),
        origins=np.array([0, 2, 1], dtype=np.uint8),
    )
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path, 7) == labels and read_labels(tmp_path, 7).version == 7
    lines = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert lines[0] == {"key": "a", "text": "x"}
    assert lines[1] == {"key": "b", "text": "y", "origin": "renamed", "retired": True}
    assert lines[2] == {"key": "c", "text": "z", "origin": "added"}


def test_opening_reads_no_label(written: Path) -> None:
    with mock.patch.object(stored.json, "loads", side_effect=AssertionError("a line was parsed")):
        labels = read_labels(written, 0)
        assert labels.count() == len(labels) == len(LABELS)
    assert list(labels.keys) == list(LABELS)


def test_a_damaged_line_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    labels = labels_of(tmp_path, KEYS, TEXTS)
    content = bytearray((tmp_path / "labels.jsonl").read_bytes())
    content[content.index(b"Stra")] = 0x01
    (tmp_path / "labels.jsonl").write_bytes(content)
    labels = StoredLabels(tmp_path)
    assert labels.texts[0] == "Fish"
    with pytest.raises(DamagedModel, match=r"labels\.jsonl, line 5: is damaged"):
        labels.texts[4]


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    labels_of(tmp_path, KEYS, TEXTS)
    with (tmp_path / "labels.jsonl").open("ab") as file:
        file.write(b'{"key": "x", "text": "y"}\n')
    with pytest.raises(DamagedModel, match=r"labels\.jsonl: is not what labels\.offsets\.npy"):
        StoredLabels(tmp_path)
