"""The recall certificate of an index, and the least effort with which it still finds what exact search finds."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, count, groupby, takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.parallel.world import undivided
from umpteen.search.index import Effort, LabelIndex, exact_scores, exact_search
from umpteen.search.ranking import NO_LABEL, Ranking

_SAME = 1e-5  # scores that differ by no more, relative to 1 + their size, are equal: rounding
_RESAMPLES = 1000
_ALL_RIGHT = 3.0  # n queries without a miss leave room for 3/n (95 %)


@dataclass(frozen=True)
class Certificate:
    """What was measured when an index was built; the queries that certify are not those it was tuned on."""

    kind: str
    k: int
    target: float
    recall: float  # share of the k best labels that are found, mean over the queries
    recall_interval: list[float]  # from, to; 95 %
    effort: dict[str, int]
    queries: int
    queries_tuned_on: int
    sample: str  # where the queries come from
    labels: int
    dimension: int
    catalogue_version: int
    queries_per_second: dict[str, float]  # index and exact: one at a time, one thread
    bytes: dict[str, int | None]  # index and exact; None: nobody here knows
    build_seconds: float
    attempts: int = 1  # efforts held against the certifying queries; more than one if chance misled the tuning


def recalls(found: Ranking, exact: Ranking) -> NDArray[np.float64]:
    """Each query's share of the k best labels that was found; a label that scores as high as the k-th best counts."""
    return share((as_good(found.scores, exact) & (found.rows != NO_LABEL)).sum(1), exact)


def as_good(scores: NDArray[np.float32], exact: Ranking) -> NDArray[np.bool_]:
    """Which candidates score no lower than the last label of the exact ranking."""  # [B, C]
    last = np.where(exact.rows == NO_LABEL, np.inf, exact.scores).min(1, keepdims=True)
    return np.asarray(scores >= last - _SAME * (1 + np.abs(last)))


def share(hits: NDArray[np.int64], exact: Ranking) -> NDArray[np.float64]:
    """Hits as a share of what there is to find."""
    there = (exact.rows != NO_LABEL).sum(1)
    return np.asarray(np.minimum(hits, there) / np.maximum(there, 1))


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a mean over queries, from resampled ones."""
    if values.min() == 1:
        return max(0.0, 1 - _ALL_RIGHT / len(values)), 1.0
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def queries_per_second(index: LabelIndex, queries: Tensor, k: int, seconds: float = 1.0) -> float:
    """How many queries are answered in a second, one after the other on one thread."""
    return a_second(lambda row: index.search(queries[row : row + 1], k), len(queries), seconds)


def a_second(work: Callable[[int], object], count: int, seconds: float = 1.0) -> float:
    """How often work is done in a second, for one row after the other on one thread."""
    with undivided():
        work(0)
        start = time.perf_counter()
        for row in range(max(1, count)):
            work(row)
            if time.perf_counter() - start > seconds:
                break
        return (row + 1) / (time.perf_counter() - start)


class Tuned(NamedTuple):
    """What the certifying half of the queries has shown of the effort that was chosen."""

    effort: Effort
    recalls: NDArray[np.float64]
    tuned_on: int
    attempts: int


def tune(index: LabelIndex, queries: Tensor, k: int, target: float, *, seed: int = 0) -> Tuned:
    """Sets the least effort that reaches the target, or refuses, naming the best recall that can be reached.

    Queries of one half choose it, those of the other half certify it; where there is no choice, all certify.
    """
    efforts = index.efforts(k)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(queries)))
    half = len(queries) // 2 if len(efforts) > 1 else 0
    if half == 0 and (len(efforts) > 1 or len(queries) == 0):
        raise BadInput(f"{len(queries)} queries are too few to tune an index on; give at least 2")
    choosing, certifying = queries[order[:half]], queries[order[half:]]
    chosen = 0 if half == 0 else _first_good(index, choosing, exact_search(choosing, index.labels, k), efforts, target)
    exact = exact_search(certifying, index.labels, k)
    best = 0.0
    # In growing steps, to the last: many small ones would end where chance is kind.
    places = takewhile(lambda place: place < len(efforts) - 1, accumulate(count(1), initial=chosen))
    for attempt, place in enumerate((*places, len(efforts) - 1), 1):
        index.effort = efforts[place]
        found = recalls(index.search(certifying, k), exact)
        if found.mean() >= target:
            return Tuned(efforts[place], found, half, attempt)
        best = max(best, float(found.mean()))
    advice = "nothing was changed: ask for less, or take another kind (exact never misses)"
    raise BadInput(f"a {index.kind} index reaches a recall@{k} of {best:.4f} at most here, not {target:g}; {advice}")


def _first_good(index: LabelIndex, queries: Tensor, exact: Ranking, efforts: list[Effort], target: float) -> int:
    """The place of the first effort that reaches the target by a standard error: other queries are not quite as these.

    If there is none, of the first that reaches it at all; if there is none of these either, the last.
    """
    enough = None
    for group in (list(places) for _, places in groupby(range(len(efforts)), lambda place: efforts[place].breadth)):
        # The candidates of less effort are the first of those of more, so one search tries the whole group.
        candidates = index.candidates(queries, efforts[group[-1]])
        hits = np.cumsum(as_good(exact_scores(queries, candidates, index.labels), exact), axis=1, dtype=np.int64)
        for place in group:
            last = min(efforts[place].rescored, hits.shape[1]) - 1
            found = share(hits[:, last], exact) if last >= 0 else np.zeros(len(queries))
            if found.mean() - found.std() / len(found) ** 0.5 >= target:
                return place
            if found.mean() >= target and enough is None:
                enough = place
    return len(efforts) - 1 if enough is None else enough
