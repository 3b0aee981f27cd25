"""Where precision comes from: labels by how often they occur in training, in ten groups of equally many."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.retrieval.ranking import Ranking, contains

DECILES = 10


def frequency_deciles(label_counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Each label's decile, 0 for the most frequent; sizes differ by at most one, equal counts go by row."""
    order = np.argsort(-label_counts.astype(np.int64), kind="stable")
    deciles = np.empty(len(label_counts), dtype=np.int64)
    for decile, labels in enumerate(np.array_split(order, DECILES)):
        deciles[labels] = decile
    return deciles


def precision_by_decile(
    ranking: Ranking, truth: csr_array, label_counts: NDArray[np.integer], ks: tuple[int, ...]
) -> list[dict[str, int | float]]:
    """What each decile's labels contribute to P@k, in percent: the contributions of all ten add up to it."""
    deciles = frequency_deciles(label_counts)
    hits = contains(truth, ranking.rows)
    contributions = {
        f"P@{k}": np.bincount(deciles[ranking.rows[:, :k][hits[:, :k]]], minlength=DECILES) * (100 / (k * len(ranking)))
        for k in ks
    }
    table: list[dict[str, int | float]] = []
    for decile in range(DECILES):
        counts = label_counts[deciles == decile]
        row: dict[str, int | float] = {"decile": decile + 1, "labels": len(counts)}
        row["most_queries"] = int(counts.max(initial=0))
        row["fewest_queries"] = int(counts.min()) if len(counts) else 0
        row.update({name: float(values[decile]) for name, values in contributions.items()})
        table.append(row)
    return table
