"""Texts become ragged ids, cut where we say."""

from pathlib import Path

import pytest

from tiny import tiny_tokenizer
from umpteen.encoders.folder import TextTokenizer
from umpteen.errors import BadConfig, BadFile, BadInput

LONG = "law " * 60


@pytest.fixture
def source(tmp_path: Path) -> str:
    return tiny_tokenizer(tmp_path / "tokenizer")


def test_padding_and_truncation_baked_into_the_file_are_not_obeyed(source: str) -> None:
    bare = TextTokenizer.load(source, 50, special_tokens=False)
    assert [len(ids) for ids in bare(["law", "", LONG])] == [1, 0, 50]


def test_special_tokens_count_towards_the_length(source: str) -> None:
    whole = TextTokenizer.load(source, 50, special_tokens=True)
    assert [len(ids) for ids in whole(["law", "", LONG])] == [3, 2, 50]
    assert whole([LONG])[0][0] == 2 and whole([LONG])[0][-1] == 3


def test_every_language_gives_ids_inside_the_vocabulary(source: str) -> None:
    tokenizer = TextTokenizer.load(source, 50, special_tokens=False)
    lists = tokenizer(["Öffentliche Bücherei", "библиотека", "図書館", "مكتبة", "🎻"])
    assert all(lists)
    assert all(0 <= token < tokenizer.vocabulary_size for ids in lists for token in ids)


def test_the_fingerprint_tells_length_and_special_tokens_apart(source: str) -> None:
    kinds = [(50, True), (50, False), (49, True)]
    prints = [TextTokenizer.load(source, length, special_tokens=special).fingerprint for length, special in kinds]
    assert len(set(prints)) == 3
    assert TextTokenizer.load(source, 50, special_tokens=True).fingerprint == prints[0]


def test_a_saved_tokenizer_is_the_same_one(source: str, tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(source, 50, special_tokens=True)
    tokenizer.save(tmp_path / "saved")
    loaded = TextTokenizer.load(tmp_path / "saved", 50, special_tokens=True)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.pad_id == tokenizer.pad_id == 0
    assert loaded.roles == tokenizer.roles


@pytest.mark.parametrize(("length", "special_tokens"), [(0, False), (-1, False), (2, True)])
def test_a_length_without_room_is_refused(source: str, length: int, special_tokens: bool) -> None:
    with pytest.raises(BadConfig, match=f"max_length = {length}"):
        TextTokenizer.load(source, length, special_tokens)


def test_a_broken_tokenizer_file_is_named(source: str) -> None:
    file = Path(source, "tokenizer.json")
    file.write_text(file.read_text()[:100])
    with pytest.raises(BadFile, match=r"tokenizer\.json"):
        TextTokenizer.load(source, 50, special_tokens=True)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        TextTokenizer.load(tmp_path, 50, special_tokens=True)
