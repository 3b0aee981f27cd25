"""From a configuration to objects: here, in assemble_towers and in assemble_pool alone does a string choose code."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.optim import AdamW

from umpteen.assemble_pool import build_pool
from umpteen.assemble_towers import build_towers, start_token_weights, trained_towers
from umpteen.classifier import Classifier
from umpteen.config import (
    EvaluationConfig,
    ObjectiveConfig,
    RunConfig,
)
from umpteen.data.batches import EpochSampler
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.data.token_table import TokenTable
from umpteen.data.tokens import tokenise
from umpteen.encoders.label_table import FusedEncoder, LabelTable
from umpteen.encoders.towers import Towers
from umpteen.encoding import encode_texts, encode_tokens, label_tokens
from umpteen.errors import BadConfig, BadInput
from umpteen.judge import Judge
from umpteen.objectives.decoupled_softmax import decoupled_softmax
from umpteen.objectives.one_vs_all import one_vs_all
from umpteen.objectives.soft_top_k import soft_top_k, soft_top_k_in_pool
from umpteen.objectives.softmax import softmax
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.loop import Loop, LoopSettings
from umpteen.training.observer import Everyone, MetricsLog, Observer, Silence, TensorBoard
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import Objective, StepSettings, TrainingStep
from umpteen.training.training_data import TrainingData
from umpteen.version import __version__

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Run:
    """The objects of one run, put together and ready to go."""

    dataset: Dataset
    towers: Towers
    data: TrainingData
    sampler: EpochSampler
    objective: Objective
    optimizer: AdamW
    judge: Judge | None  # of the validation split; None for the final fit
    loop: Loop


def build_run(
    config: RunConfig,
    *,
    workspace: Path | None,
    start_from: str | Path | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
    world: World | None = None,
) -> Run:
    """Dataset, towers, judge and loop of a recipe; without a workspace nothing is written, and nothing can resume.

    Every process of the world builds the same; only the first one gets a workspace.
    """
    world = world or World()
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    with world.first_alone():
        dataset = open_dataset(config.data.source, progress=named(progress, "reading"))
    recipe = config.model_dump(mode="json") | {"start_from": str(start_from) if start_from else None}
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
    judge = build_judge(config.evaluation, dataset, dataset.validation) if dataset.validation else None
    if judge:
        judge.require(config.evaluation.metric)
        judge.require_positives()
    device = torch.device(world.device) if world.size > 1 else pick_device(config.training.device)
    shard = Shard(world, len(dataset.labels))
    if start_from:
        towers = trained_towers(Classifier.load(start_from, index=False), dataset.labels.keys, config.seed, shard)
    else:
        towers = build_towers(config.encoder, config.seed, shard)
    _refuse_sampled_rows(config, towers)
    with world.first_alone():
        queries = tokenise(dataset.train.texts, towers.query.tokenizer, progress=named(progress, "tokenising queries"))
        every = np.arange(len(dataset.labels))
        labels = label_tokens(towers.label, dataset.labels.texts, every, progress=named(progress, "tokenising labels"))
    if not start_from:
        start_token_weights(towers, config.encoder, queries, labels)
        if isinstance(towers.label, LabelTable) and config.encoder.label_tower.start_from_text:
            towers.label.table.weight.data = encode_texts(towers.query, dataset.labels.texts[shard.rows])
    towers.to(device)
    optimizer = build_optimizer(config, towers)
    data = TrainingData(queries, labels, dataset.train.relevance, dataset.train.filtered)
    sampler = EpochSampler(
        data.relevance,
        config.training.batch_size,
        seed=config.seed,
        keep_unlabelled=config.objective.name == "one_vs_all",  # there a query without positives still has negatives
    )
    everyone = Everyone(*_watchers(config, workspace), observer or Silence())
    pool = build_pool(config, towers, data, objective, sampler.batches_per_epoch, world, everyone.notice)
    step = TrainingStep(
        towers, data, objective, optimizer, step_settings(config), world=world, pool=pool, notice=everyone.notice
    )
    loop = Loop(
        towers,
        step,
        optimizer,
        sampler,
        partial(_validate, judge, towers, labels, config.training.token_budget, world) if judge else None,
        loop_settings(config, sampler.batches_per_epoch),
        everyone,
        workspace=workspace,
        recipe=recipe,
        data=dataset.fingerprint,
        world=world,
    )
    return Run(dataset, towers, data, sampler, objective, optimizer, judge, loop)


def _watchers(config: RunConfig, workspace: Path | None) -> list[Observer]:
    if workspace is None:
        return []
    log = MetricsLog(workspace / "metrics.jsonl", log_every=config.training.log_every)
    # Beside the workspace, because that goes when the run ends.
    events = Path(f"{workspace}".removesuffix(".training") + ".tensorboard")
    return [log, TensorBoard(events)] if config.training.tensorboard else [log]


def _validate(judge: Judge, towers: Towers, labels: TokenTable, token_budget: int, world: World) -> dict[str, float]:
    shard = Shard(world, len(labels))
    own = labels.take(np.arange(shard.start, shard.stop))
    vectors = encode_tokens(towers.label, own, token_budget=token_budget)
    ranking = judge.rank(towers.query, vectors, token_budget=token_budget, shard=shard)
    return judge.report(ranking, bootstrap=0).metrics


def build_judge(config: EvaluationConfig, dataset: Dataset, split: Split) -> Judge:
    return Judge(dataset, split, at=config.at, a=config.propensity_a, b=config.propensity_b)


def _refuse_sampled_rows(config: RunConfig, towers: Towers) -> None:
    if config.training.replay_fraction is not None and isinstance(towers.label, LabelTable | FusedEncoder):
        raise BadConfig(
            f"training.replay_fraction = {config.training.replay_fraction}: it spares texts, but these labels have "
            "vectors of their own; leave it out"
        )


def build_optimizer(config: RunConfig, towers: Towers) -> AdamW:
    settings = config.optimizer
    rates = [
        (towers.query, config.encoder.query.learning_rate or settings.learning_rate),
        (towers.label, config.encoder.label_tower.learning_rate or settings.learning_rate),
    ]
    return make_optimizer(
        rates,
        weight_decay=settings.weight_decay,
        betas=(settings.beta1, settings.beta2),
        epsilon=settings.epsilon,
    )


def build_objective(config: ObjectiveConfig, labels: int, *, pooled: bool = False) -> Objective:
    """The objective over all labels, or over pools that may be small for some query."""
    if config.name == "soft_top_k":
        if isinstance(config.k, int) and config.k >= labels:
            raise BadConfig(f"objective.k = {config.k}: the dataset has {labels:,} labels; k must be smaller")
        if pooled and isinstance(config.k, int):
            return partial(soft_top_k_in_pool, k=config.k, alpha=config.alpha)
        return partial(soft_top_k, k=config.k, alpha=config.alpha)
    return {"decoupled_softmax": decoupled_softmax, "softmax": softmax, "one_vs_all": one_vs_all}[config.name]


def step_settings(config: RunConfig) -> StepSettings:
    return StepSettings(
        temperature=config.objective.temperature,
        reduction=config.objective.reduction,
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


def named(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else partial(progress, name)
