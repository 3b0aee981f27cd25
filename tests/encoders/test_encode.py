"""Encoding in micro-batches gives each text the vector it has alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiny import tiny_tokenizer, tiny_transformer
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder, encode_texts, encode_tokens, micro_batches, tokens_now
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.transformer import TransformerEncoder

TEXTS = ["the dog", "trade in fish and food and books", "tax", "law of the library network", "a", "the law", "図書館"]


@pytest.fixture(params=["static", "transformer"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Encoder:
    if request.param == "static":
        return StaticEncoder.random(tiny_tokenizer(tmp_path), 8, seed=0, dropout=0.5).double()
    return TransformerEncoder.load(tiny_transformer(tmp_path), dropout=0.5, max_length=64).double()


@given(lengths=st.lists(st.integers(0, 40), max_size=60), budget=st.integers(1, 100))
def test_micro_batches_hold_every_text_once_and_keep_the_budget(lengths: list[int], budget: int) -> None:
    parts = micro_batches(np.array(lengths, dtype=np.int64), budget)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= budget


@pytest.mark.parametrize("budget", [1, 12, 16_384])
def test_every_text_has_the_vector_it_has_alone_and_its_place(encoder: Encoder, budget: int) -> None:
    encoder.train()
    vectors = encode_tokens(encoder, tokens_now(encoder, TEXTS), token_budget=budget)
    assert encoder.training  # dropout was off for the encoding only
    alone = torch.cat([encoder.eval().encode([text]) for text in TEXTS])
    assert torch.isfinite(vectors).all() and vectors.dtype == torch.float64
    torch.testing.assert_close(vectors, alone, rtol=0, atol=1e-12)
    assert not vectors.requires_grad


def test_a_token_table_and_its_texts_give_the_same_vectors(encoder: Encoder) -> None:
    table = TokenTable.of(encoder.tokenizer(TEXTS), encoder.tokenizer.vocabulary_size)
    seen: list[tuple[int, int]] = []
    vectors = encode_tokens(encoder, table, token_budget=12, progress=lambda done, total: seen.append((done, total)))
    torch.testing.assert_close(vectors, encode_texts(encoder, TEXTS), rtol=0, atol=1e-12)
    assert seen[-1] == (len(TEXTS), len(TEXTS)) and len(seen) > 1


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_threads_that_share_the_micro_batches_give_the_same_vectors(encoder: Encoder) -> None:
    many = [f"{first} {second}" for first in TEXTS for second in TEXTS]
    seen: list[int] = []
    table = TokenTable.of(encoder.tokenizer(many), encoder.tokenizer.vocabulary_size)
    vectors = encode_tokens(encoder, table, token_budget=16, progress=lambda done, _: seen.append(done))
    alone = torch.cat([encoder.eval().encode([text]) for text in many])
    torch.testing.assert_close(vectors, alone, rtol=0, atol=1e-12)
    assert seen == sorted(seen) and seen[-1] == len(many)


@pytest.mark.usefixtures("three_threads")
def test_a_failure_in_one_thread_ends_the_others(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TokenTable.of(encoder.tokenizer(TEXTS * 20), encoder.tokenizer.vocabulary_size)
    calls: list[int] = []

    def failing(*_: object, **__: object) -> None:
        calls.append(1)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(encoder, "forward", failing)
    with pytest.raises(RuntimeError, match="out of luck"):
        encode_tokens(encoder, table, token_budget=1)
    assert len(calls) <= 3


def test_many_texts_are_tokenised_in_parts(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode_texts(encoder, TEXTS)
    monkeypatch.setattr("umpteen.encoders.encoder._TEXTS_AT_A_TIME", 3)
    torch.testing.assert_close(encode_texts(encoder, TEXTS), whole, rtol=0, atol=1e-12)


def test_no_texts_have_no_vectors(encoder: Encoder) -> None:
    assert encode_texts(encoder, []).shape == (0, encoder.dimension)
