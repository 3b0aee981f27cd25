"""The pipeline benchmark compares like with like, and prints what it promises."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.__main__ import benchmarks
from benchmarks.naive_step import NaiveStep, in_file_order
from benchmarks.steps import step_settings, training_data
from benchmarks.turns import Turns, outside_products

from benchmarks import pipeline
from miniature import command, refused, write_miniature
from tiny import tiny_transformer
from umpteen.data.dataset import open_dataset
from umpteen.data.labels import EpochSampler
from umpteen.data.tokens import TokenTable
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.objectives.losses import decoupled_softmax
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import TrainingStep


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pipeline")
    source, model = write_miniature(folder / "data"), tiny_transformer(folder / "model")
    return pipeline.run(150, batch=8, repeats=1, source=source, model=model)


def test_every_stage_has_its_row_and_its_ratio(outcome: dict[str, Any]) -> None:
    assert json.loads(json.dumps(outcome)) == outcome
    ratios = {
        "tokenising": {"tokenise_ratio"},
        "encoding": {"encode_ratio"},
        "step, transformer": {"step_ratio", "outside_products", "batching_share"},
        "step, static": {"outside_products", "batching_share"},
        "evaluation": {"search_ratio"},
    }
    assert [row["stage"] for row in outcome["results"]] == list(ratios)
    for row in outcome["results"]:
        for ratio in ratios[row["stage"]]:
            assert math.isfinite(row[ratio]) and row[ratio] > 0
        assert 0 < row.get("outside_products", 0.5) < 1


def test_both_sides_compute_the_same(outcome: dict[str, Any]) -> None:
    _, encoded, step, *_ = outcome["results"]
    assert encoded["texts"] == 150  # more than the dataset has, so some of them twice
    assert encoded["largest_difference"] < 1e-5
    assert step["loss_difference"] < 1e-5 and step["gradient_difference"] < 1e-4
    assert all(padded >= 1 for padded in step["padding"].values())


def test_the_naive_step_has_our_loss_our_gradients_and_our_update(tmp_path: Path) -> None:
    dataset = open_dataset(write_miniature(tmp_path / "data"))
    folder = tiny_transformer(tmp_path / "model", hidden_size=8)
    ours, theirs = (
        Towers(TransformerEncoder.load(folder, max_length=16, hidden_dropout=0.0)).double() for _ in range(2)
    )
    data = training_data(dataset, ours, labels=7)
    assert len(data.labels) == 7 and data.filtered.pairs  # a filtered pair is neither positive nor negative
    settings = step_settings(token_budget=40)
    optimizers = [
        make_optimizer([(towers.query, 1e-3)], weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8)
        for towers in (ours, theirs)
    ]
    step = TrainingStep(ours, data, decoupled_softmax, optimizers[0], settings)
    naive = NaiveStep(theirs.query, data, optimizers[1], settings)
    rows = EpochSampler(data.relevance, 13, seed=0).rows(0, 0)
    for number in range(2):
        loss = naive(rows)
        assert math.isfinite(loss) and loss == pytest.approx(step(rows, step=number, seed=0).loss, rel=1e-10)
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            if other.grad is not None:  # the pooler has none
                torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-10)


def test_micro_batches_in_file_order_hold_every_row_once_and_keep_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(0, 20, 50)
    table = TokenTable.of_lengths(np.arange(lengths.sum()), lengths)
    batches = in_file_order(table, 45)
    assert np.array_equal(torch.cat([ids for ids, _ in batches]), np.arange(lengths.sum()))
    assert sum(len(offsets) - 1 for _, offsets in batches) == 50
    assert all(len(offsets) == 2 or (len(offsets) - 1) * offsets.diff().max() <= 45 for _, offsets in batches)


def test_sides_take_turns_and_products_are_told_from_the_rest() -> None:
    order: list[str] = []
    turns = Turns({"one": lambda: order.append("one"), "other": lambda: order.append("other")}, repeats=2)
    assert order == ["one", "other"] * 2 and set(turns.seconds) == {"one", "other"}
    left = torch.rand(700, 700)
    assert outside_products(lambda: left @ left) < outside_products(lambda: left.exp().sin())


def test_a_benchmark_of_nothing_is_refused() -> None:
    refused(command("pipeline", "--texts", "0", of=benchmarks), "one text")
