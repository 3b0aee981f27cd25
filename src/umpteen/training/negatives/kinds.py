"""The kinds of pools, one row each: which labels compete at a step, built from a recipe's [pool] section.

A new pool is a class with the methods of `Pool`, a row here, and its settings in config/settings.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from umpteen.config.settings import CachePool, PoolConfig, RandomPool, RunConfig, ShortlistPool
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig, known
from umpteen.files.progress import Notice
from umpteen.objectives.losses import Objective
from umpteen.parallel.world import Shard
from umpteen.training.inputs import TrainingData
from umpteen.training.negatives.cache import VectorCache
from umpteen.training.negatives.pool import InBatch, Pool, Uniform
from umpteen.training.negatives.shortlist import Shortlist, ShortlistSettings


class Place(NamedTuple):
    """The run that a pool is built into."""

    config: RunConfig
    towers: Towers
    data: TrainingData
    objective: Objective
    labels: Shard
    batches_per_epoch: int
    notice: Notice


def _in_batch(pool: PoolConfig, place: Place) -> Pool:
    if place.config.training.batch_size == 1:
        raise BadConfig("training.batch_size = 1: with pool.name = batch a query alone has no negative; use more")
    return InBatch()


def _random(pool: RandomPool, place: Place) -> Pool:
    _refuse_more_than_there_are("negatives", pool.negatives, place)
    return Uniform(pool.negatives)


def _shortlist(pool: ShortlistPool, place: Place) -> Pool:
    _refuse_more_than_there_are("shortlist", pool.shortlist, place)
    settings = ShortlistSettings(
        width=pool.shortlist,
        per_query=pool.negatives,
        every=max(1, round(pool.refresh_epochs * place.batches_per_epoch)),
        first=round(pool.from_epoch * place.batches_per_epoch),
        margin=pool.margin,
    )
    budget = place.config.training.token_budget
    return Shortlist(place.towers, place.data, place.labels, settings, token_budget=budget, notice=place.notice)


def _cache(pool: CachePool, place: Place) -> Pool:
    _refuse_more_than_there_are("negatives", pool.negatives, place)
    return VectorCache(
        place.towers,
        place.data.labels,
        place.objective,
        place.labels,
        per_query=pool.negatives,
        temperature=place.config.objective.temperature,
        tile=place.config.training.tile,
        token_budget=place.config.training.token_budget,
    )


KINDS: dict[str, Callable[[Any, Place], Pool | None]] = {
    "all": lambda pool, place: None,  # all labels are in play
    "batch": _in_batch,
    "random": _random,
    "shortlist": _shortlist,
    "cache": _cache,
}


def build_pool(place: Place) -> Pool | None:
    """The pool of competing labels; None when they are all in play."""
    pool = place.config.pool
    return known(KINDS, pool.name, f"there is no pool {pool.name!r}")(pool, place)


def _refuse_more_than_there_are(key: str, count: int, place: Place) -> None:
    if count > place.labels.count:
        raise BadConfig(f"pool.{key} = {count}: the dataset has {place.labels.count:,} labels; it must not be more")
