"""The paper's comparison by label frequency (appendix): where do dual encoders gain over a one-vs-all classifier?"""

from typing import Any

import numpy as np

from lab.classifiers import CLASSIFIERS, chosen_classifier, on_validation
from lab.comparison import Outcomes, over_seeds, verdict, written
from lab.experiment import Claim, Conclusion, Job, Setup
from lab.losses import LOSSES, TOP_5
from lab.training import Workbench
from umpteen.evaluation.figures import Curve, Lines

IN_BATCH, HARD, CACHE, ALL = "in-batch", "+1 hard", "cache", "all labels"
ENCODERS = {
    IN_BATCH: ("pool.name=batch",),
    HARD: ("pool.name=shortlist", "pool.negatives=1"),
    CACHE: ("pool.name=cache", "pool.negatives=1"),
    ALL: ("pool.name=all",),
    TOP_5: LOSSES[TOP_5],
}
NEAR = 1.0  # points of P@5 that count as comparable


def begin(setup: Setup) -> Job:
    """Dual encoders with each pool and with SoftTop-5, and the classifier."""
    variants = {**ENCODERS, **CLASSIFIERS}
    bench = Workbench(setup, variants)

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        evaluator = trained.evaluator()
        deciles = evaluator.report(trained.rank(evaluator), bootstrap=0).deciles
        parts = [round(float(row["P@5"]), 4) for row in deciles]
        sums = {"P@5": sum(parts), "most frequent tenth": parts[0], "rarest half": sum(parts[5:])}
        return {
            **{name: round(value, 4) for name, value in sums.items()},
            "deciles": parts,
            **on_validation(trained.state.best_value),
            **trained.cost(),
        }

    return Job(bench.settings, list(variants), make, conclude, data=bench.name)


def conclude(outcomes: Outcomes) -> Conclusion:
    """The rare half, the frequent tenth, and what a larger pool gives to each."""
    classifier = chosen_classifier(outcomes)
    tail, head = "rarest half", "most frequent tenth"
    claims = [
        _claim(
            outcomes, "dual encoders gain on the rarest half of the labels over the classifier", ALL, classifier, tail
        ),
        _claim(
            outcomes,
            f"they are comparable on the most frequent tenth (no more than {NEAR:.0f} point of P@5 behind)",
            ALL,
            classifier,
            head,
            near=NEAR,
        ),
        _claim(outcomes, "all labels beat in-batch negatives on the most frequent tenth", ALL, IN_BATCH, head),
    ]
    words = "; ".join(
        f"{variant} {written(outcomes.mean(variant, 'P@5'))}, of which {outcomes.mean(variant, tail)['mean']:.2f} from "
        f"the rarest half"
        for variant in (*ENCODERS, classifier)
    )
    return Conclusion(
        claims,
        outcomes.table(["P@5", head, tail, "validation"]),
        summary=(
            f"P@5 on test and what labels of each frequency contribute to it: {words}. The classifier is the one that "
            f"was better on validation ({classifier}). The paper finds classifier and dual encoders comparable on "
            "frequent labels and the classifier far behind on rare ones; and in-batch or hard negatives behind all "
            "labels mostly on frequent ones."
        ),
        title="What labels of each frequency contribute to P@5 on test (decile 1: the most frequent labels)",
        panels=[
            _panel(outcomes, [*ENCODERS, classifier], slice(0, 10), "all deciles"),
            _panel(outcomes, [*ENCODERS, classifier], slice(2, 10), "from the third decile on"),
        ],
    )


def _claim(outcomes: Outcomes, claim: str, ours: str, theirs: str, measure: str, *, near: float = 0.0) -> Claim:
    pairs = zip(outcomes.values(ours, measure), outcomes.values(theirs, measure), strict=True)
    difference = over_seeds([mine + near - other for mine, other in pairs])
    figures = (
        f"contribution of the {measure} to P@5 {written(outcomes.mean(ours, measure))} for {ours}; "
        f"{written(outcomes.mean(theirs, measure))} for {theirs}"
    )
    return Claim(
        claim,
        "figures of LF-Wikipedia-500K and LF-AmazonTitles-1.3M",
        verdict(difference["interval"]),
        figures,
        difference,
    )


def _panel(outcomes: Outcomes, variants: list[str], part: slice, title: str) -> Lines:
    places = list(range(1, 11))[part]
    curves = {
        variant: Curve(places, np.array(outcomes.values(variant, "deciles"))[:, part], dashed=variant in CLASSIFIERS)
        for variant in variants
    }
    return Lines(curves, x="decile of labels by frequency", y="contribution to P@5 (points)", title=title, whole_x=True)
