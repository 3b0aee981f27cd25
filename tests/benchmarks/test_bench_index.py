"""The benchmark of indexes, in miniature: it measures the real index on vectors that are as it says."""

import json

import numpy as np
import pytest
import torch
from benchmarks.index import drawn_around, run

from umpteen.errors import BadInput


def test_it_measures_recall_speed_and_adding() -> None:
    outcome = run(labels=3000, added=50, queries=200, timed=5, turns=1, recall=0.9)
    assert outcome["recall_at_10"] >= 0.9 and outcome["certifying_queries"] == 100
    assert outcome["speed_ratio"] > 0 and outcome["exact"] in ("blas", "faiss_flat")
    assert outcome["add_1000_seconds"] > 0 and outcome["added"] == 50
    assert set(outcome["queries_per_second"]) == {"hnsw", "blas", "faiss_flat"}
    assert outcome["dimension"] == 384 and outcome["index_megabytes"] < outcome["exact_megabytes"]
    assert json.loads(json.dumps(outcome)) == outcome


def test_vectors_lie_around_real_ones_at_the_stated_distance() -> None:
    real = torch.eye(3, 256)
    drawn = drawn_around(real, 500, 0.5, seed=1)
    distances = np.linalg.norm(drawn[:, None] - real.numpy()[None], axis=2).min(1)
    assert abs(distances.mean() - 0.5) < 0.01
    assert np.array_equal(drawn, drawn_around(real, 500, 0.5, seed=1))
    assert np.linalg.norm(drawn, axis=1).std() > 0.01  # lengths stay as they fall


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadInput, match="1 or more"):
        run(labels=0)
