"""sentence-transformers' trainer beside itself, with its losses and ours; needs `datasets` and `accelerate`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract import assert_contract
from lab.experiment import Setup, run
from lab.trainers import ALL_OURS, DESIGNS, LARGER_MNRL, LARGER_OURS, MNRL, OURS, Design, chosen_rate

from lab import named
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.labels import Split
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
    assert [row["variant"] for row in results["results"]] == [MNRL, OURS, LARGER_MNRL, LARGER_OURS, ALL_OURS]
    assert {claim["verdict"] for claim in results["claims"]} == {"undecided"}  # with settings nobody chose
    assert "--encoder static" in results["command"]
    with pytest.raises(BadInput, match="known are minilm, static"):
        named("trainers")(Setup("trainers", "tiny", tmp_path, str(part_of_nouns), encoder="bag"))


def test_the_learning_rate_of_a_loss_is_followed_beyond_any_edge_and_by_validation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_of_nouns: Path
) -> None:
    dataset = open_dataset(str(part_of_nouns)).with_validation(0.1, 0)
    looked_at = list[Any]()

    def trained(dataset: Dataset, design: Design, variant: str, seed: int, rate: float) -> tuple[float, float]:
        return rate, 1.0

    def report(rate: float, dataset: Dataset, split: Split) -> dict[str, float]:
        looked_at.append(split)
        return {"nDCG@5": -abs(math.log(rate / 1e-4))}

    monkeypatch.setattr("lab.trainers.trained", trained)
    monkeypatch.setattr("lab.trainers.report", report)
    design = DESIGNS["static"]["small"]
    rate, settled = chosen_rate(Setup("trainers", "small", tmp_path), dataset, design, OURS)
    assert settled and rate == pytest.approx(design.learning_rate / 3**4, rel=0.01)
    assert all(split is dataset.validation for split in looked_at)


def test_without_datasets_and_accelerate_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_of_nouns: Path
) -> None:
    monkeypatch.setattr("lab.trainers.is_training_available", lambda: False)
    with pytest.raises(BadInput, match=r"pip install 'umpteen\[sentence-transformers\]'"):
        named("trainers")(Setup("trainers", "tiny", tmp_path, str(part_of_nouns)))
