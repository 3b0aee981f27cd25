"""Finds the least effort with which an index still finds what exact search finds.

Queries of one half choose it, those of the other half certify it.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.retrieval.certificate import as_good, recalls, share
from umpteen.retrieval.effort import Effort
from umpteen.retrieval.exact_index import exact_search
from umpteen.retrieval.index import LabelIndex
from umpteen.retrieval.live_vectors import LiveVectors, Rows
from umpteen.retrieval.ranking import Ranking
from umpteen.retrieval.rescoring import exact_scores


class Tunable(LabelIndex, Protocol):
    """An index whose effort can be chosen."""

    effort: Effort

    @property
    def labels(self) -> LiveVectors: ...
    def candidates(self, queries: Tensor, effort: Effort) -> Rows: ...
    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first, in groups of one breadth; an index without a choice has one."""
        ...


class Tuned(NamedTuple):
    """What the certifying half of the queries has shown of the effort that was chosen."""

    effort: Effort
    recalls: NDArray[np.float64]
    tuned_on: int
    attempts: int


def tune(index: Tunable, queries: Tensor, k: int, target: float, *, seed: int = 0) -> Tuned:
    """Sets the least effort that reaches the target, or refuses, naming the best recall that can be reached."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(queries)))
    half = len(queries) // 2
    if half == 0:
        raise BadInput(f"{len(queries)} queries are too few to tune an index on; give at least 2")
    choosing, certifying = queries[order[:half]], queries[order[half:]]
    efforts = index.efforts(k)
    chosen = _first_good(index, choosing, exact_search(choosing, index.labels, k), efforts, target)
    exact = exact_search(certifying, index.labels, k)
    best = 0.0
    for attempt, place in enumerate(_from(chosen, len(efforts)), 1):
        index.effort = efforts[place]
        found = recalls(index.search(certifying, k), exact)
        if found.mean() >= target:
            return Tuned(efforts[place], found, half, attempt)
        best = max(best, float(found.mean()))
    raise BadInput(
        f"a {index.kind} index reaches a recall@{k} of {best:.4f} at most here, not {target:g}; "
        "nothing was changed: ask for less, or take another kind (exact never misses)"
    )


def _from(first: int, count: int) -> Iterator[int]:
    """Places from this one to the last in growing steps: many small ones would end where chance is kind."""
    step = 1
    while first < count - 1:
        yield first
        first, step = first + step, step + 1
    yield count - 1


def _first_good(index: Tunable, queries: Tensor, exact: Ranking, efforts: list[Effort], target: float) -> int:
    """The place of the first effort that reaches the target by a standard error: other queries are not quite as these.

    If there is none, of the first that reaches it at all; if there is none of these either, the last.
    """
    places: dict[int, list[int]] = {}
    for place, effort in enumerate(efforts):
        places.setdefault(effort.breadth, []).append(place)
    enough = None
    for group in places.values():
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
