"""The paper's analysis of scores: precision against recall over all pairs, and how positives and negatives part."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lab.choosing import only_settled, train_chosen
from lab.comparison import Outcomes
from lab.dots import Dots, Value
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.figures import Curve, Lines
from lab.losses import DECOUPLED, LOSSES, SOFTMAX, TOP_5
from lab.training import Workbench
from umpteen.data.dataset import Split
from umpteen.data.labels import Relevance
from umpteen.encoders.encoder import encode_texts

COMPARED = (DECOUPLED, SOFTMAX, TOP_5)
FINE, DRAWN = 4000, 80  # bins between the lowest and the highest score, to compute with and to draw
QUERIES_AT_A_TIME = 256


class Counts(NamedTuple):
    """How many scores of test pairs fall into each of FINE bins."""

    edges: NDArray[np.float64]
    positive: NDArray[np.int64]
    negative: NDArray[np.int64]


def begin(setup: Setup) -> Job:
    """Three objectives, and the scores of all test pairs."""
    bench = Workbench(setup, {name: LOSSES[name] for name in COMPARED})

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained, how = train_chosen(bench, variant, seed)
        assert trained.dataset.test is not None
        queries = encode_texts(trained.run.towers.query, trained.dataset.test.texts)
        counts = count_scores(queries, trained.label_vectors(), trained.dataset.test)
        recall, precision, average = precision_recall(counts)
        grid = np.linspace(0.01, 1, 100)
        coarse = [side.reshape(DRAWN, -1).sum(1) for side in (counts.positive, counts.negative)]
        return {
            **how,
            "average precision (%)": round(100 * average, 3),
            "separation": round(separation(counts), 4),
            "recall": grid.round(3).tolist(),
            "precision": np.interp(grid, recall, precision).round(5).tolist(),
            "bins": counts.edges[:: FINE // DRAWN].round(4).tolist(),
            "positive": [round(float(value), 6) for value in coarse[0] / coarse[0].sum()],
            "negative": [round(float(value), 6) for value in coarse[1] / coarse[1].sum()],
        }

    return Job(bench.settings, list(COMPARED), make, conclude, data=bench.name)


def count_scores(queries: Tensor, labels: Tensor, split: Split) -> Counts:
    """Inner products of all pairs but filtered ones, counted block by block."""
    truth = split.relevance.without(split.filtered)
    largest = 1.0001 * float(queries.norm(dim=1).max() * labels.norm(dim=1).max())  # rounding must not push any out
    edges = np.linspace(-largest, largest, FINE + 1)
    everything, positive, filtered = (np.zeros(FINE, dtype=np.int64) for _ in range(3))
    for start in range(0, len(queries), QUERIES_AT_A_TIME):
        rows = np.arange(start, min(start + QUERIES_AT_A_TIME, len(queries)))
        scores = (queries[start : start + QUERIES_AT_A_TIME] @ labels.T).double()
        everything += _counted(scores.flatten(), largest)
        for counts, pairs in ((positive, truth), (filtered, split.filtered)):
            counts += _counted(scores[_places(pairs.take(rows))], largest)
    return Counts(edges, positive, everything - positive - filtered)


def _places(pairs: Relevance) -> tuple[Tensor, Tensor]:
    matrix = pairs.matrix
    query = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return torch.from_numpy(query), torch.from_numpy(matrix.indices.astype(np.int64))


def _counted(scores: Tensor, largest: float) -> NDArray[np.int64]:
    return torch.histc(scores, FINE, -largest, largest).numpy().astype(np.int64)


def precision_recall(counts: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Recall (rising), precision, and average precision, with the threshold at each bin's lower edge."""
    hits = np.cumsum(counts.positive[::-1])
    shown = hits + np.cumsum(counts.negative[::-1])
    recall = hits / max(1, hits[-1])
    precision = np.divide(hits, shown, out=np.ones(len(hits)), where=shown > 0)
    return recall, precision, float(np.sum(np.diff(recall, prepend=0.0) * precision))


def separation(counts: Counts) -> float:
    """The distance of the two means in units of their standard deviation (root of the mean of both variances)."""
    middle = (counts.edges[1:] + counts.edges[:-1]) / 2
    (high, wide), (low, narrow) = (_moments(middle, side) for side in (counts.positive, counts.negative))
    return (high - low) / float(np.sqrt((wide + narrow) / 2))


def _moments(places: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[float, float]:
    mean = float(np.average(places, weights=counts))
    return mean, float(np.average((places - mean) ** 2, weights=counts))


def conclude(outcomes: Outcomes) -> Conclusion:
    """Who trades precision for recall better, and whose positives stand further from the negatives."""
    figure = "a figure of EURLex-4K; no numbers"
    claims = [
        claim_better(
            outcomes,
            "decoupled softmax offers a better precision–recall trade-off than softmax (average precision over pairs)",
            DECOUPLED,
            SOFTMAX,
            "average precision (%)",
            paper=figure,
        ),
        *(
            claim_better(
                outcomes,
                f"{ours} separates positives and negatives better than softmax (distance of means ÷ deviation)",
                ours,
                SOFTMAX,
                "separation",
                paper=figure,
            )
            for ours in (DECOUPLED, TOP_5)
        ),
    ]
    figures = "; ".join(
        f"{variant} {outcomes.mean(variant, 'average precision (%)')['mean']:.1f} % and "
        f"{outcomes.mean(variant, 'separation')['mean']:.2f}"
        for variant in outcomes.variants
    )
    return Conclusion(
        only_settled(claims, outcomes),
        outcomes.table(["average precision (%)", "separation"]),
        summary=(
            f"One threshold for all test pairs: average precision and separation are {figures}. The paper shows the "
            "curve and the distributions as figures and finds decoupled softmax ahead in the first, and decoupled "
            "softmax and SoftTop-5 better separated than softmax in the second. Scores are inner products of vectors "
            "of length 1; filtered pairs are left out. Each objective has a temperature, a learning rate and a number "
            "of epochs of its own, found on validation."
        ),
        title="All pairs of the test split: precision against recall, and the distribution of scores",
        panels=[
            _trade_off(outcomes),
            _separations(outcomes),
            *(_distributions(outcomes, ours) for ours in (DECOUPLED, TOP_5)),
        ],
    )


def _trade_off(outcomes: Outcomes) -> Lines:
    curves = {
        variant: Curve(outcomes[0]["recall"], outcomes.values(variant, "precision"), colour=number)
        for number, variant in enumerate(COMPARED)
    }
    return Lines(curves, x="recall", y="precision", marks=False, limits=(0, 1), title="precision against recall")


def _separations(outcomes: Outcomes) -> Dots:
    values = {variant: Value(**outcomes.mean(variant, "separation")) for variant in COMPARED}
    return Dots(values, x="distance of means ÷ deviation", title="positives against negatives", digits=2)


def _distributions(outcomes: Outcomes, ours: str) -> Lines:
    curves = {}
    runs = {variant: next(run for run in outcomes if run["variant"] == variant) for variant in (ours, SOFTMAX)}
    # The same bins for both, if vectors have length 1; none where hardly a pair falls.
    filled = np.flatnonzero(np.max([run[side] for run in runs.values() for side in ("positive", "negative")], 0) > 1e-4)
    part = slice(max(0, filled[0] - 1), filled[-1] + 2)
    for variant, run in runs.items():
        middle = (np.array(run["bins"][1:]) + run["bins"][:-1]) / 2
        for side, dashed in (("positive", False), ("negative", True)):
            name = f"{variant}, {side}s"
            curves[name] = Curve(middle[part].tolist(), run[side][part], colour=COMPARED.index(variant), dashed=dashed)
    return Lines(curves, x="score", y="share of pairs", marks=False, title=f"{ours} and softmax (seed 0)")
