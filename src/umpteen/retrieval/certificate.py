"""The recall certificate: how much of what exact search finds an index finds, and what each of them costs."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from umpteen.parallel.threads import undivided
from umpteen.retrieval.index import LabelIndex
from umpteen.retrieval.ranking import NO_LABEL, Ranking

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
    recall_interval: tuple[float, float]  # 95 %
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
    attempts: int = (
        1  # efforts that were held against the certifying queries; more than one if chance misled the tuning
    )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "recall_interval": list(self.recall_interval)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Certificate":
        return cls(**{**content, "recall_interval": tuple(content["recall_interval"])})


def recalls(found: Ranking, exact: Ranking) -> NDArray[np.float64]:
    """Each query's share of the k best labels that was found; a label that scores as high as the k-th best counts."""
    right = as_good(found.scores, exact) & (found.rows != NO_LABEL)
    return share(right.sum(1), exact)


def as_good(scores: NDArray[np.float32], exact: Ranking) -> NDArray[np.bool_]:
    """Which candidates score no lower than the last label of the exact ranking."""  # [B, C]
    last = np.where(exact.rows == NO_LABEL, np.inf, exact.scores).min(1, keepdims=True)
    good: NDArray[np.bool_] = scores >= last - _SAME * (1 + np.abs(last))
    return good


def share(hits: NDArray[np.int64], exact: Ranking) -> NDArray[np.float64]:
    """Hits as a share of what there is to find."""
    there = (exact.rows != NO_LABEL).sum(1)
    shares: NDArray[np.float64] = np.minimum(hits, there) / np.maximum(there, 1)
    return shares


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
    with undivided():
        index.search(queries[:1], k)
        start, done = time.perf_counter(), 0
        while done < len(queries) or done == 0:
            index.search(queries[done : done + 1], k)
            done += 1
            if time.perf_counter() - start > seconds:
                break
        return done / (time.perf_counter() - start)
