"""From a recipe to a run: dataset, towers, objective, pool, evaluator and loop, put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW

from umpteen import __version__
from umpteen.config.settings import EvaluationConfig, RunConfig
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.data.labels import EpochSampler, Relevance
from umpteen.encoders.encoder import NEW, encode_tokens, tokens_for
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.towers import Towers, shares_cut, with_lengths
from umpteen.errors import BadConfig, BadInput, known
from umpteen.evaluation.report import Evaluator
from umpteen.files.storage import digest_of
from umpteen.objectives.losses import build_objective
from umpteen.parallel.world import Shard, World
from umpteen.training.checkpoint import Checkpoints
from umpteen.training.loop import Loop
from umpteen.training.negatives.mined import Bank, Shortlist, VectorCache
from umpteen.training.negatives.pool import Pool, Uniform
from umpteen.training.observer import MetricsLog, Observer, Observers
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import TrainingData, TrainingStep

WORTH_TELLING = 0.01  # a share of tokens that are cut off


@dataclass(frozen=True)
class Start:
    """A trained model to go on from: where it lies, its towers, and its labels' keys by row."""

    place: str
    towers: Towers
    keys: Sequence[str]


@dataclass(frozen=True)
class Run:
    """The objects of one run, put together and ready to go."""

    dataset: Dataset
    towers: Towers
    data: TrainingData
    sampler: EpochSampler
    step: TrainingStep
    evaluator: Evaluator | None  # of the validation split; None for the final fit
    loop: Loop
    cut: dict[str, float]  # share of the queries' tokens beyond max_length, of each part that reads them


def build_run(
    config: RunConfig,
    *,
    workspace: Path | None,
    start: Start | None = None,
    observer: Observer | None = None,
    world: World | None = None,
) -> Run:
    """A recipe's objects, the same on every process; without a workspace, the first one's, nothing is written."""
    world, observer = world or World(), observer or Observer()
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    with world.first_alone():
        dataset = open_dataset(config.data.source, progress=partial(observer, "reading"))
    # The same data may lie in different places, of other machines or at another time.
    settings = config.model_dump(mode="json", exclude={"data": {"source"}, "training": {"trackers"}})
    settings |= {"start_from": start.place if start else None}
    versions = {"version of umpteen": __version__, "version of torch": torch.__version__}
    world.require_same({**versions, "recipe": digest_of(settings)[:12], "data": dataset.fingerprint[:12]})
    if len(dataset.labels) < world.size:
        raise BadInput(f"{len(dataset.labels):,} labels cannot be shared by {world.size} processes; use fewer of them")
    if config.data.fit_on == "train":
        dataset = dataset.with_validation(config.data.validation_fraction, config.seed)
    else:
        dataset = dataset.with_validation_in_train()
    objective = build_objective(config.objective, len(dataset.labels))
    evaluator = build_evaluator(config.evaluation, dataset, dataset.validation) if dataset.validation else None
    if evaluator:
        evaluator.require(config.evaluation.metric)
        evaluator.require_positives()
    device = torch.device(world.device) if world.size > 1 else pick_device(config.training.device)
    shard = Shard(world, len(dataset.labels))
    if start:
        towers = start.towers
        if (trained := towers.label.rows) is not None:  # a label's own vector goes with its key, a new one starts anew
            row_of = {key: row for row, key in enumerate(start.keys) if row < trained.count}  # others came later
            rows = torch.tensor([row_of.get(key, NEW) for key in dataset.labels.keys])
            towers.label.rearrange(rows, shard, config.seed + 1)
    else:
        towers = Towers.build(with_lengths(config.encoder, dataset), config.seed, shard)
    fraction = config.training.replay_fraction
    sparing = [] if fraction is None else [f"training.replay_fraction = {fraction}"]
    sparing += ["pool.name = bank"] if config.pool.name == "bank" else []
    if sparing and towers.label.rows is not None:
        raise BadConfig(f"{sparing[0]}: it spares texts, but these labels have vectors of their own; leave it out")
    if len(sparing) > 1:
        raise BadConfig(f"{sparing[0]}: with {sparing[1]}, pool.sampled says how many labels learn; leave it out")
    if isinstance(objective, nn.Module):  # checkpoints have what it learns; the saved model, which only ranks, has not
        towers.add_module("objective", objective)
    towers.to(device)
    with world.first_alone():
        queries = tokens_for(towers.query, dataset.train.texts, progress=partial(observer, "reading queries"))
        every = np.arange(len(dataset.labels))
        labels = tokens_for(towers.label, dataset.labels.texts, every, progress=partial(observer, "reading labels"))
    if not start:
        towers.start(config.encoder, queries, labels)
    optimizer = build_optimizer(config, towers)
    relevance, filtered = dataset.train.relevance, dataset.train.filtered
    if config.data.label_queries:
        own_texts = tokens_for(towers.query, dataset.labels.texts)
        queries = queries.followed_by(own_texts)
        relevance = relevance.stack(relevance.without(filtered).of_labels(config.data.label_queries))
        filtered = filtered.stack(Relevance.empty(len(own_texts), len(dataset.labels)))
    data = TrainingData(queries, labels, relevance, filtered)
    unlabelled, size = config.objective.uses_unlabelled, config.training.batch_size
    sampler = EpochSampler(data.relevance, size, seed=config.seed, keep_unlabelled=unlabelled)
    if workspace is not None:
        observer = Observers(MetricsLog(workspace / "metrics.jsonl", log_every=config.training.log_every), observer)
    cut = shares_cut(towers.query, dataset.train.texts)
    unread = min(cut.values(), default=0.0)
    if unread >= WORTH_TELLING:
        told = f"{unread:.1%} of the queries' tokens are cut off"
        observer.notice(f'{told}; max_length = "auto" keeps all of 99 texts in 100')
    for part, share in cut.items():
        if share - unread >= WORTH_TELLING:
            told = f"{share:.1%} of the queries' tokens are beyond what its {part} part reads"
            observer.notice(f"{told}; encoder.query.{part}.max_length says how much")
    step = TrainingStep(towers, data, objective, optimizer, config, world=world, notice=observer.notice)
    step.pool = build_pool(step, sampler.batches_per_epoch)

    def validate() -> dict[str, float]:
        assert evaluator is not None
        budget = config.training.token_budget
        own = encode_tokens(towers.label, labels.take(shard.rows), token_budget=budget)
        ranking = evaluator.rank(towers.query, own, token_budget=budget, shard=shard)
        return evaluator.report(ranking, bootstrap=0).metrics

    checkpoints = Checkpoints(workspace, towers, optimizer, settings, dataset.fingerprint, world)
    loop = Loop(step, sampler, validate if evaluator else None, config, observer, checkpoints)
    return Run(dataset, towers, data, sampler, step, evaluator, loop, cut)


# A new pool is a subclass of `Pool`, a row here, and its settings in config/settings.py.
POOLS: dict[str, Callable[[Any, TrainingStep, int], Pool | None]] = {  # of its settings, a step, steps in an epoch
    "all": lambda pool, step, epoch: None,  # all labels are in play
    "batch": lambda pool, step, epoch: Uniform(),
    "random": lambda pool, step, epoch: Uniform(pool.negatives),
    "shortlist": lambda pool, step, epoch: Shortlist(
        step.towers, step.data, step.labels, pool, step.config, epoch, step.notice
    ),
    "cache": lambda pool, step, _: VectorCache(step.towers, step.data, step.labels, pool, step.config, step.objective),
    "bank": lambda pool, step, _: Bank(step.towers, step.data, step.labels, pool, step.config, step.objective),
}


def build_pool(step: TrainingStep, batches_per_epoch: int) -> Pool | None:
    """The pool of competing labels; None when they are all in play."""
    pool, labels = step.config.pool, step.labels.count
    if pool.name == "batch" and step.config.training.batch_size == 1:
        raise BadConfig("training.batch_size = 1: with pool.name = batch a query alone has no negative; use more")
    for key, count in pool.model_dump(include={"negatives", "shortlist", "sampled", "renewed"}).items():
        if count > labels:
            raise BadConfig(f"pool.{key} = {count}: the dataset has {labels:,} labels; it must not be more")
    return known(POOLS, pool.name, f"there is no pool {pool.name!r}")(pool, step, batches_per_epoch)


def weigh_parts(run: Run, metric: str, world: World) -> dict[str, float]:
    """Of towers whose parts' scores are added up: how much each counts, by validation; nothing for other towers.

    One weight after the other is changed for as long as that helps. Every process must call it.
    """
    query, label, validate = run.towers.query, run.towers.label, run.loop.evaluate
    if validate is None or not isinstance(query, PartsEncoder) or query.how != "concat":
        return {}
    assert isinstance(label, PartsEncoder)  # a recipe gives both towers the same parts

    def value(weights: dict[str, float]) -> float:
        query.weigh(weights)
        label.weigh(weights)
        return float(world.gather_objects(validate()[metric])[0])  # machines may differ in the last digit

    best = dict(zip(query.parts, query.weights.tolist(), strict=True))
    reached, is_better = value(best), True
    while is_better:
        is_better = False
        for name in list(best)[1:]:
            for trial in [best | {name: best[name] * factor} for factor in (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)]:
                if (found := value(trial)) > reached:
                    best, reached, is_better = trial, found, True
    value(best)
    return best


def build_evaluator(config: EvaluationConfig, dataset: Dataset, split: Split) -> Evaluator:
    return Evaluator(dataset, split, at=config.at, a=config.propensity_a, b=config.propensity_b)


def build_optimizer(config: RunConfig, towers: Towers) -> AdamW:
    settings = config.optimizer
    sides = [(towers.query, config.encoder.query), (towers.label, config.encoder.label_tower)]
    rates = [rate for tower, own in sides for rate in tower.rates(own, settings.learning_rate)]
    rates.append((towers, settings.learning_rate))  # what is in neither: what the objective learns
    return make_optimizer(rates, weight_decay=settings.weight_decay)


def pick_device(wish: str) -> torch.device:
    """The device that was asked for; with auto, a CUDA GPU where there is one."""
    if wish != "auto":
        try:
            torch.zeros(1, device=wish).item()
            return torch.device(wish)
        except (RuntimeError, AssertionError) as problem:
            raise BadInput(f'training.device = "{wish}" cannot be used here: {str(problem).splitlines()[0]}') from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
