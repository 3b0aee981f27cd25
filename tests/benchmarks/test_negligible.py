"""What has no gradient worth a bit is counted as it is, and in the order in which it stands."""

from pathlib import Path

import pytest
import torch
from benchmarks.negligible import cluster_order, run, shares

from miniature import trained
from umpteen.errors import BadInput
from umpteen.objectives import Pairs

TOWARDS, AWAY = [[1.0, 0.0]], [[-1.0, 0.0]]
QUERIES = torch.tensor(TOWARDS * 4)


@pytest.mark.parametrize(("objective", "negligible"), [("decoupled_softmax", True), ("one_vs_all", False)])
def test_labels_far_below_the_others_are_negligible_where_weights_are_relative(
    objective: str, negligible: bool
) -> None:
    labels = torch.tensor(TOWARDS * 64 + AWAY * 64)
    temperature = 0.1 if negligible else 1.0  # scores ±10 and ±1
    found = shares(QUERIES, labels, Pairs.empty(), temperature, objective)
    assert found == {"pairs": negligible / 2, "parts_of_32": negligible / 2, "parts_of_128": 0.0, "tiles_of_128": 0.0}


def test_in_an_order_by_clusters_labels_of_one_kind_stand_together() -> None:
    mixed = torch.tensor((TOWARDS + AWAY) * 64)
    assert shares(QUERIES, mixed, Pairs.empty(), 0.1, "soft_top_5")["parts_of_32"] == 0
    ordered = mixed[torch.from_numpy(cluster_order(mixed.numpy(), 64, seed=0))]
    assert shares(QUERIES, ordered, Pairs.empty(), 0.1, "soft_top_5")["parts_of_32"] == 0.5


def test_a_trained_model_is_looked_at_as_its_training_saw_it(tmp_path: Path) -> None:
    model = trained(tmp_path)
    outcome = run(model, str(tmp_path / "data"), batch=8)
    assert len(outcome["results"]) == 6 and all(0 <= row["pairs"] <= 1 for row in outcome["results"])
    assert all(0 < error < 0.1 for errors in outcome["half_labels"].values() for error in errors.values())
    with pytest.raises(BadInput, match="a batch of 9,999"):
        run(model, str(tmp_path / "data"), batch=9_999)
