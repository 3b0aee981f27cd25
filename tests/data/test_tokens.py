import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from umpteen.data import tokens
from umpteen.data.prepared import own_cache
from umpteen.data.texts import Texts
from umpteen.data.tokens import JoinedTokens, TokenTable, segments, tokenise
from umpteen.errors import NotSaved
from umpteen.files.progress import Advance, silent

CHUNK = 7
TEXTS = [" ".join(f"w{row * step % 41}" for step in range(row % 6)) for row in range(50)] + [
    "",
    "图书馆 ümlaut",
    "w1 w2",
]


class Words:
    """White space divides; a word's id is its checksum. Counts the texts it was given."""

    def __init__(self, vocabulary_size: int = 1000) -> None:
        self.fingerprint = f"words {vocabulary_size}"
        self.vocabulary_size = vocabulary_size
        self.texts = 0

    def __call__(self, texts: list[str]) -> list[list[int]]:
        self.texts += len(texts)
        return [[crc32(word.encode()) % self.vocabulary_size for word in text.split()] for text in texts]


def rows_of(table: TokenTable) -> list[list[int]]:
    return [table.ids[start:end].tolist() for start, end in zip(table.starts, table.ends, strict=True)]


def on_disk(texts: Texts, cache: Path, tokenizer: Words | None = None, progress: Advance = silent) -> TokenTable:
    with own_cache(cache):
        return tokenise(texts, tokenizer or Words(), progress)


@pytest.fixture(autouse=True)
def small_chunks_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "CHUNK", CHUNK)
    monkeypatch.setattr(tokens, "SMALL", 0)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.parametrize("vocabulary_size", [1000, 1 << 16, (1 << 16) + 1, 250_000])
def test_a_table_on_disk_equals_the_tokenizer_row_by_row(tmp_path: Path, vocabulary_size: int) -> None:
    tokenizer = Words(vocabulary_size)
    table = on_disk(Texts.of(TEXTS), tmp_path, tokenizer)
    assert rows_of(table) == tokenizer(TEXTS)
    assert table.ids.dtype == (np.uint16 if vocabulary_size <= 1 << 16 else np.int32)
    assert table.lengths.tolist() == [len(text.split()) for text in TEXTS]


def test_few_texts_leave_nothing_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SMALL", len(TEXTS) + 1)
    table = on_disk(Texts.of(TEXTS).take([3, 1]), tmp_path, tokenizer := Words())
    assert rows_of(table) == Words()([TEXTS[3], TEXTS[1]])
    assert tokenizer.texts == 2
    assert list(tmp_path.iterdir()) == []


def test_views_of_one_whole_are_tokenised_once_together(tmp_path: Path) -> None:
    whole, tokenizer = Texts.of(TEXTS), Words()
    for rows in ([0, 5, 9], [9, 9, 1], []):
        view = on_disk(whole.take(rows), tmp_path, tokenizer)
        assert rows_of(view) == Words()([TEXTS[row] for row in rows])
    assert tokenizer.texts == len(TEXTS)


def test_long_texts_make_chunks_of_fewer_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "CHUNK_BYTES", 4)
    monkeypatch.setattr(tokens, "CHUNK", 3)
    seen: list[int] = []
    texts = Texts.of(["ab", "ab", "longer than a chunk", "", "", "a", "abcd", "a"])
    table = on_disk(texts, tmp_path, progress=lambda done, total: seen.append(done))
    assert seen == [0, 2, 3, 6, 7, 8]
    assert rows_of(table) == Words()(list(texts))


def test_other_texts_and_other_tokenizers_have_tables_of_their_own(tmp_path: Path) -> None:
    on_disk(Texts.of(TEXTS), tmp_path)
    other_texts = [*TEXTS[:-1], "w2 w1"]
    assert rows_of(on_disk(Texts.of(other_texts), tmp_path)) == Words()(other_texts)
    assert rows_of(on_disk(Texts.of(TEXTS), tmp_path, Words(999))) == Words(999)(TEXTS)


def test_texts_without_a_single_token_make_a_table(tmp_path: Path) -> None:
    for _ in range(2):
        ids, offsets = on_disk(Texts.of(["", " "]), tmp_path).batch(np.array([1, 0]))
        assert ids.tolist() == [] and offsets.tolist() == [0, 0, 0]


class Killed(Words):
    def __call__(self, texts: list[str]) -> list[list[int]]:
        if self.texts == 3 * CHUNK:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(texts)


def tokenise_until_killed(folder: Path) -> None:
    tokens.CHUNK, tokens.SMALL = CHUNK, 0  # a process of its own
    on_disk(Texts.of(TEXTS), folder, Killed())


def test_a_process_killed_midway_is_resumed_where_it_was(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=tokenise_until_killed, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    table = on_disk(Texts.of(TEXTS), tmp_path, tokenizer := Words())
    assert rows_of(table) == Words()(TEXTS)
    assert tokenizer.texts == len(TEXTS) - 3 * CHUNK


@pytest.mark.parametrize("writes", [0, 1, 6, 9, 15])
def test_whatever_write_is_cut_short_the_resumed_table_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Each of 8 chunks appends ids, then lengths: the write after `writes` good ones stops halfway."""
    append, done = tokens._append, 0

    def cut_short(file: BinaryIO, values: NDArray[Any]) -> None:
        nonlocal done
        if done == writes:
            file.write(values.tobytes()[: values.nbytes // 2])
            file.flush()
            raise KeyboardInterrupt
        done += 1
        append(file, values)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tokens, "_append", cut_short)
        on_disk(Texts.of(TEXTS), tmp_path)
    table = on_disk(Texts.of(TEXTS), tmp_path, tokenizer := Words())
    assert rows_of(table) == Words()(TEXTS)
    whole, half = divmod(writes, 2)
    left = len(TEXTS) - whole * CHUNK
    assert tokenizer.texts == left - half * (min(CHUNK, left) // 2)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\0\0\0")


@pytest.mark.parametrize("name", [tokens.IDS_FILE, tokens.LENGTHS_FILE])
@pytest.mark.parametrize("damage", [shorten, lengthen, Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_a_damaged_table_is_built_again(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    on_disk(Texts.of(TEXTS), tmp_path)
    damage(only(tmp_path, f"tokens/*/{name}"))
    assert rows_of(on_disk(Texts.of(TEXTS), tmp_path)) == Words()(TEXTS)
    on_disk(Texts.of(TEXTS), tmp_path, tokenizer := Words())
    assert tokenizer.texts == 0


def test_two_at_once_share_the_work_of_one(tmp_path: Path) -> None:
    tokenizer, tables = Words(), []
    workers = [
        threading.Thread(target=lambda: tables.append(on_disk(Texts.of(TEXTS), tmp_path, tokenizer))) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [rows_of(table) for table in tables] == [Words()(TEXTS)] * 4
    assert tokenizer.texts == len(TEXTS)


def test_a_full_disk_is_reported_and_what_was_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, done = tokens._append, 0

    def full(file: BinaryIO, values: NDArray[Any]) -> None:
        nonlocal done
        done += 1
        if done > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(file, values)

    with monkeypatch.context() as patched, pytest.raises(NotSaved, match="No space left"):
        patched.setattr(tokens, "_append", full)
        on_disk(Texts.of(TEXTS), tmp_path)
    on_disk(Texts.of(TEXTS), tmp_path, tokenizer := Words())
    assert tokenizer.texts == len(TEXTS) - 3 * CHUNK


def test_progress_rises_to_the_whole_and_starts_where_it_resumes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def stop_later(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 4 * CHUNK and seen.count((done, total)) == 1:
            raise KeyboardInterrupt

    for _ in range(2):
        try:
            on_disk(Texts.of(TEXTS), tmp_path, progress=stop_later)
        except KeyboardInterrupt:
            continue
    total = len(TEXTS)
    first = [(start, total) for start in range(0, 4 * CHUNK + 1, CHUNK)]
    assert seen == [*first, *((start, total) for start in range(4 * CHUNK, total, CHUNK)), (total, total)]


RAGGED = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=30)


@given(RAGGED, st.data())
def test_a_batch_is_its_rows_one_after_the_other(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10) if rows else st.just([]))
    ids, offsets = TokenTable.of(rows, 4).batch(np.array(chosen, dtype=np.int64))
    assert ids.tolist() == [token for row in chosen for token in rows[row]]
    assert offsets.tolist() == np.cumsum([0, *(len(rows[row]) for row in chosen)]).tolist()


def check_distinct(rows: list[list[int]]) -> None:
    table, positions = TokenTable.of(rows, 4).distinct()
    numbered: dict[tuple[int, ...], int] = {}
    assert positions.tolist() == [numbered.setdefault(tuple(row), len(numbered)) for row in rows]
    assert rows_of(table) == [list(row) for row in numbered]


@given(RAGGED)
def test_distinct_rows_stand_in_order_of_first_appearance(rows: list[list[int]]) -> None:
    check_distinct(rows)


def test_a_view_of_a_view_keeps_its_rows() -> None:
    table = TokenTable.of([[1], [2, 2], [], [3]], 4)
    view = table.take(np.array([3, 1, 0])).take(np.array([True, False, True]))
    assert rows_of(view) == [[3], [1]]
    assert len(view) == 2 and view.lengths.tolist() == [1, 1]


def test_tables_follow_each_other_and_joined_ones_part_by_part() -> None:
    one, two = TokenTable.of([[1, 2], [], [3]], 70_000), TokenTable.of([[4], [5, 6, 7]], 300)
    both = one.followed_by(two)
    assert [both.batch(np.array([row]))[0].tolist() for row in range(5)] == [[1, 2], [], [3], [4], [5, 6, 7]]
    joined = JoinedTokens([one, one.take(np.array([2, 0, 1]))]).followed_by(JoinedTokens([two, two]))
    parts = [list(segments(*joined.batch(np.array([row])), 2)) for row in range(5)]
    assert [[ids.tolist() for ids, _ in part] for part in parts] == [
        [[1, 2], [3]],
        [[], [1, 2]],
        [[3], []],
        [[4], [4]],
        [[5, 6, 7], [5, 6, 7]],
    ]
    assert joined.lengths.tolist() == [4, 3, 2, 3, 7]
    distinct, places = joined.take(np.array([1, 0, 1])).distinct()
    assert len(distinct) == 2 and places.tolist() == [0, 1, 0]
