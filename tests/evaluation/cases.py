"""Random rankings and truths, as the package takes them and as the naive judge does."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.search.ranking import Ranking


@dataclass
class Case:
    ranking: Ranking
    rankings: list[list[int]]
    truth: list[set[int]]
    filtered: list[set[int]]
    label_counts: NDArray[np.int64]


def random_case(queries: int, labels: int, width: int, seed: int) -> Case:
    """Some queries have no positives, some rankings end early, some positives and ranked labels are filtered."""
    random = np.random.default_rng(seed)
    rows = np.stack([random.permutation(labels)[:width] for _ in range(queries)]).astype(np.int32)
    for row in rows[random.random(queries) < 0.3]:
        row[random.integers(width) :] = -1
    truth = [set(random.permutation(labels)[: random.integers(0, labels // 2 + 1)].tolist()) for _ in range(queries)]
    truth[0] |= {int(random.integers(labels))}  # one query at least can be answered
    filtered = [set(random.permutation(labels)[: random.integers(0, 3)].tolist()) for _ in range(queries)]
    filtered[0] -= truth[0]
    scores = np.tile(-np.arange(width, dtype=np.float32), (queries, 1))
    return Case(Ranking(rows, scores, labels), rows.tolist(), truth, filtered, random.integers(0, 50, labels))


def matrix(sets: list[set[int]], labels: int) -> csr_array:
    """Stored weights include 0, which is as positive as any other."""
    indices = [label for row in sets for label in sorted(row)]
    starts = np.cumsum([0, *map(len, sets)])
    return csr_array((np.arange(len(indices), dtype=np.float32) % 3, indices, starts), shape=(len(sets), labels))


def ranked(rankings: list[list[int]], labels: int) -> Ranking:
    rows = np.array(rankings, dtype=np.int32)
    return Ranking(rows, np.tile(-np.arange(rows.shape[1], dtype=np.float32), (len(rows), 1)), labels)
