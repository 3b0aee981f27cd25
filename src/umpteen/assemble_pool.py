"""From a recipe's [pool] section to the pool of competing labels."""

from collections.abc import Callable

from umpteen.config import (
    PoolConfig,
    RunConfig,
)
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.pools.in_batch import InBatch
from umpteen.training.pools.pool import Pool
from umpteen.training.pools.shortlist import Shortlist, ShortlistSettings
from umpteen.training.pools.uniform import Uniform
from umpteen.training.pools.vector_cache import VectorCache
from umpteen.training.step import Objective
from umpteen.training.training_data import TrainingData


def build_pool(
    config: RunConfig,
    towers: Towers,
    data: TrainingData,
    objective: Objective,
    batches_per_epoch: int,
    world: World,
    notice: Callable[[str], None],
) -> Pool | None:
    """The pool of competing labels; None when they are all in play."""
    pool, labels = config.pool, Shard(world, len(data.labels))
    _refuse_impossible_pool(pool, config.training.batch_size, len(data.labels))
    match pool.name:
        case "all":
            return None
        case "batch":
            return InBatch()
        case "random":
            return Uniform(pool.negatives)
        case "shortlist":
            settings = ShortlistSettings(
                width=pool.shortlist,
                per_query=pool.negatives,
                every=max(1, round(pool.refresh_epochs * batches_per_epoch)),
                first=round(pool.from_epoch * batches_per_epoch),
                margin=pool.margin,
            )
            return Shortlist(towers, data, labels, settings, token_budget=config.training.token_budget, notice=notice)
        case "cache":
            return VectorCache(
                towers,
                data.labels,
                objective,
                labels,
                per_query=pool.negatives,
                temperature=config.objective.temperature,
                tile=config.training.tile,
                token_budget=config.training.token_budget,
            )


def _refuse_impossible_pool(pool: PoolConfig, batch_size: int, labels: int) -> None:
    if pool.name == "shortlist" and pool.shortlist > labels:
        raise BadConfig(f"pool.shortlist = {pool.shortlist}: the dataset has {labels:,} labels; it must not be more")
    if pool.name in {"random", "cache"} and pool.negatives > labels:
        raise BadConfig(f"pool.negatives = {pool.negatives}: the dataset has {labels:,} labels; it must not be more")
    if pool.name == "batch" and batch_size == 1:
        raise BadConfig("training.batch_size = 1: with pool.name = batch a query alone has no negative; use more")
