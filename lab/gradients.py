"""The paper's figure of gradient feedback (section 4.1): how hard is a right label pulled, query by query?

ℓ_i's derivative by the score of a positive is −(1 − |P_i| σ_il) under softmax, where σ_il is the label's share of all
labels, and −(1 − σ_il) under decoupled softmax, where the other positives are not in the sum. What stands in the
brackets is the feedback: 1 pulls with full force, 0 leaves alone, below 0 pushes a right label down.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.comparison import Outcomes
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.figures import Curve, Lines
from lab.losses import DECOUPLED, LOSSES, SOFTMAX
from lab.training import Steps, Workbench, train
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.encoders.encoder import encode_tokens
from umpteen.errors import BadInput
from umpteen.files.progress import Progress

NAMED, DRAWN = 2, 2  # labels whose words stand in their queries, and labels drawn at random
QUERIES = 64  # of a label, at most
FEWEST = {"tiny": 3, "small": 10, "paper": 20}  # training queries of a chosen label
MEASURED = 25  # times through training


def begin(setup: Setup) -> Job:
    """Softmax and decoupled softmax; the same labels are watched in every run."""
    bench = Workbench(setup, {DECOUPLED: LOSSES[DECOUPLED], SOFTMAX: LOSSES[SOFTMAX]})
    labels = choose_labels(open_dataset(bench.source), FEWEST[setup.size])

    def make(variant: str, seed: int) -> dict[str, Any]:
        watched = [row for row, _ in labels]
        config = bench.config(variant, seed)
        feedback = Feedback(
            f"{variant}, seed {seed}",
            setup.progress,
            watched,
            decoupled=variant == DECOUPLED,
            temperature=config.objective.temperature,
        )
        train(config, feedback)
        return feedback.outcome()

    texts = [text for _, text in labels]
    return Job(
        bench.settings | {"labels": texts}, [DECOUPLED, SOFTMAX], make, lambda o: conclude(o, texts), data=bench.name
    )


def choose_labels(dataset: Dataset, fewest: int) -> list[tuple[int, str]]:
    """By rule, not by hand: the labels most often named by their own queries, and some drawn at random."""
    relevance = dataset.train.relevance
    counts = relevance.label_counts()
    frequent = np.flatnonzero(counts >= fewest)
    if len(frequent) < NAMED + DRAWN:
        raise BadInput(
            f"{dataset.name} has {len(frequent)} labels with {fewest} training queries; gradients needs four"
        )
    by_label = relevance.matrix.tocsc()
    named = {}
    for row in frequent.tolist():
        words = set(dataset.labels.texts[row].lower().split())
        queries = by_label.indices[by_label.indptr[row] : by_label.indptr[row + 1]][:QUERIES]
        named[row] = np.mean([words <= set(dataset.train.texts[int(query)].lower().split()) for query in queries])
    best = sorted(named, key=lambda row: (-named[row], row))[:NAMED]
    others = [row for row in frequent.tolist() if row not in best]
    drawn = np.random.default_rng(0).choice(others, DRAWN, replace=False).tolist()
    return [(row, dataset.labels.texts[row]) for row in (*best, *sorted(drawn))]


class Feedback(Steps):
    """Measures the feedback on the watched labels from all their training queries, some times in a run."""

    def __init__(
        self, name: str, progress: Progress, labels: Sequence[int], *, decoupled: bool, temperature: float
    ) -> None:
        super().__init__(name, progress)
        self._labels = labels
        self._decoupled = decoupled
        self._temperature = temperature
        self._every = 1
        self.steps: list[int] = []
        self.values: list[list[NDArray[np.float64]]] = []  # by time, by label: one for each query

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        super().started(config, step, steps)
        self._every = max(1, steps // MEASURED)

    def stepped(self, record: dict[str, Any]) -> None:
        super().stepped(record)
        if record["step"] % self._every == 0:
            self.steps.append(record["step"])
            self.values.append(self._measure())

    def _measure(self) -> list[NDArray[np.float64]]:
        assert self.run is not None
        data, towers = self.run.data, self.run.towers
        labels = encode_tokens(towers.label, data.labels)
        by_label = data.relevance.matrix.tocsc()
        found = []
        for label in self._labels:
            rows = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]][:QUERIES].astype(np.int64)
            scores = encode_tokens(towers.query, data.queries.take(rows)) @ labels.T / self._temperature
            relevant = torch.zeros_like(scores, dtype=torch.bool)
            for place, row in enumerate(rows.tolist()):
                relevant[place, torch.from_numpy(data.relevance.of(row).astype(np.int64))] = True
            pulled = feedback_of(scores.double(), relevant, decoupled=self._decoupled)
            found.append(pulled[:, label].numpy())
        return found

    def outcome(self) -> dict[str, Any]:
        """Mean and spread over the queries, by label and time, and the two figures that the claims rest on."""
        late = self.values[len(self.values) // 5 :]  # the first fifth is warm-up, where everything is pulled alike
        spread = np.mean([values.std() for at in late for values in at])
        negative = np.mean([(values < 0).mean() for at in late for values in at])
        return {
            "spread": round(float(spread), 4),
            "pushed down (%)": round(100 * float(negative), 3),
            "steps": self.steps,
            "mean": [[round(float(values.mean()), 4) for values in at] for at in self.values],
            "deviation": [[round(float(values.std()), 4) for values in at] for at in self.values],
        }


def feedback_of(scores: torch.Tensor, relevant: torch.Tensor, *, decoupled: bool) -> torch.Tensor:
    """The feedback on every positive (elsewhere without meaning)."""  # [queries, labels]
    if decoupled:
        bar = scores.masked_fill(relevant, -torch.inf).logsumexp(1, keepdim=True)
        return torch.sigmoid(bar - scores)
    return 1 - relevant.sum(1, keepdim=True) * torch.softmax(scores, 1)


def conclude(outcomes: Outcomes, texts: Sequence[str]) -> Conclusion:
    """Whose feedback varies more, and whose turns against right labels."""
    paper = "a figure of two labels of EURLex-4K, one picked and one drawn; no numbers"
    claims = [
        claim_better(
            outcomes,
            "softmax's feedback on a right label varies more from query to query than decoupled softmax's",
            SOFTMAX,
            DECOUPLED,
            "spread",
            paper=paper,
        ),
        claim_better(
            outcomes,
            "softmax pushes right labels down, decoupled softmax never does",
            SOFTMAX,
            DECOUPLED,
            "pushed down (%)",
            paper=paper,
        ),
    ]
    return Conclusion(
        claims,
        outcomes.table(["spread", "pushed down (%)"]),
        summary=(
            f"Feedback on {len(texts)} labels (the first {NAMED} those whose words most often stand in their queries, "
            f"the others drawn at random), from up to {QUERIES} of their training queries, {MEASURED} times through "
            f"training, with dropout off. Over the last four fifths its standard deviation from query to query is "
            f"{outcomes.mean(SOFTMAX, 'spread')['mean']:.2f} under softmax and "
            f"{outcomes.mean(DECOUPLED, 'spread')['mean']:.2f} under decoupled softmax, and "
            f"{outcomes.mean(SOFTMAX, 'pushed down (%)')['mean']:.1f} % against "
            f"{outcomes.mean(DECOUPLED, 'pushed down (%)')['mean']:.1f} % of it pushes the right label down. The paper "
            "shows the same for two labels as a figure."
        ),
        title="Feedback on a right label through training, seed 0: mean over its queries ± standard deviation",
        panels=[_panel(outcomes, place, text) for place, text in enumerate(texts)],
    )


def _panel(outcomes: Outcomes, place: int, text: str) -> Lines:
    curves = {}
    for variant in (DECOUPLED, SOFTMAX):
        run = next(run for run in outcomes if run["variant"] == variant)
        mean, deviation = (np.array(run[key])[:, place] for key in ("mean", "deviation"))
        # The mean of the three rows is the mean, and the band from the lowest to the highest is ± one deviation.
        curves[variant] = Curve(run["steps"], [mean, mean + deviation, mean - deviation])
    shown = text if len(text) <= 40 else text[:39] + "…"
    return Lines(curves, x="step", y="feedback", title=f"“{shown}”", whole_x=True, marks=False)
