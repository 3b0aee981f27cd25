"""Benchmark: how long the command line takes to say something, beside an empty Python; and to answer, beside torch."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from umpteen.calibration.calibration import fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.model.classifier import Classifier
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import Ranker

LABELS, TEXTS, BUCKETS, WEIGHTS, START = 4_000, 12_000, 65_536, 20, "all-MiniLM-L6-v2"
ASKED = {
    "python": ("-c", "pass"),
    "help": ("-m", "umpteen", "--help"),
    "help_of_fit": ("-m", "umpteen", "fit", "--help"),
}
# The same command, but for a classifier that loads its encoders as any other program's does.
WITH_TORCH = """
import sys
import umpteen.cli
from umpteen.cli.main import main
from umpteen.model.classifier import Classifier

load = Classifier.load
Classifier.load = lambda path, light, **how: load(path, **how)
sys.argv[0] = "umpteen"
main()
"""


def _of_chance(rows: int, columns: int, each: int, chance: np.random.Generator) -> csr_array:
    found = np.sort(chance.integers(columns, size=(rows, each), dtype=np.int32)).ravel()
    matrix: csr_array = csr_array((np.ones(found.size, np.float32), found, np.arange(rows + 1) * each), (rows, columns))
    matrix.sum_duplicates()
    return matrix


def write(folder: Path, labels: int = LABELS, texts: int = TEXTS) -> dict[str, Path]:
    """A static model started from MiniLM's word pieces; and with bigrams, ranker, memory and probabilities."""
    chance = np.random.default_rng(0)
    words = [
        "".join(syllables)
        for syllables in product(("ba", "den", "fi", "gol", "ku", "mer", "no", "pal", "ra"), repeat=3)
    ]

    def made(count: int) -> list[str]:
        return [" ".join(chance.choice(words, 12)) for _ in range(count)]

    catalogue, known = LabelCatalogue(map(str, range(labels)), made(labels)), made(texts)
    Classifier.build(Towers(StaticEncoder.from_token_table(START)).eval(), catalogue).save(folder / "static")
    towers = Towers(StaticEncoder.from_token_table(START, bigrams=BUCKETS)).eval()
    features = TextFeatures.fit(known, RankerSettings())
    ranker = Ranker(
        features,
        _of_chance(len(features), labels, WEIGHTS, chance),
        np.zeros(labels, np.float32),
        np.ones(labels, np.int64),
        RankerSettings(),
        Memory.of(towers.query.encode(known), _of_chance(texts, labels, 1, chance)),
        weight=0.5,
        votes=0.5,
    )
    vectors = Classifier.build(towers, catalogue).vectors
    Classifier(towers, catalogue, vectors, ranker=ranker).save(folder / "with_all_parts")
    scores = np.sort(chance.random((50, 5), np.float32))[:, ::-1].copy()
    held_out = HeldOut(scores, scores > 0.6, np.full(50, 5))
    Classifier.load(folder / "with_all_parts").keep_calibration(fit_calibration(held_out, {"said": "chance"}))
    return {name: folder / name for name in ("static", "with_all_parts")}


def run(repeats: int = 5, **sizes: int) -> dict[str, Any]:
    """Seconds on the clock and of processors: medians over runs in turns.

    times_python: on the clock, beside an empty Python; times_light: of processors, a predict that loads torch beside
    the command.
    """
    with TemporaryDirectory() as made:
        models = write(Path(made), **sizes)
        asked: dict[str, Sequence[str]] = dict(ASKED)
        for name, path in models.items():
            rest = ("predict", str(path), "badenfi golku rabano", "--json")
            asked |= {f"predict_{name}": ("-m", "umpteen", *rest), f"with_torch_{name}": ("-c", WITH_TORCH, *rest)}
        clock, processor = _measured(asked, repeats)
    return {
        "seconds": {name: round(found, 3) for name, found in clock.items()},
        "processor_seconds": {name: round(found, 3) for name, found in processor.items()},
        "times_python": {name: round(clock[name] / clock["python"], 1) for name in ASKED},
        "times_light": {
            name: round(processor[f"with_torch_{name}"] / processor[f"predict_{name}"], 1) for name in models
        },
    }


def _measured(asked: Mapping[str, Sequence[str]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
    for _ in range(repeats):
        for name, arguments in asked.items():
            before, began = os.times(), time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            after, ended = os.times(), time.perf_counter()
            found[name].append((ended - began, sum(after[2:4]) - sum(before[2:4])))
    clock, processor = ({name: median(turn[at] for turn in turns) for name, turns in found.items()} for at in (0, 1))
    return clock, processor
