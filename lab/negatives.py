"""The paper's ablation of negatives (section 5.4, its table 3 and the appendix): pool size against accuracy and time.

As there, one positive is drawn for each query, so that a batch of B queries brings about B labels into play, and m hard
negatives per query about B·m more. All variants take the same number of steps.
"""

from typing import Any

import numpy as np

from lab.comparison import Outcomes
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.figures import Curve, Lines
from lab.losses import COURSE, DECOUPLED, LOSSES, METRICS, SOFTMAX, course_of
from lab.training import TINY, Design, Trained, Workbench
from umpteen.evaluation.figures import Point, Points

BATCH, CACHE, ALL = "batch", "cache", "all"
POOLS = {
    BATCH: ("pool.name=batch",),
    **{f"+{m} hard": ("pool.name=shortlist", f"pool.negatives={m}") for m in (1, 2, 5, 10)},
    **{f"+{m} random": ("pool.name=random", f"pool.negatives={m}") for m in (1, 2, 5, 10)},
    CACHE: ("pool.name=cache", "pool.negatives=5"),
    ALL: ("pool.name=all",),
}
HARD, RANDOM = ([name for name in POOLS if name.endswith(kind)] for kind in ("hard", "random"))
ONE_POSITIVE = ("objective.positives_per_query=1", "encoder.query.bigrams=0")
DESIGNS = {
    "tiny": Design(TINY.queries, TINY.labels, (*TINY.settings, *ONE_POSITIVE, "training.epochs=1")),
    # As many labels as there are: where a batch brings most of them into play, there is nothing to mine.
    "small": Design(40_000, 1_000_000, (*ONE_POSITIVE, "training.batch_size=256", "training.epochs=5")),
    "paper": Design(settings=(*ONE_POSITIVE, "training.batch_size=256")),
}


def begin(setup: Setup) -> Job:
    """Every pool with decoupled softmax and with softmax."""
    variants = {f"{loss}, {pool}": (*LOSSES[loss], *POOLS[pool]) for loss in (DECOUPLED, SOFTMAX) for pool in POOLS}
    bench = Workbench(setup, variants, DESIGNS)

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        return trained.metrics() | trained.cost() | pool_of(trained) | {COURSE: trained.course("nDCG@5")}

    return Job(bench.settings, list(variants), make, conclude, data=bench.name)


def pool_of(trained: Trained) -> dict[str, float]:
    """The labels in play at a step and the age of the mined ones in steps, both as means over the run."""
    every = len(trained.dataset.labels)
    return {
        "pool": round(float(np.mean([record.get("pool", every) for record in trained.records])), 1),
        "staleness": round(float(np.mean([record.get("staleness", 0.0) for record in trained.records])), 2),
    }


def conclude(outcomes: Outcomes) -> Conclusion:
    """More help, hard ones more than random ones, and all of them most."""
    ours = {pool: f"{DECOUPLED}, {pool}" for pool in POOLS}
    theirs = {pool: f"{SOFTMAX}, {pool}" for pool in POOLS}
    table = "54.01 at +10 hard against 42.15 in-batch (LF-AmazonTitles-1.3M), 84.77 against 77.71 (LF-Wikipedia-500K)"
    infonce = "LF-AmazonTitles-1.3M: 54.01 against 51.19 at +10 hard, 58.40 against 52.42 with all"
    claims = [
        claim_better(
            outcomes, "hard negatives help: +10 beats in-batch", ours[HARD[-1]], ours[BATCH], "P@1", paper=table
        ),
        claim_better(
            outcomes,
            "more hard negatives help more: +10 beats +1",
            ours[HARD[-1]],
            ours[HARD[0]],
            "P@1",
            paper="54.01 against 49.16 (LF-AmazonTitles-1.3M), 84.77 against 82.85 (LF-Wikipedia-500K)",
        ),
        *(
            claim_better(
                outcomes,
                f"hard negatives help more than as many random ones ({hard.split()[0]})",
                ours[hard],
                ours[random],
                "P@1",
                paper="said of negatives' quality; random ones were not run",
            )
            for hard, random in zip(HARD, RANDOM, strict=True)
        ),
        claim_better(
            outcomes,
            "all labels are better than +10 hard",
            ours[ALL],
            ours[HARD[-1]],
            "P@1",
            paper="58.40 against 54.01 (LF-AmazonTitles-1.3M)",
        ),
        *(
            claim_better(
                outcomes,
                f"decoupled softmax beats softmax (InfoNCE) with the pool {pool}",
                ours[pool],
                theirs[pool],
                "P@1",
                paper=infonce,
            )
            for pool in (HARD[-1], ALL)
        ),
    ]
    words = "; ".join(
        f"{pool}: pool {outcomes.mean(name, 'pool')['mean']:,.0f}, P@1 {outcomes.mean(name, 'P@1')['mean']:.1f}, "
        f"{outcomes.mean(name, 'processor_seconds')['mean']:.0f} s"
        for pool, name in ours.items()
    )
    return Conclusion(
        claims,
        outcomes.table([*METRICS, "pool", "staleness", "processor_seconds"]),
        summary=(
            f"Decoupled softmax, mean pool, P@1 on test and processor seconds of the steps: {words}. In the paper P@1 "
            "rises with every increase of the pool, up to all labels, with both objectives; there a batch brings "
            "8,192 of 1.3 million labels into play."
        ),
        title="Pool of competing labels (batch, +1, +2, +5, +10 hard, all): accuracy, size and time",
        panels=[
            *(_against_pool(outcomes, metric) for metric in ("P@1", "P@5", "R@100")),
            _against_time(outcomes, "P@1"),
            Lines(
                {pool: course_of(outcomes, ours[pool]) for pool in (BATCH, HARD[-1], CACHE, ALL)},
                x="step",
                y="nDCG@5, validation",
            ),
        ],
    )


def _against_pool(outcomes: Outcomes, metric: str) -> Lines:
    curves = {}
    groups = {
        (DECOUPLED, "batch to all"): ([BATCH, *HARD, ALL], "o"),
        (SOFTMAX, "batch to all"): ([BATCH, *HARD, ALL], "o"),
        (DECOUPLED, "random"): (RANDOM, "s"),
        (SOFTMAX, "random"): (RANDOM, "s"),
        (DECOUPLED, CACHE): ([CACHE], "D"),
        (SOFTMAX, CACHE): ([CACHE], "D"),
    }
    for (loss, name), (pools, marker) in groups.items():
        variants = [f"{loss}, {pool}" for pool in pools]
        places = [float(outcomes.mean(variant, "pool")["mean"]) for variant in variants]
        values = np.array([outcomes.values(variant, metric) for variant in variants]).T
        curves[f"{loss}: {name}"] = Curve(places, values, colour=int(loss == SOFTMAX), marker=marker)
    return Lines(curves, x="labels in play", y=f"{metric} (%)")


def _against_time(outcomes: Outcomes, metric: str) -> Points:
    points = [
        Point(
            name.partition(", ")[2],
            outcomes.mean(name, "processor_seconds")["mean"],
            outcomes.mean(name, metric)["mean"],
            int(name.startswith(SOFTMAX)),
        )
        for name in outcomes.variants
    ]
    return Points(points, x="processor seconds of training", y=f"{metric} (%)")
