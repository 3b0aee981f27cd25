"""A stored ranker opens without being read: its weights are mapped, its n-grams parsed with the first text."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import DamagedModel
from umpteen.ranker.features import VOCABULARY, TextFeatures
from umpteen.ranker.ranker import Ranker
from umpteen.ranker.settings import RankerSettings

TEXTS = ["a small dog", "the dog of the house", "tax law, tax law", "library network"]
LABELS = 2_000


@pytest.fixture
def ranker() -> Ranker:
    chance = np.random.default_rng(0)
    features = TextFeatures.fit(TEXTS, RankerSettings())
    weights = csr_array(chance.random((LABELS, len(features)), dtype=np.float32))
    texts = chance.integers(0, 9, LABELS)
    return Ranker(features, weights, chance.random(LABELS, dtype=np.float32), texts, RankerSettings(), weight=0.5)


def is_mapped(array: NDArray[np.generic], path: Path) -> bool:
    """Whether the array's memory is the file itself."""
    start = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(address, 16) for address in line.split()[0].split("-"))
        if first <= start < last:
            return line.endswith(str(path))
    return False


def test_a_stored_ranker_is_the_same_and_its_large_arrays_are_mapped(ranker: Ranker, tmp_path: Path) -> None:
    ranker.save(tmp_path / "ranker")
    stored = Ranker.load(tmp_path / "ranker")
    later = stored.with_later(LABELS + 3, np.array([5]))
    file = tmp_path / "ranker" / "weights.safetensors"
    for one in (stored, later):
        assert is_mapped(one.weights.data, file) and is_mapped(one.weights.indices, file)
    assert (stored.weights != ranker.weights).nnz == 0
    rows = np.arange(LABELS, dtype=np.int32)[None]
    vectors = np.zeros((1, 0), dtype=np.float32)
    ours, theirs = (one.margins(TEXTS[:1], vectors, rows) for one in (stored, ranker))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_ranker_needs_its_folder_no_more_once_it_is_open(ranker: Ranker, tmp_path: Path) -> None:
    ranker.save(tmp_path / "ranker")
    stored = Ranker.load(tmp_path / "ranker")
    shutil.rmtree(tmp_path / "ranker")
    assert (stored.features.transform(TEXTS) != ranker.features.transform(TEXTS)).nnz == 0


@pytest.mark.parametrize("content", ["", "[]", '{"words": 1}', '{"words": {"lengths": [1, 2], "ngrams": ["one"]}}'])
def test_n_grams_that_make_no_sense_are_told_of_with_the_first_text(
    content: str, ranker: Ranker, tmp_path: Path
) -> None:
    ranker.save(tmp_path / "ranker")
    assert len(json.loads((tmp_path / "ranker" / VOCABULARY).read_text())["words"]["ngrams"]) == len(ranker.features)
    (tmp_path / "ranker" / VOCABULARY).write_text(content)
    stored = Ranker.load(tmp_path / "ranker")
    with pytest.raises(DamagedModel, match=r"vocabulary\.json"):
        stored.features.transform(TEXTS)


def test_who_ranks_nothing_waits_for_no_scikit_learn() -> None:
    program = "import sys, umpteen.classifier; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
