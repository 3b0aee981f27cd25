"""Benchmark: the service over HTTP. A static model beside an empty route of FastAPI with the same messages, both loaded
in turns from a process of their own; MiniLM with requests gathered into batches beside one at a time.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.child_service import ChildService, child_service, umpteen_serve
from benchmarks.load import Load, measured
from benchmarks.wrk import fastest, installed
from umpteen.data.dataset import open_dataset
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput
from umpteen.files.progress import Progress
from umpteen.model.classifier import Classifier

DATASET = "wordnet-nouns"
MODEL = "all-MiniLM-L6-v2"
CLIENTS = 32
K = 5


def run(
    model: Path | None = None,
    *,
    seconds: float = 5.0,
    repeats: int = 5,
    clients: int = CLIENTS,
    minilm_labels: int = 1000,
    texts: int = 500,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """requests_per_second: single-text requests answered, the median of the turns; failed: of all that were sent.

    http_ratio: that ÷ the empty route's in the same turn, the median. p99_ms: at half that rate, sent on time whatever
    the service does, the median of as many turns. batching_ratio: MiniLM's requests a second in batches ÷ one text at a
    time, same clients. `model` takes the place of the static model over the labels of wordnet-nouns; with
    minilm_labels=0 MiniLM is left out.
    """
    if min(seconds, repeats, clients, texts) <= 0:
        raise BadInput("the benchmark needs seconds, repeats, clients and texts of more than 0")
    tell = progress or (lambda name, done, total: None)
    dataset = open_dataset(DATASET)
    split = dataset.test or dataset.train
    bodies = tuple(
        json.dumps({"text": split.texts[row], "k": K}, ensure_ascii=False)
        for row in range(min(texts, len(split.texts)))
    )
    with TemporaryDirectory(prefix="umpteen-serve-") as scratch:
        if model is None:
            model = static_model(Path(scratch, "static"), dataset.labels)
        outcome = _static(model, bodies, seconds, repeats, clients, tell)
        if minilm_labels:
            minilm = _minilm_model(Path(scratch, "minilm"), dataset.labels, minilm_labels)
            outcome |= _batching(minilm, bodies, seconds, repeats, clients, tell)
    return {
        "benchmark": "serve",
        "generator": "wrk" if installed() else "benchmarks.load",
        "clients": clients,
        "seconds": seconds,
        "repeats": repeats,
        **outcome,
    }


def _static(
    model: Path, bodies: tuple[str, ...], seconds: float, repeats: int, clients: int, tell: Progress
) -> dict[str, Any]:
    with umpteen_serve(model) as service:
        answer = service.post("/predict", json.loads(bodies[0]))
        command = [sys.executable, "-m", "benchmarks.empty_route"]
        with child_service(command, stdin=json.dumps(answer)) as empty:
            turns = _turns({"service": service, "empty": empty}, bodies, seconds, repeats, clients, tell)
        rate = median(turn["service"]["requests_per_second"] for turn in turns)
        halves = [measured(Load(service.port, bodies, seconds, clients, rate=rate / 2)) for _ in range(repeats)]
    empty_rates = [turn["empty"]["requests_per_second"] for turn in turns]
    ratios = [turn["service"]["requests_per_second"] / turn["empty"]["requests_per_second"] for turn in turns]
    return {
        "requests_per_second": rate,
        "empty_requests_per_second": median(empty_rates),
        "http_ratio": median(ratios),
        "p99_ms": median(half["p99_ms"] for half in halves),
        "p50_ms": median(half["p50_ms"] for half in halves),
        "failed": sum(half["failed"] for half in halves) + sum(turn["service"]["failed"] for turn in turns),
    }


def _batching(
    model: Path, bodies: tuple[str, ...], seconds: float, repeats: int, clients: int, tell: Progress
) -> dict[str, Any]:
    with umpteen_serve(model) as batched, umpteen_serve(model, "--batch-texts", "1") as single:
        turns = _turns({"batched": batched, "single": single}, bodies, seconds, repeats, clients, tell)
    rates = {side: median(turn[side]["requests_per_second"] for turn in turns) for side in ("batched", "single")}
    ratios = [turn["batched"]["requests_per_second"] / turn["single"]["requests_per_second"] for turn in turns]
    return {
        "minilm_requests_per_second": rates["batched"],
        "minilm_unbatched_requests_per_second": rates["single"],
        "batching_ratio": median(ratios),
        "minilm_failed": sum(turn[side]["failed"] for turn in turns for side in turn),
    }


def _turns(
    sides: dict[str, ChildService],
    bodies: tuple[str, ...],
    seconds: float,
    repeats: int,
    clients: int,
    tell: Progress,
) -> list[dict[str, dict[str, Any]]]:
    """Both sides in turns, after one that warms them up, so that what slows the machine slows both."""
    turns = []
    for repeat in range(repeats + 1):
        length = seconds if repeat else min(seconds, 1.0)
        turns.append({name: fastest(Load(side.port, bodies, length, clients)) for name, side in sides.items()})
        tell("loading " + " and ".join(sides), repeat, repeats)
    return turns[1:]


def static_model(path: Path, labels: LabelCatalogue) -> Path:
    """The demo's towers before training: as large and as fast."""
    query = StaticEncoder.from_token_table(MODEL, bigrams=100_000)
    Classifier.build(Towers(query, StaticEncoder.from_token_table(MODEL)).eval(), labels).save(path)
    return path


def _minilm_model(path: Path, labels: LabelCatalogue, count: int) -> Path:
    encoder = TransformerEncoder.load(MODEL, max_length=64)
    Classifier.build(Towers(encoder).eval(), _first(labels, count)).save(path)
    return path


def _first(labels: LabelCatalogue, count: int) -> LabelCatalogue:
    keys: Sequence[str] = labels.keys[:count]
    return LabelCatalogue(keys, [labels.texts[row] for row in range(len(keys))])
