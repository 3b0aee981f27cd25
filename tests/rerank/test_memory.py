"""Training texts that vote: against plain loops, through a folder, and without the text that asks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.data.texts import Texts
from umpteen.errors import BadInput
from umpteen.rerank.memory import Memory
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
