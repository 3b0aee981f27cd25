"""sentence-transformers' trainer beside itself, with its losses and ours; needs `datasets` and `accelerate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract import assert_contract
from lab.experiment import Setup, run
from lab.trainers import ALL_OURS, MNRL, OURS

from lab import named
from umpteen.errors import BadInput

Finished = Callable[[str], tuple[Path, Any]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_its_tiny_size_leaves_what_the_contract_says(finished: Finished) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    folder, results = finished("trainers")
    assert_contract("trainers", folder, results)
    assert {run["variant"]: run["learning rate"] for run in results["runs"]} == dict.fromkeys(
        [row["variant"] for row in results["results"]], 1e-4
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_table_of_static_vectors_learns_against_all_labels_too(tmp_path: Path, part_of_nouns: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    setup = Setup("trainers", "tiny", tmp_path, str(part_of_nouns), encoder="static", seeds=1)
    results = run(named("trainers"), setup)
    assert [row["variant"] for row in results["results"]] == [MNRL, OURS, ALL_OURS]
    assert "--encoder static" in results["command"]
    with pytest.raises(BadInput, match="known are minilm, static"):
        named("trainers")(Setup("trainers", "tiny", tmp_path, str(part_of_nouns), encoder="bag"))


def test_without_datasets_and_accelerate_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_of_nouns: Path
) -> None:
    monkeypatch.setattr("lab.trainers.is_training_available", lambda: False)
    with pytest.raises(BadInput, match=r"pip install 'umpteen\[sentence-transformers\]'"):
        named("trainers")(Setup("trainers", "tiny", tmp_path, str(part_of_nouns)))
