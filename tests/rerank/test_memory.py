"""Training texts that vote: against plain loops, through a folder, by an index, and without the text that asks."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.data.texts import Texts
from umpteen.errors import BadInput, DamagedModel
from umpteen.rerank.memory import INDEX_FILE, Memory
from umpteen.search.certificate import recalls
from umpteen.search.index import Effort
from umpteen.search.ranking import NO_LABEL, values_at

TEXTS, LABELS, QUERIES = 23, 9, 7


def unit(count: int, seed: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 6, generator=numbers)).half().float()


@pytest.fixture
def memory() -> Memory:
    chance = np.random.default_rng(0)
    relevant = csr_array((chance.random((TEXTS, LABELS)) < 0.25).astype(np.float32))
    return Memory.of(unit(TEXTS, 1), relevant)


def by_loops(memory: Memory, queries: torch.Tensor, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    """Every neighbour, one after the other."""
    votes = np.zeros(rows.shape)
    labels = memory.labels.toarray()
    for query, vector in enumerate(queries.double()):
        scores = memory.vectors.astype(np.float64) @ vector.numpy()
        best = np.argsort(-scores)[:5]
        weights = np.exp(scores[best] / 0.2)
        weights /= weights.sum()
        for place, row in enumerate(rows[query]):
            if row != NO_LABEL:
                votes[query, place] = sum(w * labels[text, row] for w, text in zip(weights, best, strict=True))
    return votes


def test_votes_are_those_of_the_nearest_texts(memory: Memory) -> None:
    queries = unit(QUERIES, 2)
    rows = np.stack([np.random.default_rng(at).permutation(LABELS)[:4] for at in range(QUERIES)]).astype(np.int32)
    rows[2, 1] = NO_LABEL
    votes = memory.votes(memory.nearest(queries, 5), rows, 0.2)
    np.testing.assert_allclose(votes, by_loops(memory, queries, rows), atol=1e-5)
    assert votes.max() <= 1 + 1e-6 and votes[2, 1] == 0


def test_a_remembered_text_gets_the_votes_of_a_memory_without_it(memory: Memory) -> None:
    texts = [f"text {row}" for row in range(TEXTS)]
    texts[7] = texts[3]  # which is remembered twice
    whole = replace(memory, texts=Texts.of(texts))
    rows = np.tile(np.arange(LABELS, dtype=np.int32), (TEXTS + 1, 1))
    asked, queries = [*texts, "a new one"], torch.cat([torch.from_numpy(memory.vectors).float(), unit(1, 5)])
    votes = whole.votes(whole.nearest(queries, 5, whole.same(asked)), rows, 0.2)
    for query, text in enumerate(asked):
        others = [row for row, other in enumerate(texts) if other != text]
        alone = Memory(memory.vectors[others], csr_array(memory.labels[others]))
        expected = by_loops(alone, queries[query : query + 1], rows[:1])
        np.testing.assert_allclose(votes[query : query + 1], expected, atol=1e-5)
    with pytest.raises(BadInput, match="keep_texts=true"):
        memory.same(asked)


def test_a_memory_survives_its_folder_and_knows_nothing_of_later_labels(memory: Memory, tmp_path: Path) -> None:
    memory.save(tmp_path)
    loaded = Memory.load(tmp_path, LABELS)
    queries, rows = unit(QUERIES, 2), np.tile(np.arange(LABELS, dtype=np.int32), (QUERIES, 1))
    expected = memory.votes(memory.nearest(queries, 5), rows, 0.2)
    np.testing.assert_array_equal(loaded.votes(loaded.nearest(queries, 5), rows, 0.2), expected)
    assert loaded.vectors.dtype == np.float16  # as they lie there: no copy is made
    more = loaded.with_labels(LABELS + 2)
    wider = np.concatenate([rows, np.full((QUERIES, 1), LABELS + 1, dtype=np.int32)], axis=1)
    found = more.votes(more.nearest(queries, 5), wider, 0.2)
    np.testing.assert_array_equal(found[:, :-1], expected)
    assert not found[:, -1].any()
    with pytest.raises(ValueError):
        Memory.load(tmp_path, 3)  # fewer labels than it names


def test_a_label_given_with_weight_nought_gets_no_vote() -> None:
    relevant = csr_array(np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float32))
    relevant.data[1] = 0
    assert Memory.of(unit(2, 0), relevant).labels.toarray().tolist() == [[1, 0], [0, 0]]


def test_values_are_found_where_they_are_stored() -> None:
    matrix = csr_array(np.array([[0.0, 2.0, 3.0], [4.0, 0.0, 0.0]], dtype=np.float32))
    rows = np.array([[2, 0, NO_LABEL], [0, 1, 2]], dtype=np.int32)
    np.testing.assert_array_equal(values_at(matrix, rows), [[3, 0, 0], [4, 0, 0]])
    assert not values_at(csr_array((2, 3), dtype=np.float32), rows).any()
    unsorted_and_twice = csr_array((np.array([1.0, 5.0, 2.0], np.float32), [2, 0, 2], [0, 3, 3]), shape=(2, 3))
    np.testing.assert_array_equal(values_at(unsorted_and_twice, rows), [[3, 5, 0], [0, 0, 0]])


@pytest.fixture(scope="module")
def large() -> Memory:
    """Enough texts for an index of several lists, around some centres."""
    numbers = torch.Generator().manual_seed(3)
    vectors = torch.nn.functional.normalize(
        torch.randn(40, 16, generator=numbers).repeat(20, 1) + 0.7 * torch.randn(800, 16, generator=numbers)
    )
    labels = csr_array(
        (np.ones(800, np.float32), np.arange(800, dtype=np.int32) % LABELS, np.arange(801)), (800, LABELS)
    )
    return Memory.of(vectors, labels).with_index(5)


def without_index(memory: Memory) -> Memory:
    return replace(memory, index=None)


def test_an_index_that_looks_at_all_texts_finds_what_exact_search_finds(large: Memory, tmp_path: Path) -> None:
    assert large.index is not None
    large.save(tmp_path)
    every = Memory.load(tmp_path, LABELS)
    assert every.index is not None
    every.index.effort = Effort(5, 10**6, 800)
    queries, rows = large.vectors[:70].astype(np.float32) + 0.1, np.tile(np.arange(LABELS, dtype=np.int32), (70, 1))
    exact, found = without_index(large).nearest(queries, 5), every.nearest(queries, 5)
    np.testing.assert_array_equal(found.rows, exact.rows)
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-5)
    np.testing.assert_allclose(every.votes(found, rows, 0.2), large.votes(exact, rows, 0.2), atol=1e-5)


def test_what_an_index_finds_is_measured_and_stored_with_it(large: Memory, tmp_path: Path) -> None:
    assert large.measured is not None and large.measured["neighbours"] == 5
    low, high = large.measured["recall_interval"]
    assert 0.95 < low <= large.measured["recall"] <= high <= 1
    large.save(tmp_path)
    opened = Memory.load(tmp_path, LABELS)
    assert opened.measured == large.measured and opened.index is not None
    queries = large.vectors.astype(np.float32)
    np.testing.assert_array_equal(opened.nearest(queries, 5).rows, large.nearest(queries, 5).rows)
    assert recalls(opened.nearest(queries, 5), without_index(large).nearest(queries, 5)).mean() > 0.95
    wider = opened.with_labels(LABELS + 1)
    np.testing.assert_array_equal(wider.nearest(queries, 5).rows, large.nearest(queries, 5).rows)


def test_texts_that_are_left_out_are_left_out_of_an_exact_search(large: Memory) -> None:
    own = csr_array((np.ones(800), np.arange(800), np.arange(801)), shape=(800, 800))
    queries = large.vectors.astype(np.float32)
    exact = without_index(large).nearest(queries, 5, own)
    np.testing.assert_array_equal(large.nearest(queries, 5, own).rows, exact.rows)


def test_without_faiss_exact_search_stands_in(large: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large.save(tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)
    for memory in (Memory.load(tmp_path, LABELS), without_index(large).with_index(5)):
        assert memory.index is None
        queries = large.vectors[:9].astype(np.float32)
        np.testing.assert_array_equal(memory.nearest(queries, 5).rows, without_index(large).nearest(queries, 5).rows)


def test_an_index_that_is_cut_or_says_nothing_of_itself_is_refused(large: Memory, tmp_path: Path) -> None:
    large.save(tmp_path)
    (tmp_path / INDEX_FILE).write_text("{}")
    with pytest.raises(LookupError):  # which the ranker around it tells of
        Memory.load(tmp_path, LABELS)
    large.save(tmp_path)
    os.truncate(tmp_path / "index.faiss", 1000)
    with pytest.raises(DamagedModel, match=r"index\.faiss"):
        Memory.load(tmp_path, LABELS)
