"""A ranker's weights are those of a dense solver, label by label, on the right samples, however often it is killed."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.svm import LinearSVC

from umpteen.rerank import fit as fitting
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.fit import Samples, fit_weights

TEXTS, LABELS, FEATURES, CANDIDATES = 60, 23, 40, 9
SETTINGS = RankerSettings(candidates=CANDIDATES, threshold=0.0, tolerance=1e-9, iterations=100_000, cost=0.7)
LONELY, UNKNOWN, IGNORED = 20, 21, 22  # never retrieved wrongly; without training texts; relevant with weight 0


class Toy:
    """Random features, relevance and candidates, and the folder they lie in."""

    def __init__(self, folder: Path) -> None:
        chance = np.random.default_rng(0)
        folder.mkdir(exist_ok=True)
        self.features = (chance.random((TEXTS, FEATURES)) * (chance.random((TEXTS, FEATURES)) < 0.2)).astype(np.float32)
        self.relevance = (chance.random((TEXTS, LABELS)) < 0.12).astype(np.float32)
        self.relevance[:, [UNKNOWN, IGNORED]] = 0
        stored = self.relevance > 0
        stored[:, IGNORED] = chance.random(TEXTS) < 0.3
        pairs = np.nonzero(stored)
        starts = np.concatenate([[0], np.cumsum(stored.sum(1))])
        self.stored = stored
        self.candidates = np.stack(
            [chance.choice(np.delete(np.arange(LABELS), LONELY), CANDIDATES, replace=False) for _ in range(TEXTS)]
        ).astype(np.int32)
        self.samples = Samples(folder)
        self.samples.keep_matrix("features", csr_array(self.features))
        relevant = csr_array((self.relevance[pairs], pairs[1], starts), shape=(TEXTS, LABELS))
        self.samples.keep_matrix("relevant", relevant)
        self.samples.keep_candidates(0, self.candidates)

    def negatives(self, label: int) -> NDArray[np.int64]:
        return np.flatnonzero((self.candidates == label).any(1) & ~self.stored[:, label])


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "samples")


def test_weights_equal_a_dense_solution_of_each_label(toy: Toy) -> None:
    weights, intercepts = fit_weights(toy.samples, LABELS, SETTINGS)
    for label in range(LABELS):
        positives, negatives = np.flatnonzero(toy.relevance[:, label]), toy.negatives(label)
        if len(positives) == 0 or len(negatives) == 0:
            assert label in (LONELY, UNKNOWN, IGNORED)
            continue
        rows = np.concatenate([positives, negatives])
        signs = np.repeat([1, -1], [len(positives), len(negatives)])
        judge = LinearSVC(C=SETTINGS.cost, dual=True, tol=1e-9, max_iter=100_000, random_state=1)
        judge.fit(toy.features[rows].astype(np.float64), signs)
        expected = judge.decision_function(toy.features.astype(np.float64))
        np.testing.assert_allclose(toy.features @ weights.toarray()[:, label] + intercepts[label], expected, atol=1e-5)


def test_a_relevant_pair_is_never_a_negative_even_with_weight_0(toy: Toy) -> None:
    for label, (positives, negatives) in enumerate(toy.samples.of_labels(5, LABELS), 5):
        assert not toy.stored[negatives, label].any()
        assert positives.tolist() == np.flatnonzero(toy.relevance[:, label]).tolist()
        assert negatives.tolist() == toy.negatives(label).tolist()


def test_labels_without_training_texts_or_without_negatives_have_an_answer(toy: Toy) -> None:
    weights, intercepts = fit_weights(toy.samples, LABELS, SETTINGS)
    for label in (UNKNOWN, IGNORED):
        assert not weights.toarray()[:, label].any() and intercepts[label] == 0
    margins = toy.features @ weights.toarray()[:, LONELY] + intercepts[LONELY]
    positives = toy.relevance[:, LONELY] > 0
    assert np.isfinite(margins).all() and margins[positives].mean() > margins[~positives].mean()
    assert intercepts[LONELY] < margins[positives].min()  # the text without words is its only negative


def test_small_weights_are_dropped_and_nothing_else_changes(toy: Toy, tmp_path: Path) -> None:
    whole, _ = fit_weights(toy.samples, LABELS, SETTINGS)
    pruned, _ = fit_weights(Toy(tmp_path / "other").samples, LABELS, replace(SETTINGS, threshold=0.3))
    expected = np.where(np.abs(whole.toarray()) >= 0.3, whole.toarray(), 0)
    np.testing.assert_array_equal(pruned.toarray(), expected)
    assert 0 < pruned.nnz < whole.nnz


def test_a_killed_fit_goes_on_and_ends_the_same(toy: Toy, tmp_path: Path) -> None:
    with mock.patch.object(fitting, "_SMALLEST_BLOCK", 5):
        expected, expected_intercepts = fit_weights(toy.samples, LABELS, SETTINGS)
        killed = Toy(tmp_path / "killed").samples
        solved: list[tuple[int, int]] = []

        def solve(samples: Samples, start: int, stop: int, settings: RankerSettings) -> dict[str, np.ndarray]:
            if len(solved) == 2:
                raise KeyboardInterrupt
            solved.append((start, stop))
            return real(samples, start, stop, settings)

        real = fitting.solve_block
        with mock.patch.object(fitting, "solve_block", solve), pytest.raises(KeyboardInterrupt):
            fit_weights(killed, LABELS, SETTINGS)
        seen: list[tuple[int, int]] = []
        weights, intercepts = fit_weights(killed, LABELS, SETTINGS, progress=lambda done, of: seen.append((done, of)))
    assert solved == [(0, 5), (5, 10)] and seen == [(15, LABELS), (20, LABELS), (23, LABELS)]
    assert (weights != expected).nnz == 0
    np.testing.assert_array_equal(intercepts, expected_intercepts)


def test_two_processes_find_what_one_finds(toy: Toy, tmp_path: Path) -> None:
    with mock.patch.object(fitting, "_SMALLEST_BLOCK", 8):
        one, _ = fit_weights(toy.samples, LABELS, SETTINGS)
        two, _ = fit_weights(Toy(tmp_path / "two").samples, LABELS, SETTINGS, jobs=2)
    assert (one != two).nnz == 0


FITS = """
import os, sys, time
from pathlib import Path
from umpteen.rerank import fit as fitting
from umpteen.rerank.features import RankerSettings

class Waits(RankerSettings):
    def __getattribute__(self, name):
        if name == "cost" and os.environ["FIT"] != str(os.getpid()):
            Path(os.environ["FLAGS"], str(os.getpid())).touch()
            while not Path(os.environ["FLAGS"], "go").exists():
                time.sleep(0.01)
        return super().__getattribute__(name)

os.environ["FIT"] = str(os.getpid())
fitting._SMALLEST_BLOCK = 8
fitting.fit_weights(fitting.Samples(Path(sys.argv[1])), int(sys.argv[2]), Waits(), jobs=2)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells by /proc which processes are there")
def test_processes_whose_fit_was_killed_write_nothing_any_more(toy: Toy, tmp_path: Path) -> None:
    """The folder may be gone by then, or belong to another fit."""
    (flags := tmp_path / "flags").mkdir()
    asked = [sys.executable, "-c", FITS, str(toy.samples.folder), str(LABELS)]
    with subprocess.Popen(asked, env={**os.environ, "FLAGS": str(flags)}) as fit:
        while len(list(flags.iterdir())) < 2:
            assert fit.poll() is None
            time.sleep(0.01)
        fit.kill()
    orphans = [Path("/proc", flag.name, "stat") for flag in flags.iterdir()]
    shutil.rmtree(toy.samples.folder)
    (flags / "go").touch()

    def at_work(orphan: Path) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            return orphan.read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    while any(map(at_work, orphans)) and not toy.samples.folder.exists():
        time.sleep(0.01)
    assert not toy.samples.folder.exists()


def test_a_label_whose_texts_have_no_known_word_has_no_weights(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "samples")
    rows = np.flatnonzero(toy.relevance[:, LONELY])
    toy.features[rows] = 0
    toy.samples.keep_matrix("features", csr_array(toy.features))
    weights, _ = fit_weights(toy.samples, LABELS, SETTINGS)
    assert len(rows) and not weights.toarray()[:, LONELY].any()
