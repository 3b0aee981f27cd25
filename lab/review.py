"""Where a person's time helps most: texts with the least certain answers first (`umpteen review`), against any order.

A model is trained on a part of train. Round by round it says which texts of the rest to look at, a person, who is the
truth, gives their labels, and the next model is trained with them, as `umpteen fit --from` does. Between the rounds the
model has learnt them through its examples alone, as `umpteen learn` does: that is measured, too. On test, after each.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.comparison import Outcomes, written
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.figures import Curve, Lines
from lab.training import TINY, Design, Steps, Trained, Workbench, rounded, train
from umpteen.calibration.calibration import fit_calibration
from umpteen.data.dataset import Dataset, Split, open_dataset, write_native
from umpteen.errors import BadInput
from umpteen.model.classifier import USUAL_K, Classifier
from umpteen.model.correcting import certainties
from umpteen.model.evaluate import evaluate_model

UNSURE, RANDOM = "least certain first", "random order"
AT_ONCE = ", by examples alone"
METRICS = ("P@1", "P@5", "nDCG@5")
VALIDATION = 0.1
SMALL = Design(4000, 2000, ("encoder.query.bigrams=0", "training.batch_size=64"))


class Effort(NamedTuple):
    """Texts to begin with, texts a round, rounds."""

    first: int
    texts: int
    rounds: int


EFFORTS = {"tiny": Effort(100, 20, 2), "small": Effort(1000, 100, 5), "paper": Effort(4000, 400, 5)}


def begin(setup: Setup) -> Job:
    """Two orders, each with models of its own from the second round on."""
    effort = EFFORTS[setup.size]
    bench = Workbench(setup, {UNSURE: (), RANDOM: ()}, {"tiny": TINY, "small": SMALL, "paper": Design()})
    dataset = open_dataset(bench.source)

    def make(variant: str, seed: int) -> dict[str, Any]:
        whole, random = dataset.with_validation(VALIDATION, seed), np.random.default_rng([seed, 1])
        assert whole.validation is not None and whole.test is not None
        order = random.permutation(len(whole.train))
        known, pool = order[: effort.first], order[effort.first :]
        course: list[dict[str, float]] = []
        for number in range(effort.rounds + 1):
            part = Dataset.of(whole.name, whole.labels, whole.train.take(np.sort(known)), whole.validation, whole.test)
            folder = setup.output / "data" / f"{variant.replace(' ', '-')}-{seed}-{number}"
            if not folder.exists():
                write_native(part, folder)
            config = bench.config(variant, seed, source=str(folder))
            trained = train(config, Steps(f"{variant}, seed {seed}, round {number}", setup.progress))
            classifier = _calibrated(trained, whole.validation)
            course.append({"texts": len(known) - effort.first, **_figures(classifier, part)})
            if number < effort.rounds:
                chosen = (
                    _first(classifier, whole.train, pool, effort.texts) if variant == UNSURE else pool[: effort.texts]
                )
                _teach(classifier, whole.train.take(chosen))
                course[-1] |= {f"{name}{AT_ONCE}": value for name, value in _figures(classifier, part).items()}
                known, pool = np.concatenate([known, chosen]), pool[~np.isin(pool, chosen)]
        means = {f"mean {name}": float(np.mean([one[name] for one in course[1:]])) for name in METRICS}
        return {**{name: course[-1][name] for name in METRICS}, **rounded(means), "course": course}

    return Job(bench.settings | effort._asdict(), [UNSURE, RANDOM], make, conclude, data=bench.name)


def _calibrated(trained: Trained, validation: Split) -> Classifier:
    made = trained.run.towers, trained.dataset.labels, trained.label_vectors().float()
    classifier = Classifier(*made)
    with suppress(BadInput):  # too few texts to tell: scores decide
        held_out = classifier.held_out(validation)
        classifier = Classifier(*made, calibration=fit_calibration(held_out, {}))
    return classifier


def _first(classifier: Classifier, train: Split, pool: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    texts = [train.texts[int(row)] for row in pool]
    width = min(USUAL_K + 1, classifier.labels.count())
    return pool[
        np.argsort(certainties(classifier.rank(texts, width).scores, classifier.calibration), kind="stable")[:count]
    ]


def _teach(classifier: Classifier, split: Split) -> None:
    """All labels of these texts, and the wrong ones among the first five."""
    keys, texts = classifier.labels.keys, list(split.texts)
    right = [[keys[row] for row in split.relevance.of(query)] for query in range(len(split))]
    given = [[label.key for label in one] for one in classifier.predict(texts)]
    wrong = [[key for key in shown if key not in own] for shown, own in zip(given, right, strict=True)]
    some = [row for row in range(len(texts)) if right[row] or wrong[row]]
    classifier.learn([texts[row] for row in some], [right[row] for row in some], [wrong[row] for row in some])


def _figures(classifier: Classifier, dataset: Dataset) -> dict[str, float]:
    metrics = evaluate_model(classifier, dataset, at=(1, 5))[0].metrics
    return rounded({name: metrics[name] for name in METRICS})


def conclude(outcomes: Outcomes) -> Conclusion:
    """By how much the least certain first are better, over all rounds, and how much is there before a training."""
    claim = "texts with the least certain answers are worth more of a person's time than any others"
    claims = [
        claim_better(outcomes, claim, UNSURE, RANDOM, f"mean {name}", paper="the paper has no such experiment")
        for name in ("P@1", "P@5")
    ]
    runs = {name: [run["course"] for run in outcomes if run["variant"] == name] for name in (UNSURE, RANDOM)}
    texts = [one["texts"] for one in runs[UNSURE][0]]

    def means(variant: str, name: str) -> list[float]:
        return [
            round(float(np.mean([course[place][name] for course in runs[variant]])), 2) for place in range(len(texts))
        ]

    at_once = [
        float(np.mean([course[place][f"P@1{AT_ONCE}"] - course[place]["P@1"] for course in runs[UNSURE]]))
        for place in range(len(texts) - 1)
    ]
    reached = "; ".join(f"P@1 {', '.join(map(str, means(name, 'P@1')))} in {name}" for name in runs)
    return Conclusion(
        claims,
        [{"variant": name, "texts": texts, **{metric: means(name, metric) for metric in METRICS}} for name in runs],
        summary=(
            f"On test, after {', '.join(map(str, texts))} reviewed texts, trained with them: {reached}. At the end "
            f"{written(outcomes.mean(UNSURE, 'P@1'))} against {written(outcomes.mean(RANDOM, 'P@1'))}. Before any "
            f"training, examples alone change P@1 of other texts by {', '.join(f'{value:+.2f}' for value in at_once)}: "
            "they answer for texts near to them. The paper has no such experiment."
        ),
        title="Reviewed texts: which first? On test, mean and range over seeds",
        panels=[
            Lines(
                {
                    name: Curve(texts, [[one[metric] for one in course] for course in found])
                    for name, found in runs.items()
                },
                x="reviewed texts",
                y=f"{metric} (%)",
            )
            for metric in METRICS[:2]
        ],
    )
