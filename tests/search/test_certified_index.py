"""Tuning finds the least effort that holds on other queries, and the certificate says what was measured."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from search.index_cases import clustered
from umpteen.errors import BadInput
from umpteen.search.certificate import Certificate, interval, queries_per_second, recalls, tune
from umpteen.search.faiss import FLAT, HNSW, IVFPQ, SQ, FaissIndex
from umpteen.search.index import Effort, ExactIndex, LiveVectors, exact_search
from umpteen.search.ranking import Ranking

COUNT = 2000


def built(kind: str) -> FaissIndex:
    return FaissIndex.over(kind, LiveVectors(clustered(COUNT, 1, lengths=0.5)), Effort(1, 1, 1))


@pytest.mark.parametrize("kind", [FLAT, HNSW, IVFPQ, SQ])
def test_the_effort_that_is_chosen_holds_on_queries_that_did_not_choose_it(kind: str) -> None:
    index = built(kind)
    tuned = tune(index, clustered(200, 2), 10, 0.95)
    assert index.effort == tuned.effort and tuned.recalls.mean() >= 0.95
    # Where there is nothing to choose, all queries certify.
    assert (len(tuned.recalls), tuned.tuned_on) == ((200, 0) if kind == "faiss-flat" else (100, 100))
    others = clustered(200, 3)
    assert recalls(index.search(others, 10), exact_search(others, index.labels, 10)).mean() >= 0.93


def test_more_recall_takes_more_effort() -> None:
    index = built(HNSW)
    queries = clustered(400, 2)
    low, high = (tune(index, queries, 10, target).effort for target in (0.7, 0.98))
    assert low.breadth < high.breadth < COUNT


def test_each_kind_tries_the_least_effort_first_and_ends_with_everything() -> None:
    assert built(FLAT).efforts(10) == [Effort(10, 0, 16)]
    assert [effort.breadth for effort in built(HNSW).efforts(10)][:5] == [16, 19, 23, 27, 32]
    assert built(HNSW).efforts(10)[-1].breadth == COUNT
    lists = built(IVFPQ).efforts(10)
    assert lists[0] == Effort(10, 1, 16) and lists[-1] == Effort(10, 62, COUNT)
    assert built(SQ).efforts(10)[-1] == Effort(10, 0, COUNT)
    assert built(SQ).efforts(COUNT)[0].rescored >= COUNT


def test_a_target_that_cannot_be_reached_is_refused_with_the_best_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(HNSW)
    monkeypatch.setattr(index, "efforts", lambda k: [Effort(k, 1, k), Effort(k, 2, k)])
    with pytest.raises(BadInput, match=r"recall@10 of 0\.\d+ at most here, not 0.999; nothing was changed"):
        tune(index, clustered(100, 2), 10, 0.999)
    with pytest.raises(BadInput, match="at least 2"):
        tune(index, clustered(1, 2), 10, 0.9)


def test_effort_that_chance_made_look_good_enough_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(HNSW)
    monkeypatch.setattr("umpteen.search.certificate._first_good", lambda *_: 0)
    tuned = tune(index, clustered(200, 2), 10, 0.95)
    assert tuned.attempts > 1 and tuned.recalls.mean() >= 0.95


def ranking(rows: list[list[int]], scores: list[list[float]]) -> Ranking:
    return Ranking(np.array(rows, dtype=np.int32), np.array(scores, dtype=np.float32), 9)


def test_recall_counts_twins_of_the_last_label_and_forgives_rounding() -> None:
    exact = ranking([[1, 2], [3, 4], [5, -1]], [[0.9, 0.5], [0.9, 0.5], [0.7, -np.inf]])
    found = ranking([[1, 7], [3, 8], [5, -1]], [[0.9, 0.5 - 1e-7], [0.9, 0.4], [0.7, -np.inf]])
    assert recalls(found, exact).tolist() == [1.0, 0.5, 1.0]


def test_an_interval_never_claims_certainty() -> None:
    assert interval(np.ones(300)) == (0.99, 1.0)
    low, high = interval(np.array([1.0] * 90 + [0.5] * 10))
    assert 0.9 < low < 0.95 < high < 0.99


def test_speed_is_measured_on_one_thread_and_leaves_the_threads_alone() -> None:
    seen = []

    class Counting(ExactIndex):
        def search(self, queries: torch.Tensor, k: int) -> Ranking:
            seen.append((len(queries), torch.get_num_threads()))
            return super().search(queries, k)

    before = torch.get_num_threads()
    assert queries_per_second(Counting(LiveVectors(clustered(50, 1))), clustered(5, 2), 3) > 0
    assert set(seen) == {(1, 1)} and torch.get_num_threads() == before


def test_a_certificate_survives_json() -> None:
    one = Certificate(
        kind=HNSW, k=10, target=0.9, recall=0.95, recall_interval=[0.9, 0.97], effort={"breadth": 16}, queries=50,
        queries_tuned_on=50, sample="label texts", labels=9, dimension=4, catalogue_version=2,
        queries_per_second={"index": 9.0, "exact": 1.0}, bytes={"index": 1, "exact": 2}, build_seconds=1.5,
    )  # fmt: skip
    assert Certificate(**json.loads(json.dumps(asdict(one)))) == one
