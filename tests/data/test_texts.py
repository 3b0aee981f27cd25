from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.folders import MULTILINGUAL

from umpteen.data.texts import Texts, TextsWriter
from umpteen.errors import BadFile, BadInput


def written(folder: Path, texts: list[str]) -> Texts:
    with TextsWriter(folder, "some") as writer:
        for text in texts:
            writer.append(text)
    return Texts.open(folder, "some")


def test_texts_come_back_from_disk_character_by_character(tmp_path: Path) -> None:
    texts = written(tmp_path, MULTILINGUAL)
    assert list(texts) == MULTILINGUAL
    assert [texts[row] for row in range(-2, len(texts))] == [*MULTILINGUAL[-2:], *MULTILINGUAL]


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_characters_survive_in_memory(texts: list[str]) -> None:
    assert list(Texts.of(texts)) == texts


def test_no_texts_at_all_can_be_written_and_opened(tmp_path: Path) -> None:
    assert list(written(tmp_path, [])) == []
    assert list(written(tmp_path, ["", ""])) == ["", ""]


def test_a_view_remembers_its_rows_in_the_whole(tmp_path: Path) -> None:
    texts = written(tmp_path, MULTILINGUAL)
    view = texts.take([4, 1, 3]).take(np.array([2, 0]))
    assert list(view) == [MULTILINGUAL[3], MULTILINGUAL[4]]
    assert view.rows is not None and view.rows.tolist() == [3, 4]
    assert view.whole() is texts and texts.whole() is texts
    assert list(texts[1:3]) == MULTILINGUAL[1:3]
    assert len(texts.take([])) == 0


def test_a_mask_takes_the_rows_where_it_is_true() -> None:
    assert list(Texts.of(["a", "b", "c"]).take(np.array([True, False, True]))) == ["a", "c"]


def test_a_row_beyond_the_end_is_refused() -> None:
    with pytest.raises(IndexError):
        Texts.of(["a"])[1]
    with pytest.raises(IndexError):
        Texts.of(["a"]).take([1])


def test_equal_texts_have_equal_fingerprints_however_they_are_stored(tmp_path: Path) -> None:
    on_disk, in_memory = written(tmp_path, MULTILINGUAL), Texts.of(MULTILINGUAL)
    view = Texts.of(["other", *MULTILINGUAL]).take(np.arange(1, 1 + len(MULTILINGUAL)))
    assert on_disk.fingerprint() == in_memory.fingerprint() == view.fingerprint()
    assert on_disk == in_memory == view


@pytest.mark.parametrize("other", [["ab", "c"], ["abc"], ["a", "bc", ""], ["bc", "a"]])
def test_the_same_bytes_cut_elsewhere_have_another_fingerprint(other: list[str]) -> None:
    assert Texts.of(["a", "bc"]).fingerprint() != Texts.of(other).fingerprint()


def test_views_of_one_whole_join_without_copying() -> None:
    texts = Texts.of(["a", "b", "c", "d"])
    joined = texts.take([2, 3]).followed_by(texts.take([0]))
    assert list(joined) == ["c", "d", "a"] and joined.whole() is texts
    assert list(texts.followed_by(Texts.of(["e"]))) == ["a", "b", "c", "d", "e"]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(BadInput, match=r"character 3 .* U\+D83D"):
        Texts.of(["ok\ud83d"])


def test_a_blob_cut_short_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, MULTILINGUAL)
    blob = tmp_path / "some.txt.bin"
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(BadFile, match=r"some\.txt\.bin.*offsets"):
        Texts.open(tmp_path, "some")


def test_texts_that_were_never_finished_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TextsWriter(tmp_path, "some") as writer:
        writer.append("a")
        raise RuntimeError
    with pytest.raises(BadFile, match="cannot be opened"):
        Texts.open(tmp_path, "some")
