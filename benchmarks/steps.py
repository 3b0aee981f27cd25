"""Whole training steps, measured: a transformer's against the naive one, and a static one's."""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch.optim import AdamW

from benchmarks.naive_step import NaiveStep, in_file_order
from benchmarks.turns import Turns, outside_products, seconds_of
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset
from umpteen.data.labels import EpochSampler, Relevance, draw_positives
from umpteen.data.tokens import tokenise
from umpteen.encoders.encoder import Encoder, micro_batches
from umpteen.encoders.towers import Towers
from umpteen.objectives.losses import decoupled_softmax
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import LabelTexts, TrainingData, TrainingStep

TEMPERATURE = 0.05
LEARNING_RATE = 3e-4
BATCHES = 5  # whose putting together is timed


def transformer_step(
    dataset: Dataset, encoder: Encoder, labels: int | None, batch: int, repeats: int
) -> dict[str, Any]:
    """A step with shared towers against the naive one; the model's own dropout is on while they are timed."""
    ours, theirs = (Towers(copy.deepcopy(encoder)) for _ in range(2))
    data = training_data(dataset, ours, labels)
    sampler = EpochSampler(data.relevance, batch, seed=0)
    rows = sampler.rows(0, 0)
    settings = step_settings(encoder.token_budget)
    step = TrainingStep(ours, data, decoupled_softmax, _optimizer(ours), settings)
    naive = NaiveStep(theirs.query, data, _optimizer(theirs), settings)
    ours.eval()
    theirs.eval()
    losses = step.gradients(rows, step=0, seed=0).loss, naive.gradients(rows)
    gradients = largest_difference(ours, theirs)
    turns = Turns({"ours": lambda: step(rows, step=0, seed=0), "theirs": lambda: naive(rows)}, repeats)
    batching = batching_seconds(data, sampler, settings.training.token_budget)
    return {
        "stage": "step, transformer",
        "labels": len(data.labels),
        "batch": len(rows),
        "token_budget": settings.training.token_budget,
        "step_ratio": turns.ratio("theirs", to="ours"),
        "loss_difference": abs(losses[0] - losses[1]) / abs(losses[1]),
        "gradient_difference": gradients,
        "padding": padding(data, rows, settings.training.token_budget),
        "outside_products": outside_products(lambda: step(rows, step=0, seed=0)),
        "batching_share": batching / turns.seconds["ours"],
        "seconds": turns.seconds,
    }


def static_step(dataset: Dataset, towers: Towers, labels: int | None, batch: int, repeats: int) -> dict[str, Any]:
    """A step of separate static towers."""
    data = training_data(dataset, towers, labels)
    sampler = EpochSampler(data.relevance, batch, seed=0)
    rows = sampler.rows(0, 0)
    settings = step_settings(towers.label.token_budget)
    step = TrainingStep(towers, data, decoupled_softmax, _optimizer(towers), settings)
    step(rows, step=0, seed=0)  # to warm up
    turns = Turns({"ours": lambda: step(rows, step=0, seed=0)}, repeats)
    batching = batching_seconds(data, sampler, settings.training.token_budget)
    return {
        "stage": "step, static",
        "labels": len(data.labels),
        "batch": len(rows),
        "token_budget": settings.training.token_budget,
        "outside_products": outside_products(lambda: step(rows, step=0, seed=0)),
        "batching_share": batching / turns.seconds["ours"],
        "seconds": turns.seconds,
    }


def training_data(dataset: Dataset, towers: Towers, labels: int | None) -> TrainingData:
    """The training queries over the first labels of a dataset."""
    queries = tokenise(dataset.train.texts, towers.query.tokenizer)
    names = tokenise(dataset.labels.texts, towers.label.tokenizer)
    kept = np.arange(min(labels or len(names), len(names)))
    pairs, filtered = (
        Relevance(csr_array(relevance.matrix[:, kept]))
        for relevance in (dataset.train.relevance, dataset.train.filtered)
    )
    return TrainingData(queries, names.take(kept), pairs, filtered)


def step_settings(token_budget: int) -> RunConfig:
    return RunConfig.model_validate(
        {"objective": {"temperature": TEMPERATURE}, "training": {"token_budget": token_budget}}
    )


def largest_difference(ours: Towers, theirs: Towers) -> float:
    """Between the gradients left on the weights of both, relative to the largest of theirs."""
    differences, sizes = [], []
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        if other.grad is not None:
            differences.append((torch.zeros_like(other) if own.grad is None else own.grad) - other.grad)
            sizes.append(other.grad)
    return float(max(part.abs().max() for part in differences) / max(part.abs().max() for part in sizes))


def padding(data: TrainingData, rows: NDArray[np.int64], token_budget: int) -> dict[str, float]:
    """Padded tokens ÷ tokens of a step."""
    sides = [data.queries.take(rows).distinct()[0].lengths, LabelTexts(data.labels).distinct.lengths]
    ours = sum(len(part) * lengths[part].max() for lengths in sides for part in micro_batches(lengths, token_budget))
    tables = data.labels, data.queries.take(rows)
    offsets = [part[1] for table in tables for part in in_file_order(table, token_budget)]
    theirs = sum(len(part.diff()) * int(part.diff().max()) for part in offsets)
    tokens = sum(int(table.lengths.sum()) for table in tables)
    return {"ours": float(ours / sum(lengths.sum() for lengths in sides)), "theirs": theirs / tokens}


def batching_seconds(data: TrainingData, sampler: EpochSampler, token_budget: int) -> float:
    """Seconds of a step before and between the towers: rows, positives, distinct texts, their tokens twice."""
    labels = LabelTexts(data.labels).distinct
    rng = np.random.default_rng(0)

    batches = min(BATCHES, sampler.batches_per_epoch)

    def put_together() -> None:
        for index in range(batches):
            rows = sampler.rows(0, index)
            draw_positives(data.relevance, rows, None, rng)
            for texts in (data.queries.take(rows).distinct()[0], labels):
                for _ in ("vectors", "replay"):
                    for positions in micro_batches(texts.lengths, token_budget):
                        texts.batch(positions)

    return seconds_of(put_together) / batches


def _optimizer(towers: Towers) -> AdamW:
    rates = [(tower, LEARNING_RATE) for tower in (towers.query, towers.label)]
    return make_optimizer(rates, weight_decay=0.01)
