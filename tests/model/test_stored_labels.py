"""Labels open without being read, and are the ones that were written."""

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_catalogue import LABELS, alter, entries

from miniature import files_of
from umpteen.data.labels import LabelCatalogue
from umpteen.errors import DamagedModel
from umpteen.model.labels import LiveLabels, StoredLabels, read_labels, write_labels

TEXTS = ["Fish", 'a "quoted" \\ text', "line\nend", "図書館 — book", "Straße", "key", "text: fish", "\x01\u2028"]
KEYS = ["f", 'q"', "n/l", "ключ", "s", "k", "text", "c"]
MANY = [f"label {row} of many" for row in range(20_000)]


def labels_of(folder: Path, keys: list[str], texts: list[str]) -> StoredLabels:
    folder.mkdir(exist_ok=True)
    write_labels(folder, LiveLabels(LabelCatalogue(keys, texts)))
    return StoredLabels(folder / "labels.db", len(keys))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    labels_of(folder, [f"k{row}" for row in range(len(MANY))], MANY)
    return folder


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    found = labels_of(tmp_path, KEYS, TEXTS)
    assert list(found.keys) == KEYS and list(found.texts) == TEXTS
    assert [found.keys[row] for row in range(len(found))] == KEYS and found.texts[-1] == TEXTS[-1]
    assert found.texts[2:4] == TEXTS[2:4]
    assert [found.find(key) for key in KEYS] == list(range(len(KEYS)))
    assert found.find("nobody") is None and found.find("F") is None and found.find("\ud800") is None
    for row in (len(KEYS), -len(KEYS) - 1):
        with pytest.raises(IndexError):
            found.keys[row]


@pytest.mark.parametrize(
    ("search", "rows"),
    [("fish", [0, 6]), ("QUOTED", [1]), ('"quoted"', [1]), ("\\", [1]), ("end", [2]), ("е", []), ("КЛЮЧ", [3]),
     ("STRASSE", [4]), ("straße", [4]), ("key", [5]), ("text", [1, 6]), ("\n", [2]), ("{", []), ("\u2028", [7]),
     ("fish OR key", []), ("fis*", []), ("text : fish", []), ("", list(range(8))), ("\ud800 fish", [])],
)  # fmt: skip
def test_a_search_finds_keys_and_texts_and_nothing_of_the_file_s_own(
    search: str, rows: list[int], tmp_path: Path
) -> None:
    assert list(labels_of(tmp_path, KEYS, TEXTS).matching(search)) == rows


_WORDS = st.text(st.sampled_from('aAßK"\\ \n/{}:,kéÉİıſﬁ\0\ufffeΣςσ'), min_size=1, max_size=6).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(st.lists(_WORDS, min_size=1, max_size=12), _WORDS, st.booleans())
def test_the_file_and_the_memory_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], search: str, of_one: bool
) -> None:
    if of_one:  # else few searches find anything
        search = texts[0][1:5] or search
    keys = [f"{row}" for row in range(len(texts))]
    found = list(labels_of(tmp_path_factory.mktemp("labels"), keys, texts).matching(search))
    assert found == list(LiveLabels(LabelCatalogue(keys, texts)).find_rows(search))


def test_origins_and_retired_labels_are_written_with_the_labels(tmp_path: Path) -> None:
    labels = LiveLabels(LabelCatalogue(["a", "b", "c"], ["x", "y", "z"]), marked=[(1, 2, 1), (2, 1, 0)])
    write_labels(tmp_path, labels)
    found = read_labels(tmp_path, 7, 3)
    assert entries(found) == entries(labels) and found.version == 7 and found.is_retired("b")
    assert [found.entry(row).origin for row in range(3)] == ["trained", "renamed", "added"]


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_opening_reads_next_to_nothing_of_the_file(many: Path) -> None:
    before = bytes_read()
    labels = read_labels(many, 0, len(MANY))
    assert labels.count() == len(labels) == len(MANY)
    assert labels.texts[7777] == MANY[7777] and labels.find("k19999") == 19_999
    assert bytes_read() - before < (many / "labels.db").stat().st_size / 20


def test_a_search_ends_when_nobody_waits_and_disturbs_no_other(many: Path) -> None:
    labels = StoredLabels(many / "labels.db", len(MANY))
    given_up = labels.matching("zz", lambda: True)  # too short for the index: every label would be looked at
    assert list(given_up) == []
    for search, count in (("of many", 20_000), ("19999", 1), ("y", 20_000)):
        assert len(list(labels.matching(search))) == count
    early, late = labels.matching("of many"), labels.matching("label")
    assert next(early) == next(late) == 0
    assert sum(1 for _ in early) == sum(1 for _ in late) == 19_999


def test_threads_share_it(many: Path) -> None:
    labels, failures = StoredLabels(many / "labels.db", len(MANY)), []

    def use(own: int) -> None:
        try:
            for row in range(own, 2000, 7):
                assert labels.texts[row] == MANY[row] and labels.find(f"k{row}") == row
            assert len(list(labels.matching("of many"))) == len(MANY)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_file_that_is_deleted_while_it_is_open_is_read_on(tmp_path: Path) -> None:
    labels = labels_of(tmp_path, KEYS, TEXTS)
    (tmp_path / "labels.db").unlink()
    assert list(labels.keys) == KEYS and list(labels.matching("fish")) == [0, 6]
    with pytest.raises(DamagedModel, match=r"labels\.db: "):
        StoredLabels(tmp_path / "labels.db", len(KEYS))
    assert not (tmp_path / "labels.db").exists()


def test_a_damaged_page_is_told_with_the_file_s_name_when_it_is_asked_for(many: Path, tmp_path: Path) -> None:
    content = bytearray((many / "labels.db").read_bytes())
    place = content.index(MANY[7777].encode())
    page = place - place % 4096
    content[page : page + 4096] = bytes(4096)
    (tmp_path / "labels.db").write_bytes(content)
    labels = StoredLabels(tmp_path / "labels.db", len(MANY))
    assert labels.texts[3] == MANY[3]
    with pytest.raises(DamagedModel, match=r"labels\.db"):
        labels.texts[7777]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW mine AS SELECT * FROM labels",
        "CREATE TRIGGER mine AFTER DELETE ON labels BEGIN DELETE FROM labels; END",
        "DROP TABLE labels",
        "ALTER TABLE labels ADD COLUMN mine TEXT",
        "DELETE FROM labels",
        "DELETE FROM labels WHERE row = 0",
        "DELETE FROM labels WHERE row = 7",
        "INSERT INTO labels VALUES (8, 'more', 'more', 0, 0)",
    ],
)
def test_a_file_of_somebody_else_s_making_is_refused_by_name(statement: str, tmp_path: Path) -> None:
    labels_of(tmp_path, KEYS, TEXTS)
    alter(tmp_path / "labels.db", statement)
    with pytest.raises(DamagedModel, match=r"labels\.db: (was altered|holds the rows)"):
        StoredLabels(tmp_path / "labels.db", len(KEYS))


def test_a_file_without_one_of_its_rows_is_refused_when_that_is_asked_for(tmp_path: Path) -> None:
    labels_of(tmp_path, KEYS, TEXTS)
    alter(tmp_path / "labels.db", "DELETE FROM labels WHERE row = 3")
    labels = StoredLabels(tmp_path / "labels.db", len(KEYS))
    with pytest.raises(DamagedModel, match=r"label 3 is missing in the model's labels\.db"):
        labels.texts[3]


def test_a_cut_or_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    labels_of(tmp_path, KEYS, TEXTS)
    content = (tmp_path / "labels.db").read_bytes()
    for damaged in (content[: len(content) // 3], b"x" * len(content), b""):
        (tmp_path / "labels.db").write_bytes(damaged)
        with pytest.raises(DamagedModel, match=r"labels\.db: (is damaged|was altered|cannot be opened)"):
            list(StoredLabels(tmp_path / "labels.db", len(KEYS)).texts)


def test_the_labels_of_a_model_are_in_its_folder(written: Path) -> None:
    assert list(read_labels(files_of(written), 0, len(LABELS)).keys) == list(LABELS)
