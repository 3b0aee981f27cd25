"""Every kind of FAISS index finds the largest inner products, whatever the lengths, and after any changes."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from search.index_cases import (
    Truth,
    add,
    change,
    changed,
    clustered,
    over,
    recall,
    remove,
    scores_are_inner_products,
    with_twins,
)
from umpteen.errors import DamagedModel, NotSaved
from umpteen.search.faiss import FLAT, HNSW, IVFPQ, SQ, STRUCTURE, FaissIndex
from umpteen.search.index import Effort, LiveVectors
from umpteen.search.ranking import NO_LABEL, Ranking

COUNT = 3000
EFFORTS = {
    FLAT: Effort(10, 0, 10),
    HNSW: Effort(10, 400, 20),
    IVFPQ: Effort(10, 40, 400),
    SQ: Effort(10, 0, 40),
}
LEAST = {FLAT: 1.0, HNSW: 0.98, IVFPQ: 0.95, SQ: 0.99}


def built(kind: str, base: torch.Tensor, active: np.ndarray | None = None) -> FaissIndex:
    return FaissIndex.over(kind, LiveVectors(base, active), EFFORTS[kind])


def reopened(folder: Path, labels: LiveVectors, settings: dict[str, Any]) -> FaissIndex:
    """As it was saved of these labels, of which none has changed since."""
    return FaissIndex.open(folder, settings, over(labels), np.flatnonzero(labels.active), np.arange(0))


@pytest.mark.parametrize("kind", EFFORTS)
@pytest.mark.parametrize("lengths", [0.0, 0.8], ids=["unit", "stretched"])
def test_it_finds_what_a_full_sort_finds_before_and_after_changes(kind: str, lengths: float, tmp_path: Path) -> None:
    base = with_twins(clustered(COUNT, 1, lengths=lengths))
    queries = clustered(60, 2, lengths=0.3)
    index, truth = built(kind, base), Truth(base)
    found = index.search(queries, 10)
    assert recall(found, queries, truth) >= LEAST[kind]
    scores_are_inner_products(found, queries, truth)
    (tmp_path / "index").mkdir()
    settings = index.save(tmp_path / "index")

    for one in (index, reopened(tmp_path / "index", LiveVectors(base), settings)):
        truth = Truth(base)
        change(one, truth, lengths=lengths)
        found = one.search(queries, 10)
        assert recall(found, queries, truth) >= LEAST[kind]
        scores_are_inner_products(found, queries, truth)
        assert found.labels == truth.rows


def test_labels_that_a_graph_of_inner_products_cannot_reach_are_reached() -> None:
    """Where all vectors lie on one side, each one's largest inner products are with the longest few (milvus#51821)."""
    import faiss

    rng = np.random.default_rng(0)
    mean = np.eye(1, 24)
    base = (mean + 0.06 * rng.normal(size=(COUNT, 24))) * np.exp(0.5 * rng.normal(size=(COUNT, 1)))
    queries = torch.from_numpy(mean + 0.06 * rng.normal(size=(20, 24))).float()
    labels = torch.from_numpy(base).float()
    truth = Truth(labels)
    naive = faiss.IndexHNSWFlat(24, 32, faiss.METRIC_INNER_PRODUCT)
    naive.add(labels.numpy())
    _, rows = naive.search(queries.numpy(), 300, params=faiss.SearchParametersHNSW(efSearch=COUNT))
    assert recall(Ranking(rows.astype(np.int32), np.empty(0, dtype=np.float32), COUNT), queries, truth) < 0.7
    ours = FaissIndex.over(HNSW, LiveVectors(labels), Effort(300, 1500, 310)).search(queries, 300)
    assert recall(ours, queries, truth) >= 0.99


@pytest.mark.parametrize("kind", EFFORTS)
def test_rows_that_were_removed_before_it_was_built_are_not_in_it(kind: str, tmp_path: Path) -> None:
    base = clustered(500, 3)
    active = np.ones(500, dtype=np.bool_)
    active[::3] = False
    index = built(kind, base, active)
    (tmp_path / "index").mkdir()
    settings = index.save(tmp_path / "index")
    for one in (index, reopened(tmp_path / "index", LiveVectors(base, active), settings)):
        found = one.search(base, 1).rows[:, 0]
        assert np.array_equal(found[active], np.flatnonzero(active)) and active[found].all()
        add(one, np.array([0]), base[:1].numpy())
        assert one.search(base[:1], 1).rows.tolist() == [[0]]


@pytest.mark.parametrize("kind", EFFORTS)
def test_an_index_built_after_changes_holds_them(kind: str, tmp_path: Path) -> None:
    base = clustered(400, 4)
    labels = changed(LiveVectors(base), np.array([7, 400, 402]), 9 * torch.eye(3, base.shape[1]))
    index = FaissIndex.over(kind, labels, EFFORTS[kind])
    (tmp_path / "index").mkdir()
    opened = reopened(tmp_path / "index", labels, index.save(tmp_path / "index"))
    assert opened.search(torch.eye(3, base.shape[1]), 1).rows.tolist() == [[7], [400], [402]]


@pytest.mark.parametrize("kind", EFFORTS)
def test_few_labels_are_all_found_however_many_are_asked_for(kind: str) -> None:
    base = clustered(5, 6)
    index, truth = built(kind, base), Truth(base)
    for side in (index, truth):
        remove(side, np.array([2]))
    found = index.search(base, 8)
    assert found.rows.tolist() == truth.search(base, 8)
    assert (found.rows[:, 4:] == NO_LABEL).all()


def test_when_nearly_all_rows_are_gone_the_rest_is_found() -> None:
    base = clustered(COUNT, 7)
    index, truth = FaissIndex.over(HNSW, LiveVectors(base), Effort(10, 16, 12)), Truth(base)
    gone = np.setdiff1d(np.arange(COUNT), np.arange(0, COUNT, 250))
    for side in (index, truth):
        remove(side, gone)
    queries = clustered(20, 8)
    assert index.search(queries, 12).rows.tolist() == truth.search(queries, 12)


def test_more_labels_than_it_was_tuned_for_take_more_effort() -> None:
    assert Effort(10, 40, 20).for_k(100) == Effort(100, 400, 200)
    assert Effort(10, 40, 20).for_k(3) == Effort(10, 40, 20)
    base = clustered(COUNT, 9)
    queries = clustered(30, 10)
    found = built(HNSW, base).search(queries, 100)
    assert recall(found, queries, Truth(base)) >= 0.98


@pytest.mark.parametrize("kind", [HNSW, IVFPQ])
def test_searches_go_on_while_labels_change(kind: str) -> None:
    base = clustered(1000, 11)
    index = built(kind, base)
    failures: list[BaseException] = []

    def search() -> None:
        try:
            for _ in range(40):
                assert (index.search(base[:3], 5).rows[:, 0] >= 0).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(30):
        add(index, np.array([1000 + step]), base[step : step + 1].numpy())
        remove(index, np.array([500 + step]))
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_cut_or_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    base = clustered(300, 12)
    settings = built(HNSW, base).save(tmp_path)
    content = (tmp_path / STRUCTURE).read_bytes()
    (tmp_path / STRUCTURE).write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedModel, match=r"index\.faiss.*build the index again"):
        reopened(tmp_path, LiveVectors(base), settings)


def test_an_index_of_more_labels_than_there_were_is_refused(tmp_path: Path) -> None:
    base = clustered(300, 12)
    settings = built(FLAT, base).save(tmp_path)
    with pytest.raises(DamagedModel, match="holds 300 vectors but there were 299 labels; build it again"):
        reopened(tmp_path, LiveVectors(base, np.arange(300) != 7), settings)


@pytest.mark.parametrize("kind", EFFORTS)
def test_a_full_disk_is_told_by_the_path(kind: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).random((2_000, 16), dtype=np.float32)
    index = built(kind, torch.from_numpy(vectors))
    (tmp_path / STRUCTURE).symlink_to("/dev/full")
    with pytest.raises(NotSaved, match=r"index\.faiss: FAISS could not write it: .*No space left on device"):
        index.save(tmp_path)


def test_an_index_of_another_kind_than_it_says_is_refused(tmp_path: Path) -> None:
    base = clustered(300, 12)
    settings = built(SQ, base).save(tmp_path)
    with pytest.raises(DamagedModel, match=r"index\.faiss: is a IndexScalarQuantizer, no faiss-hnsw"):
        reopened(tmp_path, LiveVectors(base), {**settings, "kind": HNSW})
