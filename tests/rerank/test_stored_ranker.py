"""A stored ranker opens without being read: its weights are mapped, its n-grams parsed with the first text."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_array

from umpteen.errors import DamagedModel
from umpteen.rerank.features import VOCABULARY, RankerSettings, TextFeatures
from umpteen.rerank.ranker import Ranker

TEXTS = ["a small dog", "the dog of the house", "tax law, tax law", "library network"]
LABELS = 2_000


@pytest.fixture
def ranker() -> Ranker:
    chance = np.random.default_rng(0)
    features = TextFeatures.fit(TEXTS, RankerSettings())
    weights = csr_array(chance.random((len(features), LABELS), dtype=np.float32))
    texts = chance.integers(0, 9, LABELS)
    settings = RankerSettings(memory=False)
    return Ranker(features, weights, chance.random(LABELS, dtype=np.float32), texts, settings, weight=0.5)


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
    ours, theirs = (one.margins(TEXTS[:1], rows) for one in (stored, ranker))
    by_hand = ranker.features.transform(TEXTS[:1]).toarray() @ ranker.weights.toarray() + ranker.intercepts
    np.testing.assert_allclose(theirs, by_hand, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_ranker_needs_its_folder_no_more_once_it_is_open(ranker: Ranker, tmp_path: Path) -> None:
    ranker.save(tmp_path / "ranker")
    stored = Ranker.load(tmp_path / "ranker")
    shutil.rmtree(tmp_path / "ranker")
    assert (stored.features.transform(TEXTS) != ranker.features.transform(TEXTS)).nnz == 0


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [
        ("columns", 7, 10**9),
        ("columns", 7, -1),
        ("starts", 5, 10**9),
        ("starts", -1, 10**12),
        ("starts", 3, -5),
        ("starts", slice(0), None),
        ("texts", slice(9), None),
        ("idf", slice(1), None),
        ("values", slice(3), None),
        ("columns", None, np.float32),
        ("starts", None, np.float32),
    ],
)
def test_arrays_that_would_lead_outside_the_memory_are_refused(
    array: str, place: int | slice | None, value: Any, ranker: Ranker, tmp_path: Path
) -> None:
    ranker.save(tmp_path / "ranker")
    file = tmp_path / "ranker" / "weights.safetensors"
    arrays = load_file(file)
    if isinstance(place, int):
        arrays[array][place] = value
    else:
        arrays[array] = arrays[array].astype(value) if place is None else arrays[array][place].copy()
    save_file(arrays, file)
    with pytest.raises(DamagedModel, match="ranker: is no ranker"):
        Ranker.load(tmp_path / "ranker")


@pytest.mark.parametrize("changes", [{"settings": []}, {"settings": {"candidates": 2**70}}, {"weight": "1"}])
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], ranker: Ranker, tmp_path: Path) -> None:
    ranker.save(tmp_path / "ranker")
    file = tmp_path / "ranker" / "ranker.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(DamagedModel, match="ranker: is no ranker"):
        Ranker.load(tmp_path / "ranker")


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
    program = "import sys, umpteen.model.classifier; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
