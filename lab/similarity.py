"""The paper's analysis by similarity of labels (appendix): do dual encoders gain where labels look alike?

A label's similarity is the mean of its 10 largest cosines with other labels, by the trained dual encoder's vectors.
Labels fall into three equal bins by it, all of them and then the tail (at most 5 training queries) alone; the gain is
the relative difference of what a bin's labels contribute to P@5.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.classifiers import CLASSIFIERS, chosen_classifier, on_validation
from lab.comparison import Outcomes
from lab.dots import Dots, Value
from lab.estimate import Estimate, verdict
from lab.experiment import Claim, Conclusion, Job, Setup
from lab.losses import DECOUPLED, LOSSES
from lab.training import Trained, Workbench
from umpteen.search.exact import top_k
from umpteen.search.ranking import contains

ENCODER = "dual encoder"
FEWEST = 100  # hits of the classifier in a bin; relative gains over fewer say nothing
BINS = ("most dissimilar", "middle", "most similar")
NEIGHBOURS, TAIL, AT = 10, 5, 5


def begin(setup: Setup) -> Job:
    """The dual encoder with all labels, and the classifier."""
    variants = {ENCODER: LOSSES[DECOUPLED], **CLASSIFIERS}
    bench = Workbench(setup, variants)

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        evaluator = trained.evaluator()
        rows = trained.rank(evaluator).rows[:, :AT]
        hits = contains(evaluator.split.relevance.without(evaluator.split.filtered).matrix, rows)
        labels = len(trained.dataset.labels)
        outcome = {
            "hits": np.bincount(rows[hits], minlength=labels).tolist(),
            "counts": trained.label_counts().tolist(),
            **on_validation(trained.state.best_value),
        }
        return outcome | ({"similarity": similarity(trained).round(4).tolist()} if variant == ENCODER else {})

    return Job(bench.settings, list(variants), make, conclude, data=bench.name, bulky=("hits", "counts", "similarity"))


def similarity(trained: Trained) -> NDArray[np.float64]:
    """How alike each label is to the labels nearest to it."""
    vectors = trained.label_vectors()
    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    width = min(NEIGHBOURS + 1, len(vectors))
    scores = top_k(vectors, vectors, width).scores.astype(np.float64)
    return np.asarray((scores.sum(1) - 1) / (width - 1))  # a label's cosine with itself is 1


def gains(outcomes: Outcomes, classifier: str, *, tail: bool) -> tuple[NDArray[np.float64], int]:
    """The relative gain over the classifier, in percent, by seed and bin, and the fewest hits one of them rests on."""
    rows, fewest = [], []  # [seeds, bins]
    for seed, ours in enumerate(outcomes.values(ENCODER, "hits")):
        counts = np.array(outcomes.values(ENCODER, "counts")[seed])
        labels = np.flatnonzero(counts <= TAIL) if tail else np.arange(len(counts))
        alike = np.array(outcomes.values(ENCODER, "similarity")[seed])[labels]
        theirs = outcomes.values(classifier, "hits")[seed]
        bins = np.array_split(labels[np.argsort(alike, kind="stable")], len(BINS))
        mine, other = (np.array([np.array(hits)[labels].sum() for labels in bins]) for hits in (ours, theirs))
        rows.append(100 * (mine - other) / np.maximum(other, 1))  # where the classifier hits nothing, as if once
        fewest.append(int(other.min()))
    return np.array(rows), min(fewest)


def conclude(outcomes: Outcomes) -> Conclusion:
    """Whether the gain grows with similarity, on the tail and on all labels."""
    classifier = chosen_classifier(outcomes)
    found = {"tail": gains(outcomes, classifier, tail=True), "all": gains(outcomes, classifier, tail=False)}
    steps = {name: Estimate.of(values[:, -1] - values[:, 0]).figures() for name, (values, _) in found.items()}
    means = {name: [Estimate.of(column).figures() for column in values.T] for name, (values, _) in found.items()}
    words = {n: ", ".join(f"{b} {m['mean']:+.0f} %" for b, m in zip(BINS, means[n], strict=True)) for n in found}
    tail = Claim(
        f"on tail labels (≤ {TAIL} training queries) the gain over the classifier is larger for similar labels",
        "a figure of LF-Wikipedia-500K; no numbers",
        verdict(steps["tail"]["interval"]) if found["tail"][1] >= FEWEST else "undecided",
        f"relative gain at P@{AT} by similarity: {words['tail']}",
        steps["tail"],
    )
    flat = steps["all"]["interval"]
    every = Claim(
        "over all labels there is no such pattern",
        "a figure of LF-Wikipedia-500K; no numbers",
        # The reverse of the usual reading: an interval that covers 0 is what the claim expects, yet it proves nothing.
        "undecided" if flat is None or flat[0] <= 0 <= flat[1] or found["all"][1] < FEWEST else "refuted",
        f"relative gain at P@{AT} by similarity: {words['all']}",
        steps["all"],
    )
    return Conclusion(
        [tail, every],
        {name: dict(zip(BINS, values, strict=True)) for name, values in means.items()} | {"classifier": classifier},
        summary=(
            f"Relative gain of the dual encoder over the classifier ({classifier}, the better one on validation) in "
            f"what labels contribute to P@{AT}: on tail labels {words['tail']}; on all labels {words['all']}. "
            f"A verdict needs {FEWEST} hits of the classifier in every bin; the fewest here: {found['tail'][1]} and "
            f"{found['all'][1]}. The paper sees the gain on tail labels rise with similarity, and no pattern over all."
        ),
        title=f"Gain of the dual encoder over the classifier at P@{AT}, by similarity of labels (95 % intervals)",
        panels=[
            Dots(
                {name: Value(**value) for name, value in zip(BINS, means[part], strict=True)},
                x="relative gain (%)",
                title=title,
                digits=0,
            )
            for part, title in (("all", "all labels"), ("tail", f"labels with at most {TAIL} training queries"))
        ],
    )
