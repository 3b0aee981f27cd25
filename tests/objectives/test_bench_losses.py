"""The benchmark compares like with like: its dense formulas give what streaming gives."""

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.losses import SIDES, Case, compare, relative_error, run
from problems import pairs

from benchmarks import dense
from umpteen.errors import BadInput
from umpteen.objectives import Scores, Targets, decoupled_softmax, soft_top_k


def test_both_dense_forms_equal_the_streaming_objectives() -> None:
    queries, labels = (torch.randn(count, 5, dtype=torch.float64, requires_grad=True) for count in (4, 300))
    positives = pairs([(query, 7 * query + step) for query in range(4) for step in range(3)])
    scores, targets = Scores(queries, labels, temperature=0.4), Targets(positives, positives, 4)
    given = (queries, labels, positives, 0.4)
    for ours, theirs in (
        (decoupled_softmax(scores, targets), dense.decoupled_softmax_as_written(*given)),
        (decoupled_softmax(scores, targets), dense.decoupled_softmax_fastest(*given)),
        (soft_top_k(scores, targets, 5, 2.0), dense.soft_top_k_as_written(*given, 5, 2.0)),
        (soft_top_k(scores, targets, 5, 2.0), dense.soft_top_k_fastest(*given, 5, 2.0)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        found = torch.autograd.grad(ours, [queries, labels], retain_graph=True)
        expected = torch.autograd.grad(theirs, [queries, labels])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_row_of_results_holds_ratios_and_a_small_error() -> None:
    row = compare(Case("soft_top_5", labels=3000, batch=16, dimension=8, seed=0), repeats=1)
    assert row["max_relative_error"] < 1e-5
    assert row["time_ratio"] > 0 and row["memory_ratio"] == row["memory_ratio"]
    assert set(row["seconds"]) == set(SIDES)


def test_the_error_is_not_a_number_when_a_side_is_not(tmp_path: Path) -> None:
    for side in SIDES:
        for name in ("loss", "queries", "labels"):
            np.save(tmp_path / f"{side}-{name}.npy", np.float32([1.0, np.nan if side == "streaming" else 2.0]))
    assert np.isnan(relative_error(tmp_path))


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadInput, match="more than 5 labels"):
        run(labels=5)
