"""The benchmark of a label table, in miniature: it measures the real run and says what was learned."""

import json

import pytest
from benchmarks.table import run

from umpteen.errors import BadInput


def test_it_measures_a_whole_run_in_a_process_of_its_own() -> None:
    outcome = run(120, batch=8, steps=2, train=16, evaluated=8)
    assert outcome["labels"] == 120 and outcome["dimension"] == 384
    assert outcome["parameters"]["label"] == 120 * 384
    assert 0 < outcome["seconds_per_step"] < outcome["seconds"] and 0.1 < outcome["peak_rss_gb"] < 8
    assert json.loads(json.dumps(outcome)) == outcome


def test_sizes_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadInput, match="1 or more"):
        run(120, steps=0)
