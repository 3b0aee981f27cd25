"""All labels in the bar, few of them encoded: a bank of kept vectors beside in-batch, cache, sampled replay and all.

The paper leaves open how to have the accuracy of all negatives without encoding all labels at every step. Every variant
takes the same number of steps; what differs is how many labels a step encodes, and which of them learn.
"""

from typing import Any

import numpy as np

from lab.comparison import Outcomes
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.training import TINY, Design, Trained, Workbench
from umpteen.evaluation.figures import Point, Points

BATCH, CACHE, MINED, SAMPLED, ALL = "batch", "cache", "bank, mined", "bank, sampled", "all"
REPLAY = "all, a fifth replayed"
POOLS = {
    BATCH: ("pool.name=batch",),
    CACHE: ("pool.name=cache", "pool.negatives=1"),
    MINED: ("pool.name=bank", "pool.sampled=0", "pool.negatives=1"),
    SAMPLED: ("pool.name=bank", "pool.sampled=1"),
    f"{SAMPLED} ×4": ("pool.name=bank", "pool.sampled=4"),
    f"{SAMPLED}, renewed": ("pool.name=bank", "pool.sampled=3", "pool.renewed=128"),
    ALL: ("pool.name=all",),
}
STEPS = ("training.batch_size=512", "training.epochs=3", "encoder.query.bigrams=0")
DESIGNS = {
    "tiny": Design(TINY.queries, TINY.labels, (*TINY.settings, "training.epochs=1")),
    "small": Design(40_000, 1_000_000, STEPS),  # as many labels as there are
    "paper": Design(settings=STEPS),
}
# A label tower that is a transformer, so that encoding all labels is what a step costs; no dropout, as replay needs.
SHORT = (
    "encoder.towers=separate",
    "encoder.query.kind=static",
    "encoder.query.learning_rate=0.005",
    "encoder.label.kind=transformer",
    "encoder.label.layers=2",
    "encoder.label.max_length=16",
    "encoder.label.learning_rate=0.0003",
    "data.validation_fraction=0.1",
    "training.minutes=none",
    "evaluation.every_steps=none",
)
SHORT_DESIGNS = {
    "small": Design(8000, 4000, (*SHORT, "training.batch_size=128", "training.epochs=4"), whole_test=True),
    "paper": Design(settings=(*SHORT, "training.batch_size=512", "training.epochs=10")),
}
MEASURES = ("validation", "nDCG@5", "P@1", "R@100", "encoded", "staleness", "replay_noise", "processor_seconds")


def begin(setup: Setup) -> Job:
    """Every way to spare label encodings, with the objective of the recipe."""
    short = setup.encoder == "minilm-short"
    pools = POOLS | ({REPLAY: ("training.replay_fraction=0.2",)} if short else {})
    bench = Workbench(setup, pools, DESIGNS, SHORT_DESIGNS)

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        return trained.metrics() | trained.cost() | encodings_of(trained) | {"validation": trained.state.best_value}

    return Job(bench.settings, list(pools), make, conclude, data=bench.name)


def encodings_of(trained: Trained) -> dict[str, float]:
    """Labels encoded a step, steps since kept vectors were computed, noise of the sample: means over the run."""
    every = len(trained.dataset.labels)

    def encoded(record: dict[str, Any]) -> float:
        is_bank = {"pool", "replayed"} <= set(record)  # a replay alone encodes all labels, and a share of them twice
        return float(every * record["replayed"] if is_bank else record.get("pool", every))

    return {
        "encoded": round(float(np.mean([encoded(record) for record in trained.records])), 1),
        "staleness": round(float(np.mean([record.get("staleness", 0.0) for record in trained.records])), 2),
        "replay_noise": round(float(np.mean([record.get("replay_noise", 0.0) for record in trained.records])), 3),
    }


def conclude(outcomes: Outcomes) -> Conclusion:
    """What kept vectors add to in-batch negatives, and what is left to all labels."""
    asked = "asked, not answered: all negatives without encoding all labels"
    claims = [
        claim_better(outcomes, f"{better} beats {worse}", better, worse, "nDCG@5", paper=asked)
        for better, worse in (
            (SAMPLED, BATCH),
            (SAMPLED, CACHE),
            (SAMPLED, MINED),
            (ALL, SAMPLED),
            (ALL, f"{SAMPLED} ×4"),
        )
    ]
    words = "; ".join(
        f"{name}: {outcomes.mean(name, 'encoded')['mean']:,.0f} labels encoded a step, "
        f"{outcomes.mean(name, 'validation')['mean']:.2f}, {outcomes.mean(name, 'processor_seconds')['mean']:.0f} s"
        for name in outcomes.variants
    )
    points = {
        measure: [
            Point(name, outcomes.mean(name, measure)["mean"], outcomes.mean(name, "validation")["mean"], 0)
            for name in outcomes.variants
        ]
        for measure in ("encoded", "processor_seconds")
    }
    return Conclusion(
        claims,
        outcomes.table(list(MEASURES)),
        summary=(
            f"Labels encoded a step, nDCG@5 on validation, processor seconds of the steps: {words}. The paper names "
            "the accuracy of all negatives without encoding all labels as future work; it has in-batch, cache and all."
        ),
        title="Labels encoded a step against accuracy: in-batch, cache, banks, all labels",
        panels=[
            Points(points["encoded"], x="labels encoded a step", y="nDCG@5 on validation (%)"),
            Points(points["processor_seconds"], x="processor seconds of training", y="nDCG@5 on validation (%)"),
        ],
    )
