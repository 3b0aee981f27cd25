"""The gradient cache gives the weights the gradient of the full graph, dropout included."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny import tiny_transformer
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.training.gradient_cache import CachedVectors, seeded

TEXTS = ["the law of fish", "tax", "trade and food in the library", "book", "", "network dog tree", "the tree of food"]


def make(kind: str, folder: Path) -> Encoder:
    source = tiny_transformer(folder)
    encoder: Encoder
    if kind == "static":
        encoder = StaticEncoder.random(source, 16, seed=1, dropout=0.4, bigrams=50)
    else:
        encoder = TransformerEncoder.load(source, dropout=0.3, max_length=16)
    return encoder.double().train()


def parameter_gradients(encoder: Encoder) -> list[Tensor]:
    found = [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]
    encoder.zero_grad()
    return found


@pytest.mark.parametrize("kind", ["static", "transformer"])
@pytest.mark.parametrize("budget", [1, 8, 20, 1000])
def test_replayed_gradients_equal_those_of_the_full_graph_with_dropout_on(
    kind: str, budget: int, tmp_path: Path
) -> None:
    encoder = make(kind, tmp_path)
    table = TokenTable.of(encoder.tokenizer(TEXTS), encoder.tokenizer.vocabulary_size)
    pull = torch.randn(len(TEXTS), encoder.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    cached = CachedVectors(encoder, table, budget=budget, seed=11)
    leaf = cached.vectors.detach().requires_grad_()
    (leaf * pull).sin().sum().backward()
    assert leaf.grad is not None
    cached.replay(None, leaf.grad)
    ours = parameter_gradients(encoder)

    # The judge: every micro-batch in one graph, its dropout drawn from the same seeds.
    full = torch.empty(0)
    pieces: dict[int, Tensor] = {}
    for part, rows in enumerate(cached._parts):
        with seeded(11 + part, torch.device("cpu")):
            vectors = encoder(*table.batch(rows))
        pieces |= dict(zip(rows.tolist(), vectors, strict=True))
    full = torch.stack([pieces[row] for row in range(len(TEXTS))])
    torch.testing.assert_close(cached.vectors, full.detach(), rtol=0, atol=1e-13)
    (full * pull).sin().sum().backward()
    theirs = parameter_gradients(encoder)
    assert len(ours) == len(theirs) > 0
    for our, their in zip(ours, theirs, strict=True):
        assert torch.isfinite(our).all()
        torch.testing.assert_close(our, their, rtol=1e-10, atol=1e-13)


def test_gradients_of_one_text_used_twice_add_up(tmp_path: Path) -> None:
    encoder = make("static", tmp_path)
    table = TokenTable.of(encoder.tokenizer(TEXTS[:2]), encoder.tokenizer.vocabulary_size)
    ones = torch.ones(3, encoder.dimension, dtype=torch.float64)
    CachedVectors(encoder, table, budget=1, seed=0).replay(np.array([1, 0, 1]), ones)
    twice = parameter_gradients(encoder)
    CachedVectors(encoder, table, budget=1, seed=0).replay(None, torch.stack([ones[0], 2 * ones[1]]))
    for ours, theirs in zip(twice, parameter_gradients(encoder), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_seeding_a_micro_batch_leaves_the_outer_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = torch.rand(1)
    with seeded(99, torch.device("cpu")):
        torch.rand(10)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


def test_micro_batches_hold_every_text_once_within_the_budget() -> None:
    from umpteen.encoders.encoder import micro_batches

    lengths = np.random.default_rng(0).integers(0, 40, 500)
    parts = micro_batches(lengths, 100)
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    assert all(len(part) * max(1, lengths[part].max()) <= 100 for part in parts)
