"""From a recipe to a run: dataset, towers, objective, pool, evaluator and loop, put together."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.optim import AdamW

from umpteen.config.settings import (
    EvaluationConfig,
    RunConfig,
)
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.data.labels import EpochSampler, Relevance
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import NEW, encode_texts, encode_tokens, tokens_for
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.towers import Towers, share_cut, with_lengths
from umpteen.errors import BadConfig, BadInput
from umpteen.evaluation.report import Evaluator
from umpteen.files.progress import Progress, named
from umpteen.objectives.losses import Objective, build_objective, objective_kind
from umpteen.parallel.world import Shard, World
from umpteen.training.inputs import TrainingData
from umpteen.training.loop import Evaluate, Loop, LoopSettings
from umpteen.training.negatives.kinds import Place, build_pool
from umpteen.training.observer import Everyone, MetricsLog, Observer, Silence, TensorBoard
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import StepSettings, TrainingStep
from umpteen.version import __version__

WORTH_TELLING = 0.01  # a share of tokens that are cut off


@dataclass(frozen=True)
class Start:
    """A trained model to go on from: where it lies, its towers, and its labels' keys by row."""

    place: str
    towers: Towers
    keys: Sequence[str]


def trained_towers(start: Start, keys: list[str], seed: int, labels: Shard) -> Towers:
    """A model's towers for labels with these keys: a label's own vector goes with its key, a new one starts anew."""
    if (trained := start.towers.label.rows) is not None:
        known = {key: row for row, key in enumerate(start.keys) if row < trained.count}  # others came later
        rows = torch.tensor([known.get(key, NEW) for key in keys])
        start.towers.label.rearrange(rows, labels, seed + 1)
    return start.towers


@dataclass(frozen=True)
class Run:
    """The objects of one run, put together and ready to go."""

    dataset: Dataset
    towers: Towers
    data: TrainingData
    sampler: EpochSampler
    objective: Objective
    optimizer: AdamW
    step: TrainingStep
    evaluator: Evaluator | None  # of the validation split; None for the final fit
    loop: Loop
    validate: Evaluate | None
    cut: float  # share of the queries' tokens beyond max_length


def build_run(
    config: RunConfig,
    *,
    workspace: Path | None,
    start: Start | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
    world: World | None = None,
) -> Run:
    """Dataset, towers, evaluator and loop of a recipe; without a workspace nothing is written, and nothing can resume.

    Every process of the world builds the same; only the first one gets a workspace.
    """
    world = world or World()
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    with world.first_alone():
        dataset = open_dataset(config.data.source, progress=named(progress, "reading"))
    recipe = config.model_dump(mode="json") | {"start_from": start.place if start else None}
    settings = recipe | {"data": recipe["data"] | {"source": None}}  # machines may keep the data in different places
    world.require_same(
        {
            "version of umpteen": __version__,
            "version of torch": torch.__version__,
            "recipe": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12],
            "data": dataset.fingerprint[:12],
        }
    )
    if len(dataset.labels) < world.size:
        raise BadInput(f"{len(dataset.labels):,} labels cannot be shared by {world.size} processes; use fewer of them")
    if config.data.fit_on == "train":
        dataset = dataset.with_validation(config.data.validation_fraction, config.seed)
    else:
        dataset = dataset.with_validation_in_train()
    objective = build_objective(config.objective, len(dataset.labels), pooled=config.pool.name != "all")
    evaluator = build_evaluator(config.evaluation, dataset, dataset.validation) if dataset.validation else None
    if evaluator:
        evaluator.require(config.evaluation.metric)
        evaluator.require_positives()
    device = torch.device(world.device) if world.size > 1 else pick_device(config.training.device)
    shard = Shard(world, len(dataset.labels))
    if start:
        towers = trained_towers(start, dataset.labels.keys, config.seed, shard)
    else:
        towers = Towers.build(with_lengths(config.encoder, dataset), config.seed, shard)
    _refuse_sampled_rows(config, towers)
    towers.to(device)
    with world.first_alone():
        queries = tokens_for(towers.query, dataset.train.texts, progress=named(progress, "reading queries"))
        every = np.arange(len(dataset.labels))
        labels = tokens_for(towers.label, dataset.labels.texts, every, progress=named(progress, "reading labels"))
    if not start:
        own = dataset.labels.texts[shard.rows]
        towers.start(config.encoder, queries, labels, lambda: encode_texts(towers.query, own))
    optimizer = build_optimizer(config, towers)
    relevance, filtered = dataset.train.relevance, dataset.train.filtered
    if config.data.label_queries:
        own_texts = tokens_for(towers.query, dataset.labels.texts)
        queries = queries.followed_by(own_texts)
        relevance = relevance.stack(relevance.without(filtered).of_labels(config.data.label_queries))
        filtered = filtered.stack(Relevance.empty(len(own_texts), len(dataset.labels)))
    data = TrainingData(queries, labels, relevance, filtered)
    sampler = EpochSampler(
        data.relevance,
        config.training.batch_size,
        seed=config.seed,
        keep_unlabelled=objective_kind(config.objective.name).uses_unlabelled,
    )
    everyone = Everyone(*_watchers(config, workspace), observer or Silence())
    cut = share_cut(towers.query, dataset.train.texts)
    if cut >= WORTH_TELLING:
        everyone.notice(
            f'{cut:.1%} of the queries\' tokens are cut off; max_length = "auto" keeps all of 99 texts in 100'
        )
    pool = build_pool(Place(config, towers, data, objective, shard, sampler.batches_per_epoch, everyone.notice))
    step = TrainingStep(
        towers, data, objective, optimizer, step_settings(config), world=world, pool=pool, notice=everyone.notice
    )
    validate = partial(_validate, evaluator, towers, labels, config.training.token_budget, world) if evaluator else None
    loop = Loop(
        towers,
        step,
        optimizer,
        sampler,
        validate,
        loop_settings(config, sampler.batches_per_epoch),
        everyone,
        workspace=workspace,
        recipe=recipe,
        data=dataset.fingerprint,
        world=world,
    )
    return Run(dataset, towers, data, sampler, objective, optimizer, step, evaluator, loop, validate, cut)


def _watchers(config: RunConfig, workspace: Path | None) -> list[Observer]:
    if workspace is None:
        return []
    log = MetricsLog(workspace / "metrics.jsonl", log_every=config.training.log_every)
    # Beside the workspace, because that goes when the run ends.
    events = Path(f"{workspace}".removesuffix(".training") + ".tensorboard")
    return [log, TensorBoard(events)] if config.training.tensorboard else [log]


def _validate(
    evaluator: Evaluator, towers: Towers, labels: TokenTable, token_budget: int, world: World
) -> dict[str, float]:
    shard = Shard(world, len(labels))
    own = labels.take(np.arange(shard.start, shard.stop))
    vectors = encode_tokens(towers.label, own, token_budget=token_budget)
    ranking = evaluator.rank(towers.query, vectors, token_budget=token_budget, shard=shard)
    return evaluator.report(ranking, bootstrap=0).metrics


_FACTORS = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)


def weigh_parts(run: Run, metric: str, world: World) -> dict[str, float]:
    """Of towers whose parts' scores are added up: how much each counts, by validation; nothing for other towers.

    One weight after the other is changed for as long as that helps. Every process must call it.
    """
    query, label = run.towers.query, run.towers.label
    if run.validate is None or not (isinstance(query, PartsEncoder) and isinstance(label, PartsEncoder)):
        return {}
    if query.how != "concat":
        return {}
    validate = run.validate

    def value(weights: dict[str, float]) -> float:
        query.weigh(weights)
        label.weigh(weights)
        return float(world.gather_objects(validate()[metric])[0])  # machines may differ in the last digit

    best = dict(zip(query.parts, query.weights.tolist(), strict=True))
    reached, is_better = value(best), True
    while is_better:
        is_better = False
        for name in list(best)[1:]:
            for trial in [best | {name: best[name] * factor} for factor in _FACTORS]:
                if (found := value(trial)) > reached:
                    best, reached, is_better = trial, found, True
    value(best)
    return best


def build_evaluator(config: EvaluationConfig, dataset: Dataset, split: Split) -> Evaluator:
    return Evaluator(dataset, split, at=config.at, a=config.propensity_a, b=config.propensity_b)


def _refuse_sampled_rows(config: RunConfig, towers: Towers) -> None:
    if config.training.replay_fraction is not None and towers.label.rows is not None:
        raise BadConfig(
            f"training.replay_fraction = {config.training.replay_fraction}: it spares texts, but these labels have "
            "vectors of their own; leave it out"
        )


def build_optimizer(config: RunConfig, towers: Towers) -> AdamW:
    settings = config.optimizer
    sides = [(towers.query, config.encoder.query), (towers.label, config.encoder.label_tower)]
    rates = [rate for tower, own in sides for rate in tower.rates(own, settings.learning_rate)]
    return make_optimizer(
        rates,
        weight_decay=settings.weight_decay,
        betas=(settings.beta1, settings.beta2),
        epsilon=settings.epsilon,
    )


def step_settings(config: RunConfig) -> StepSettings:
    return StepSettings(
        temperature=config.objective.temperature,
        reduction=config.objective.over_positives(),
        positives_per_query=config.objective.positives_per_query,
        token_budget=config.training.token_budget,
        tile=config.training.tile,
        clip_norm=config.optimizer.clip_norm,
        replay_fraction=config.training.replay_fraction,
    )


def loop_settings(config: RunConfig, batches_per_epoch: int) -> LoopSettings:
    evaluation = config.evaluation
    return LoopSettings(
        steps=config.training.steps or math.ceil(config.training.epochs * batches_per_epoch),
        seconds=60 * config.training.minutes if config.training.minutes else None,
        seed=config.seed,
        warmup=config.optimizer.warmup,
        evaluate_every=evaluation.every_steps or math.ceil(evaluation.every_epochs * batches_per_epoch),
        metric=evaluation.metric,
        patience=evaluation.patience,
        checkpoint_seconds=60 * config.training.checkpoint_minutes,
    )


def pick_device(wish: str) -> torch.device:
    """The device that was asked for; with auto, a CUDA GPU where there is one."""
    if wish != "auto":
        try:
            torch.zeros(1, device=wish).item()
            return torch.device(wish)
        except (RuntimeError, AssertionError) as problem:
            raise BadInput(f'training.device = "{wish}" cannot be used here: {str(problem).splitlines()[0]}') from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
