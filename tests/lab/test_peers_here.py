"""What one would build in an afternoon: each learns the miniature, and never returns a pair to ignore."""

from pathlib import Path

import numpy as np
import pytest
from lab.peers import PEERS, here
from scipy.sparse import csr_array

from tiny import tiny_transformer
from umpteen.compare.methods import PEERS as NAMES
from umpteen.data.labels import Relevance, Split

WORDS = ["law", "fish", "tax", "trade"]
SETTINGS = {
    "linear-svm": {"cost": 1.0, "ngrams": 2},
    "minilm-knn": {"neighbours": 5, "temperature": 0.05},
    "minilm-probe": {"learning_rate": 0.2, "epochs": 300},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_peer_of_our_own_environment_learns_the_miniature(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "MINILM", tiny_transformer(tmp_path))
    monkeypatch.setattr(here, "LONGEST", 16)
    texts = [f"{word} number {number}" for number in range(20) for word in WORDS]
    relevance = Relevance(csr_array(np.tile(np.eye(4, dtype=np.float32), (20, 1))))
    filtered = Relevance(csr_array(([1.0], ([0], [0])), shape=(4, 4)))
    asked = Split.of([f"{word} number 3" for word in WORDS], relevance.take(np.arange(4)), filtered)
    found = PEERS[name].fit(Split.of(texts, relevance), asked, SETTINGS[name], 2)
    assert found.ranking.rows[1:, 0].tolist() == [1, 2, 3]
    assert 0 not in found.ranking.rows[0] and found.parameters > 0


def test_the_package_knows_the_names_of_all_peers() -> None:
    assert set(PEERS) == set(NAMES)
