"""The benchmark of encoders measures both sides in every way."""

from pathlib import Path

import pytest
from benchmarks.encoders import BATCHES, THREADS, run

from tiny import tiny_transformer


def test_both_sides_are_measured_with_each_number_of_threads_and_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "benchmarks.encoders.export", lambda tower, folder: tower
    )  # tests/model/test_runtime.py exports
    found = run(tiny_transformer(tmp_path / "start"), texts=3, repeats=1)
    assert found["error"] == 0.0
    assert [(one["threads"], one["batch"]) for one in found["results"]] == [(t, b) for t in THREADS for b in BATCHES]
    assert all(one["torch_texts_a_second"] > 0 < one["onnx_texts_a_second"] for one in found["results"])
