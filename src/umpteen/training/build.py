"""From a configuration to objects: here alone does a string choose code."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import AdamW

from umpteen.config.settings import (
    EncoderConfig,
    EvaluationConfig,
    ObjectiveConfig,
    PoolConfig,
    RunConfig,
    TowerConfig,
)
from umpteen.data.batches import EpochSampler
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.encoders.encode import NEW, encode_texts, encode_tokens, label_tokens
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.static import StaticEncoder, inverse_document_frequencies
from umpteen.encoders.table import FusedEncoder, LabelTable, RowTable
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig, BadInput
from umpteen.evaluation.evaluate import Evaluator
from umpteen.files.progress import Notice, Progress, named
from umpteen.objectives.losses import decoupled_softmax, one_vs_all, soft_top_k, soft_top_k_in_pool, softmax
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.inputs import TrainingData
from umpteen.training.loop import Loop, LoopSettings
from umpteen.training.negatives.cache import VectorCache
from umpteen.training.negatives.pool import InBatch, Pool, Uniform
from umpteen.training.negatives.shortlist import Shortlist, ShortlistSettings
from umpteen.training.observer import Everyone, MetricsLog, Observer, Silence, TensorBoard
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import Objective, StepSettings, TrainingStep
from umpteen.version import __version__


def build_towers(config: EncoderConfig, seed: int, labels: Shard | None = None) -> Towers:
    """The towers of a recipe; what starts at random follows from the seed.

    A tower with a vector per label holds those of this process's shard of the labels.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        query = build_encoder(config.query, seed)
        tower = config.label_tower
        if config.towers == "shared":
            return Towers(query)
        if tower.kind == "table":
            table = RowTable.gaussian(labels or Shard(World(), 0), query.dimension, seed + 1)
            return Towers(query, LabelTable(table, normalise=tower.normalise, dropout=tower.dropout))
        text = build_encoder(tower, seed + 1)
        if not tower.residual:
            return Towers(query, text)
        residual = RowTable.zeros(labels or Shard(World(), 0), text.dimension)
        return Towers(query, FusedEncoder(text, residual, normalise=tower.normalise))


@dataclass(frozen=True)
class Start:
    """A trained model to go on from: where it lies, its towers, and its labels' keys by row."""

    place: str
    towers: Towers
    keys: Sequence[str]


def trained_towers(start: Start, keys: list[str], seed: int, labels: Shard) -> Towers:
    """A model's towers for labels with these keys: a label's own vector goes with its key, a new one starts anew."""
    towers, tower = start.towers, start.towers.label
    if isinstance(tower, LabelTable | FusedEncoder):
        known = {key: row for row, key in enumerate(start.keys)}
        trained = (tower.table if isinstance(tower, LabelTable) else tower.residual).count  # others came later
        rows = torch.tensor([row if (row := known.get(key, NEW)) < trained else NEW for key in keys])
        if isinstance(tower, LabelTable):
            tower.table = tower.table.rearranged(rows, RowTable.gaussian(labels, tower.dimension, seed + 1))
        else:
            tower.residual = tower.residual.rearranged(rows, RowTable.zeros(labels, tower.dimension))
    return towers


def build_encoder(tower: TowerConfig, seed: int) -> Encoder:
    """One tower; a static one that starts at random follows from the seed."""
    settings: dict[str, Any] = {"normalise": tower.normalise, "dropout": tower.dropout, "max_length": tower.max_length}
    if tower.kind == "transformer":
        from umpteen.encoders.transformer import TransformerEncoder

        return TransformerEncoder.load(
            tower.start,
            pooling=tower.pooling,
            projection=tower.projection,
            precision=tower.precision,
            random_weights=tower.random_weights,
            hidden_dropout=tower.hidden_dropout,
            **settings,
        )
    if tower.random_weights:
        return StaticEncoder.random(tower.start, tower.dimension or 384, seed, bigrams=tower.bigrams, **settings)
    return StaticEncoder.from_token_table(tower.start, dimension=tower.dimension, bigrams=tower.bigrams, **settings)


def build_tokenizers(config: EncoderConfig) -> tuple[TextTokenizer, TextTokenizer]:
    """The towers' tokenizers without the towers, for preparing data."""
    query, label = (
        TextTokenizer.load(tower.start, tower.max_length, special_tokens=tower.kind == "transformer")
        for tower in (config.query, config.label_tower)
    )
    return query, label


def start_token_weights(towers: Towers, config: EncoderConfig, queries: TokenTable, labels: TokenTable) -> None:
    """Static towers start each word piece at its inverse document frequency over training queries and labels."""
    sides: list[tuple[Encoder, TokenTable, TowerConfig]] = [(towers.query, queries, config.query)]
    if isinstance(towers.label, FusedEncoder):
        sides.append((towers.label.text, labels.without_firsts(), config.label_tower))
    elif not isinstance(towers.label, LabelTable):
        sides.append((towers.label, labels, config.label_tower))
    for tower, _, settings in sides[: 1 if towers.shared else 2]:
        if isinstance(tower, StaticEncoder) and settings.idf:
            same = [table for other, table, _ in sides if other.tokenizer.fingerprint == tower.tokenizer.fingerprint]
            tower.set_token_weights(inverse_document_frequencies(same, tower.tokenizer.vocabulary_size))


def build_pool(
    config: RunConfig,
    towers: Towers,
    data: TrainingData,
    objective: Objective,
    batches_per_epoch: int,
    world: World,
    notice: Notice,
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
        towers = build_towers(config.encoder, config.seed, shard)
    _refuse_sampled_rows(config, towers)
    with world.first_alone():
        queries = tokenise(dataset.train.texts, towers.query.tokenizer, progress=named(progress, "tokenising queries"))
        every = np.arange(len(dataset.labels))
        labels = label_tokens(towers.label, dataset.labels.texts, every, progress=named(progress, "tokenising labels"))
    if not start:
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
        partial(_validate, evaluator, towers, labels, config.training.token_budget, world) if evaluator else None,
        loop_settings(config, sampler.batches_per_epoch),
        everyone,
        workspace=workspace,
        recipe=recipe,
        data=dataset.fingerprint,
        world=world,
    )
    return Run(dataset, towers, data, sampler, objective, optimizer, step, evaluator, loop)


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


def build_evaluator(config: EvaluationConfig, dataset: Dataset, split: Split) -> Evaluator:
    return Evaluator(dataset, split, at=config.at, a=config.propensity_a, b=config.propensity_b)


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
