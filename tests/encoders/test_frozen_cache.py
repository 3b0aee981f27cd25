"""Vectors of a frozen transformer lie in the cache: made once, gone on with after a kill, mapped, never another's."""

import multiprocessing
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

import umpteen
from miniature import LABELS, write_recipe
from tiny import WORDS, tiny_transformer
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable
from umpteen.encoders import frozen
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.frozen import FrozenReader
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import NotSaved

TEXTS = Texts.of([f"{word} of the {other}" for word, other in zip(WORDS, WORDS[3:], strict=False)])
CHUNK = 4  # texts, each of six tokens


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_transformer(tmp_path_factory.mktemp("frozen") / "start"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of each test alone, with a record after every few texts."""
    monkeypatch.setenv("UMPTEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(frozen, "CHUNK", 6 * CHUNK)
    return tmp_path / "cache" / "vectors"


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts were encoded for the cache, chunk by chunk."""
    counts: list[int] = []
    encode = frozen.encode_tokens

    def counted(encoder: TransformerEncoder, tokens: TokenTable) -> Tensor:
        counts.append(len(tokens))
        return encode(encoder, tokens)

    monkeypatch.setattr(frozen, "encode_tokens", counted)
    return counts


def reader_of(start: Path) -> FrozenReader:
    return FrozenReader(TransformerEncoder.load(str(start)))


def vectors_of(reader: FrozenReader, texts: Texts = TEXTS) -> NDArray[np.float32]:
    """What the reader gives for texts, by way of the cache."""
    return reader.at((-1 - reader.tokenise(texts).ids).astype(np.int64)).numpy()


def right(reader: FrozenReader, found: NDArray[np.float32]) -> bool:
    return np.allclose(found, encode_texts(reader.encoder, TEXTS).numpy(), atol=1e-5)


def read_and_die(start: Path, cache: str, chunks: int) -> None:
    os.environ["UMPTEEN_CACHE"], frozen.CHUNK = cache, 6 * CHUNK
    left, encode = iter(range(chunks)), frozen.encode_tokens

    def killed(*given: Any) -> Tensor:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(*given)

    frozen.encode_tokens = killed
    vectors_of(reader_of(start))


def killed_after(chunks: int, start: Path) -> None:
    arguments = (start, os.environ["UMPTEEN_CACHE"], chunks)
    process = multiprocessing.get_context("forkserver").Process(target=read_and_die, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_texts_are_read_once_by_whoever_reads_as_this_one_does(start: Path, encoded: list[int]) -> None:
    first = reader_of(start)
    found = vectors_of(first)
    assert right(first, found) and sum(encoded) == len(TEXTS)
    assert (vectors_of(first, TEXTS.take([5, 2])) == found[[5, 2]]).all()  # a view of the same
    assert (vectors_of(reader_of(start)) == found).all() and sum(encoded) == len(TEXTS)


def test_a_reading_that_was_killed_goes_on_where_it_was(
    start: Path, cache: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(2, start)
    found = vectors_of(reader_of(start))
    assert encoded == [len(TEXTS) - 2 * CHUNK]
    assert [path.suffix for path in cache.iterdir() if path.is_dir()] == [""]
    monkeypatch.setenv("UMPTEEN_CACHE", str(cache / "elsewhere"))
    undisturbed = reader_of(start)
    assert (vectors_of(undisturbed) == found).all() and right(undisturbed, found)


def test_another_model_of_the_same_name_is_noticed(start: Path, tmp_path: Path, encoded: list[int]) -> None:
    place = tmp_path / "model"
    shutil.copytree(start, place)
    old = vectors_of(reader_of(place))
    weights = load_file(place / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    other = reader_of(place)
    new = vectors_of(other)
    assert right(other, new) and not np.allclose(new, old, atol=1e-2) and sum(encoded) == 2 * len(TEXTS)


def test_vectors_are_mapped_and_no_second_copy(start: Path, cache: Path) -> None:
    reader = reader_of(start)
    before = vectors_of(reader)
    (kept,) = reader._kept.values()
    assert isinstance(kept, np.memmap) and kept.mode == "r"
    file = np.load(next(cache.glob("*/vectors.npy")), mmap_mode="r+")
    file[3] = 7
    assert (vectors_of(reader)[3] == 7).all() and (vectors_of(reader)[4:] == before[4:]).all()


def cut(file: Path, size: int) -> None:
    os.truncate(file, file.stat().st_size + size if size < 0 else size)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut by a byte": lambda folder: cut(folder / "vectors.npy", -1),
    "cut in half": lambda folder: cut(folder / "vectors.npy", 700),
    "empty": lambda folder: cut(folder / "vectors.npy", 0),
    "no array": lambda folder: (folder / "vectors.npy").write_bytes(b"x" * 10_000),
    "of other texts": lambda folder: np.save(folder / "vectors.npy", np.zeros((3, 32), dtype=np.float32)),
    "gone": lambda folder: (folder / "vectors.npy").unlink(),
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("a file")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_vectors_are_made_anew_and_what_is_no_folder_is_refused_by_name(
    damage: Callable[[Path], object], start: Path, cache: Path
) -> None:
    vectors_of(reader_of(start))
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    damage(folder)
    again = reader_of(start)
    if folder.is_file():
        with pytest.raises(NotSaved, match=re.escape(str(folder))):
            vectors_of(again)
        folder.unlink()
    assert right(again, vectors_of(again))


BROKEN = {name: damage for name, damage in DAMAGES.items() if name != "a file in its place"} | {
    "no record": lambda folder: (folder / "record.json").unlink(),
    "a record cut short": lambda folder: cut(folder / "record.json", 5),
    "a record of more texts": lambda folder: (folder / "record.json").write_text('{"done": 1000}'),
    "a record of nothing": lambda folder: (folder / "record.json").write_text("[]"),
}


@pytest.fixture(scope="module")
def unfinished(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a reading that was killed midway."""
    place = tmp_path_factory.mktemp("unfinished") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMPTEEN_CACHE", str(place))
        killed_after(2, start)
    return place


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN.keys())
def test_a_reading_whose_traces_are_damaged_begins_anew(
    damage: Callable[[Path], object], unfinished: Path, start: Path, cache: Path, encoded: list[int]
) -> None:
    shutil.copytree(unfinished, cache.parent)
    (partial,) = cache.glob("*.partial")
    damage(partial)
    reader = reader_of(start)
    assert right(reader, vectors_of(reader)) and sum(encoded) == len(TEXTS)


@pytest.mark.parametrize("towers", ["separate", "shared"])
def test_training_reads_the_labels_texts_once(towers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[tuple[int, ...]] = Counter()
    forward = TransformerEncoder.forward

    def counted(encoder: TransformerEncoder, ids: Tensor, offsets: Tensor) -> Tensor:
        read.update(tuple(text.tolist()) for text in torch.tensor_split(ids, offsets[1:-1].cpu()))
        return forward(encoder, ids, offsets)

    monkeypatch.setattr(TransformerEncoder, "forward", counted)
    recipe = write_recipe(tmp_path, "training.epochs=1", kind="sum", towers=towers)
    trained = umpteen.train(recipe, output=tmp_path / "model")
    (reader,) = trained.towers.label.readers
    assert isinstance(reader, FrozenReader)
    labels = [tuple(text) for text in reader.encoder.tokenizer(LABELS)]
    assert {label: read[label] for label in labels} == dict.fromkeys(labels, 1)
    assert set(read.values()) == {1}  # nor any other text


def test_a_text_longer_than_a_chunk_is_one_and_progress_is_told_from_the_start(start: Path, encoded: list[int]) -> None:
    told: list[tuple[int, int]] = []
    reader_of(start).tokenise(Texts.of(["dog " * 50, "dog", "tree"]), lambda done, total: told.append((done, total)))
    assert encoded == [1, 2] and told == [(0, 3), (1, 3), (3, 3)]
