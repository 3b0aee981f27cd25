import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from tests.data.folders import opened, write_dexml, write_json_lines, write_native_folder

from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.formats import native
from umpteen.data.labels import LabelCatalogue, Relevance, Split
from umpteen.data.prepared import Builder, cache_folder, own_cache
from umpteen.data.texts import Texts
from umpteen.errors import BadInput, NotSaved


def numbered(queries: int) -> Dataset:
    """A dataset whose query n says its number, has label n modulo 3 and ignores label n + 1 modulo 3."""
    relevance = Relevance.from_lists([[n % 3] for n in range(queries)], 3)
    filtered = Relevance.from_lists([[(n + 1) % 3] for n in range(queries)], 3)
    train = Split.of([f"query {n}" for n in range(queries)], relevance, filtered)
    return Dataset.of("numbered", LabelCatalogue("abc", ["ant", "bee", "cat"]), train)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_train_and_validation_partition_the_queries_and_joined_stand_in_file_order(seed: int) -> None:
    whole = numbered(101)
    parted = whole.with_validation(0.1, seed)
    assert parted.validation is not None and len(parted.validation) == 10
    assert sorted([*parted.train.texts, *parted.validation.texts]) == sorted(whole.train.texts)
    for split in (parted.train, parted.validation):
        for query, text in enumerate(split.texts):
            number = int(text.split()[1])
            assert split.relevance.of(query).tolist() == [number % 3]
            assert split.filtered.of(query).tolist() == [(number + 1) % 3]
    assert parted.with_validation_in_train() == whole


def test_validation_is_drawn_from_queries_with_labels_to_find() -> None:
    relevance = Relevance.from_lists([[0] if n % 20 == 0 else [] for n in range(200)], 1)
    train = Split.of([f"query {n}" for n in range(200)], relevance, Relevance.empty(200, 1))
    for seed in range(5):
        parted = Dataset.of("sparse", LabelCatalogue("a", ["ant"]), train).with_validation(0.2, seed)
        assert parted.validation is not None and parted.validation.relevance.pairs == len(parted.validation) == 2
        assert len(parted.train) == 198


def test_the_seed_alone_decides_who_validates() -> None:
    first, again, other = (numbered(101).with_validation(0.2, seed).validation for seed in (5, 5, 6))
    assert first == again and first != other


def test_validation_has_at_least_one_query() -> None:
    parted = numbered(3).with_validation(0.01, 0)
    assert parted.validation is not None and (len(parted.train), len(parted.validation)) == (2, 1)


def test_a_dataset_of_one_query_cannot_be_parted() -> None:
    with pytest.raises(BadInput, match="leave none to train on"):
        numbered(1).with_validation(0.5, 0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(BadInput, match="fraction"):
        numbered(10).with_validation(fraction, 0)


def test_a_validation_split_the_dataset_brings_is_kept(tmp_path: Path) -> None:
    write_native_folder(tmp_path / "set")
    write_json_lines(tmp_path / "set" / "validation.jsonl", [{"text": "held out", "labels": ["税"]}])
    dataset = opened(tmp_path / "set")
    assert dataset.with_validation(0.5, 0) is dataset
    assert dataset.validation is not None and list(dataset.validation.texts) == ["held out"]
    joined = dataset.with_validation_in_train()
    assert joined.validation is None
    assert list(joined.train.texts) == [*dataset.train.texts, "held out"]
    assert joined.train.relevance.of(4).tolist() == [2]
    assert joined.train.texts.whole() is dataset.train.texts.whole()


def test_without_validation_there_is_nothing_to_join() -> None:
    dataset = numbered(4)
    assert dataset.with_validation_in_train() is dataset


def test_splits_held_apart_in_memory_join_one_after_the_other() -> None:
    one, other = numbered(3).train, numbered(2).train
    assert list(one.join(other).texts) == ["query 0", "query 1", "query 2", "query 0", "query 1"]


def test_a_split_whose_parts_differ_in_length_is_refused() -> None:
    with pytest.raises(BadInput, match=r"1 query texts, 2 rows"):
        Split(Texts.of(["a"]), Relevance.empty(2, 3), Relevance.empty(2, 3))


def test_a_split_over_other_labels_is_refused() -> None:
    split = Split.of(["a"], Relevance.empty(1, 3))
    with pytest.raises(BadInput, match="test knows 3 labels but the catalogue has 1"):
        Dataset.of("set", LabelCatalogue(["x"], ["y"]), Split.of(["a"], Relevance.empty(1, 1)), test=split)


def test_all_splits_are_views_of_one_whole(tmp_path: Path) -> None:
    dataset = opened(write_dexml(tmp_path / "set"))
    assert dataset.test is not None
    assert dataset.train.texts.whole() is dataset.test.texts.whole()
    assert np.array_equal(dataset.test.texts.rows, [4, 5])


def test_a_second_opening_reads_no_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_dexml(tmp_path / "set")
    first = opened(folder)
    monkeypatch.setattr("umpteen.data.formats.xc_repository.read", None)
    assert opened(folder) == first


@pytest.mark.parametrize("replaced", [False, True])
def test_a_source_file_that_was_changed_is_read_again_even_if_its_size_and_time_are_the_same(
    replaced: bool, tmp_path: Path
) -> None:
    folder = write_native_folder(tmp_path / "set")
    before = opened(folder)
    path = folder / "train.jsonl"
    times, text = path.stat(), path.read_text(encoding="utf-8")
    if replaced:
        path.unlink()
    path.write_text(text.replace("combining", "connected"), encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    after = opened(folder)
    assert after.fingerprint != before.fingerprint and "connected" in after.train.texts[3]


def test_a_failed_reading_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    folder = write_native_folder(tmp_path / "set")
    (folder / "test.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(BadInput):
        opened(folder)
    assert [path for path in (tmp_path / "cache" / "datasets").iterdir() if path.suffix != ".lock"] == []


def test_those_who_open_a_dataset_at_once_have_it_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = write_native_folder(tmp_path / "set"), native.read
    readers: list[Path] = []
    first_reads, second_reads = Event(), Event()

    def slow_read(source: Path, into: Builder) -> None:
        readers.append(source)
        (second_reads if first_reads.is_set() else first_reads).set()
        second_reads.wait(0.5)  # as long as another might need to begin
        real(source, into)

    monkeypatch.setattr(native, "read", slow_read)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(opened, folder)
        assert first_reads.wait(60)
        second = pool.submit(opened, folder)
        assert first.result() == second.result()
    assert len(readers) == 1


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder", encoding="utf-8")
    with pytest.raises(NotSaved, match=r"cache.*UMPTEEN_CACHE"):
        opened(write_native_folder(tmp_path / "set"))


def test_progress_goes_up_to_all_bytes(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    open_dataset(write_native_folder(tmp_path / "set"), cache=tmp_path / "c", progress=lambda *call: calls.append(call))
    total = sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
    assert calls == sorted(calls) and calls[-1] == (total, total)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("UMPTEEN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "umpteen"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "umpteen"
    monkeypatch.setenv("UMPTEEN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"


def test_a_cache_of_its_own_is_that_of_one_thread(tmp_path: Path) -> None:
    usual = cache_folder()
    with ThreadPoolExecutor(1) as other, ExitStack() as theirs:
        with own_cache(tmp_path / "mine"):
            assert other.submit(cache_folder).result() == usual
            other.submit(theirs.enter_context, own_cache(tmp_path / "theirs")).result()
            assert cache_folder() == tmp_path / "mine"
        assert cache_folder() == usual and other.submit(cache_folder).result() == tmp_path / "theirs"
        other.submit(theirs.close).result()
        assert other.submit(cache_folder).result() == usual


def test_a_bundled_dataset_is_opened_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umpteen.data.dataset.BUNDLED", tmp_path / "bundled")
    monkeypatch.chdir(tmp_path)
    write_native_folder(tmp_path / "bundled" / "small-set", ".jsonl.gz")
    dataset = open_dataset("small-set", cache=tmp_path / "cache")
    assert dataset.name == "small-set" and len(dataset.train) == 4


def test_a_name_that_is_neither_folder_nor_bundled_is_refused_with_the_bundled_names() -> None:
    with pytest.raises(BadInput, match=r"folder wordnet-noun.*wordnet-nouns"):
        open_dataset("wordnet-noun")


def test_a_folder_in_no_known_format_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello", encoding="utf-8")
    with pytest.raises(BadInput, match=r"(?s)holds: notes\.md.*labels\.jsonl.*Y\.trn\.npz.*lbl\.json\.gz"):
        open_dataset(tmp_path)
