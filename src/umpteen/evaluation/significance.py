"""How far figures could have come out otherwise: the bootstrap over queries.

N queries, R resamples, M metrics. A resample draws N queries with replacement and is held as counts, so that all
metrics of many resamples are two matrix products.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.errors import BadInput
from umpteen.evaluation.metrics import Terms

_COUNTS_AT_A_TIME = 1 << 22  # 32 MB of float64


class Difference(NamedTuple):
    """How much better ours is than theirs on the same queries, in the metric's own unit (0 to 1)."""

    value: float
    interval: tuple[float, float]  # 95 %
    p: float  # two-sided: how often resampling turns the sign

    def to_dict(self) -> dict[str, Any]:
        """In percent points, ready for JSON."""
        return {"value": 100 * self.value, "interval": [100 * side for side in self.interval], "p": self.p}


def bootstrap_intervals(
    terms: Mapping[str, Terms], resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """A 95 % interval of every metric: the middle of what resampled queries give."""
    values = _resampled(terms, resamples, seed)
    low, high = np.quantile(values, [0.025, 0.975], axis=0)
    return {name: (float(low[at]), float(high[at])) for at, name in enumerate(terms)}


def paired_differences(
    ours: Mapping[str, Terms], theirs: Mapping[str, Terms], resamples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Ours minus theirs on every metric that both have, both resampled with the same queries.

    What makes a query hard then cancels out. PSP and PSnDCG are ratios of means, and are computed anew each time.
    """
    names = [name for name in ours if name in theirs]
    for name in names:
        if len(ours[name].achieved) != len(theirs[name].achieved):
            raise BadInput(
                f"a paired comparison needs the same queries: ours has {len(ours[name].achieved):,}, "
                f"theirs {len(theirs[name].achieved):,}"
            )
    if not names:
        return {}
    both = {(side, name): terms[name] for side, terms in (("ours", ours), ("theirs", theirs)) for name in names}
    values = _resampled(both, resamples, seed)
    differences = values[:, : len(names)] - values[:, len(names) :]  # [R, M]
    low, high = np.quantile(differences, [0.025, 0.975], axis=0)
    turned = np.minimum((differences <= 0).sum(0), (differences >= 0).sum(0))
    # One is added to both sides, since resampling can never show that a chance is 0.
    chances = np.minimum(1.0, 2 * (turned + 1) / (resamples + 1))
    return {
        name: Difference(ours[name].value - theirs[name].value, (float(low[at]), float(high[at])), float(chances[at]))
        for at, name in enumerate(names)
    }


def paired_difference(ours: Terms, theirs: Terms, resamples: int = 1000, seed: int = 0) -> Difference:
    """Ours minus theirs on one metric."""
    return paired_differences({"": ours}, {"": theirs}, resamples, seed)[""]


def _resampled(terms: Mapping[Any, Terms], resamples: int, seed: int) -> NDArray[np.float64]:
    """Every metric of every resample."""  # [R, M]
    achieved = np.stack([term.achieved for term in terms.values()], 1)  # [N, M]
    possible = np.stack([term.possible for term in terms.values()], 1)
    values = []
    for counts in _draws(len(achieved), resamples, seed):
        best = counts @ possible
        values.append(np.divide(counts @ achieved, best, out=np.zeros_like(best), where=best != 0))
    return np.concatenate(values)


def _draws(queries: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Blocks of resamples: how often each query was drawn."""  # [some, N]
    if queries == 0:
        raise BadInput("there is no query to draw from; an interval needs some")
    random = np.random.default_rng(seed)
    at_a_time = max(1, _COUNTS_AT_A_TIME // queries)
    for start in range(0, resamples, at_a_time):
        some = min(at_a_time, resamples - start)
        drawn = random.integers(queries, size=(some, queries)) + np.arange(some)[:, None] * queries
        counts = np.bincount(drawn.ravel(), minlength=some * queries)
        yield counts.reshape(some, queries).astype(np.float64)
