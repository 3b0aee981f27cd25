"""The paper's comparison by label frequency (appendix): where do dual encoders gain over a one-vs-all classifier?

Labels are divided twice, most frequent first: into tenths of equal size, and, as the published code does, into tenths
that hold equally many training pairs each, the first of which are few labels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.classifiers import CLASSIFIERS, chosen_classifier, on_validation
from lab.comparison import Outcomes, written
from lab.estimate import Estimate
from lab.experiment import Claim, Conclusion, Job, Setup
from lab.figures import Curve, Lines
from lab.losses import LOSSES, TOP_5
from lab.training import Workbench
from umpteen.data.dataset import Split
from umpteen.search.ranking import Ranking, contains

IN_BATCH, HARD, CACHE, ALL = "in-batch", "+1 hard", "cache", "all labels"
ENCODERS = {
    IN_BATCH: ("pool.name=batch",),
    HARD: ("pool.name=shortlist", "pool.negatives=1"),
    CACHE: ("pool.name=cache", "pool.negatives=1"),
    ALL: ("pool.name=all",),
    TOP_5: LOSSES[TOP_5],
}
NEAR = 1.0  # points of P@5 that count as comparable
TAIL, HEAD = "rarest half", "most frequent tenth"
TAIL_BY_PAIRS, HEAD_BY_PAIRS = "rarest tenth by pairs", "most frequent tenth by pairs"


def begin(setup: Setup) -> Job:
    """Dual encoders with each pool and with SoftTop-5, and the classifier."""
    variants = {**ENCODERS, **CLASSIFIERS}
    bench = Workbench(setup, variants)

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        evaluator = trained.evaluator()
        ranking = trained.rank(evaluator)
        parts = [round(float(row["P@5"]), 4) for row in evaluator.report(ranking, bootstrap=0).deciles]
        by_pairs = contributions_by_pairs(ranking, evaluator.split, trained.label_counts())
        sums = {"P@5": sum(parts), HEAD: parts[0], TAIL: sum(parts[5:])}
        sums |= {HEAD_BY_PAIRS: by_pairs[0], TAIL_BY_PAIRS: by_pairs[9]}
        return {
            **{name: round(value, 4) for name, value in sums.items()},
            "deciles": parts,
            "deciles by pairs": by_pairs,
            **on_validation(trained.state.best_value),
            **trained.cost(),
        }

    return Job(bench.settings, list(variants), make, conclude, data=bench.name)


def deciles_by_pairs(label_counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Each label's tenth of the training pairs, 0 for the most frequent labels: that in which its last pair falls."""
    order = np.argsort(-label_counts.astype(np.int64), kind="stable")
    pairs = np.cumsum(label_counts[order].astype(np.int64))
    deciles = np.empty(len(label_counts), dtype=np.int64)
    deciles[order] = np.maximum(10 * pairs - 1, 0) // max(1, pairs[-1])
    return deciles


def contributions_by_pairs(ranking: Ranking, split: Split, label_counts: NDArray[np.integer]) -> list[float]:
    """What the labels of each tenth of the pairs contribute to P@5, in percent: they add up to it."""
    truth = split.relevance.without(split.filtered).matrix
    first = ranking.without(split.filtered.matrix).rows[:, :5]
    found = np.bincount(deciles_by_pairs(label_counts)[first[contains(truth, first)]], minlength=10)
    answerable = int((np.diff(truth.indptr) > 0).sum())
    return [round(100 * float(hits) / (5 * answerable), 4) for hits in found]


def conclude(outcomes: Outcomes) -> Conclusion:
    """The rare labels, the frequent ones, and what a larger pool gives to each."""
    classifier = chosen_classifier(outcomes)
    near = f"they are comparable on the {HEAD} (no more than {NEAR:.0f} point of P@5 behind)"
    claims = [
        _claim(outcomes, f"dual encoders gain on the {TAIL} of the labels over the classifier", ALL, classifier, TAIL),
        _claim(outcomes, near, ALL, classifier, HEAD, near=NEAR),
        _claim(outcomes, f"all labels beat in-batch negatives on the {HEAD}", ALL, IN_BATCH, HEAD),
        _claim(outcomes, f"dual encoders gain on the {TAIL_BY_PAIRS}", ALL, classifier, TAIL_BY_PAIRS),
        _claim(outcomes, near.replace(HEAD, HEAD_BY_PAIRS), ALL, classifier, HEAD_BY_PAIRS, near=NEAR),
        _claim(outcomes, f"all labels beat in-batch negatives on the {HEAD_BY_PAIRS}", ALL, IN_BATCH, HEAD_BY_PAIRS),
    ]
    words = "; ".join(
        f"{variant} {written(outcomes.mean(variant, 'P@5'))}, of which {outcomes.mean(variant, TAIL)['mean']:.2f} from "
        f"the rarest half"
        for variant in (*ENCODERS, classifier)
    )
    return Conclusion(
        claims,
        outcomes.table(["P@5", HEAD, TAIL, HEAD_BY_PAIRS, TAIL_BY_PAIRS, "validation"]),
        summary=(
            f"P@5 on test and what labels of each frequency contribute to it: {words}. The classifier is the one that "
            f"was better on validation ({classifier}). The paper finds classifier and dual encoders comparable on "
            "frequent labels and the classifier far behind on rare ones; and in-batch or hard negatives behind all "
            "labels mostly on frequent ones."
        ),
        title="What labels of each frequency contribute to P@5 on test (decile 1: the most frequent labels)",
        panels=[
            _panel(outcomes, [*ENCODERS, classifier], slice(0, 10), "tenths of the labels"),
            _panel(outcomes, [*ENCODERS, classifier], slice(2, 10), "from the third on"),
            _panel(outcomes, [*ENCODERS, classifier], slice(0, 10), "tenths of the training pairs", "deciles by pairs"),
        ],
    )


def _claim(outcomes: Outcomes, claim: str, ours: str, theirs: str, measure: str, *, near: float = 0.0) -> Claim:
    pairs = zip(outcomes.values(ours, measure), outcomes.values(theirs, measure), strict=True)
    difference = Estimate.of([mine + near - other for mine, other in pairs])
    figures = (
        f"contribution of the {measure} to P@5 {written(outcomes.mean(ours, measure))} for {ours}; "
        f"{written(outcomes.mean(theirs, measure))} for {theirs}"
    )
    return Claim.of(claim, "figures of LF-Wikipedia-500K and LF-AmazonTitles-1.3M", figures, difference)


def _panel(outcomes: Outcomes, variants: list[str], part: slice, title: str, measure: str = "deciles") -> Lines:
    places = list(range(1, 11))[part]
    curves = {
        variant: Curve(places, np.array(outcomes.values(variant, measure))[:, part], dashed=variant in CLASSIFIERS)
        for variant in variants
    }
    return Lines(curves, x="decile of labels by frequency", y="contribution to P@5 (points)", title=title, whole_x=True)
