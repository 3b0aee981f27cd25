"""The static encoder: weights, empty texts, gradients, where it starts from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny import tiny_tokenizer, tiny_transformer
from umpteen.encoders.folder import TextTokenizer
from umpteen.encoders.static import StaticEncoder
from umpteen.errors import BadConfig, BadInput

TEXTS = ["the law of the fish", "", "tax and trade", "dog"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return tiny_tokenizer(tmp_path / "tokenizer")


def test_a_vector_is_the_mean_of_weighted_rows(source: str) -> None:
    encoder = StaticEncoder.random(source, 6, seed=0, normalise=False).double().eval()
    weights = torch.rand(len(encoder.token_weights), dtype=torch.float64)
    encoder.token_weights.data = weights
    ids = torch.tensor(encoder.tokenizer(["the law of the fish"])[0])
    expected = (weights[ids, None] * encoder.table[ids]).mean(0)
    torch.testing.assert_close(encoder.encode(["the law of the fish"])[0], expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bigrams", [0, 50])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_text_without_tokens_is_zero_and_leaves_no_nan(source: str, bigrams: int, normalise: bool) -> None:
    encoder = StaticEncoder.random(source, 6, seed=0, bigrams=bigrams, normalise=normalise)
    vectors = encoder(*encoder.read_now(TEXTS))
    assert not vectors[1].any()
    assert torch.isfinite(vectors).all()
    (vectors**2 + vectors).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


def test_a_row_of_zeros_gets_no_exploding_gradient_through_normalising(source: str) -> None:
    encoder = StaticEncoder.random(source, 6, seed=0)
    encoder.table.data.zero_()
    encoder(*encoder.read_now(TEXTS)).sum().backward()
    assert encoder.table.grad is not None and not encoder.table.grad.any()


def test_normalised_vectors_have_length_one_in_training_too(source: str) -> None:
    encoder = StaticEncoder.random(source, 16, seed=0, dropout=0.5).train()
    norms = encoder(*encoder.read_now(["the law", "tax"])).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(2))


def test_dropout_works_in_training_and_rests_in_evaluation(source: str) -> None:
    encoder = StaticEncoder.random(source, 32, seed=0, dropout=0.5, normalise=False)
    batch = encoder.read_now(["the law", "tax"])
    still = encoder.eval()(*batch)
    assert torch.equal(still, encoder(*batch))
    dropped = encoder.train()(*batch)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * still[kept])


def test_bigrams_start_as_the_encoder_without_and_then_tell_order(source: str) -> None:
    plain = StaticEncoder.random(source, 6, seed=0).eval()
    paired = StaticEncoder.random(source, 6, seed=0, bigrams=100).eval()
    assert torch.equal(plain.encode(TEXTS), paired.encode(TEXTS))
    assert paired.bigrams is not None
    paired.bigrams.data.normal_(generator=torch.Generator().manual_seed(1))
    first, second = paired.encode(["law tax", "tax law"])
    assert not torch.allclose(first, second)


def test_float64_passes_gradcheck(source: str) -> None:
    encoder = StaticEncoder.random(source, 3, seed=0, bigrams=11).double().eval()
    batch = encoder.read_now(["law tax", "", "fish"])
    parameters = tuple(encoder.parameters())

    def vectors(*_: torch.Tensor) -> torch.Tensor:
        return encoder(*batch)

    assert torch.autograd.gradcheck(vectors, parameters, fast_mode=True)


def test_the_token_table_of_a_transformer_is_the_start(tmp_path: Path) -> None:
    source = tiny_transformer(tmp_path / "model")
    encoder = StaticEncoder.from_token_table(source, max_length=9)
    table = load_file(Path(source, "model.safetensors"))["embeddings.word_embeddings.weight"]
    assert torch.equal(encoder.table, table)
    assert torch.equal(encoder.token_weights, torch.ones(len(table)))
    assert encoder.dimension == table.shape[1]
    assert [len(ids) for ids in encoder.tokenizer(["law " * 20, "law"])] == [9, 1]


def test_a_smaller_dimension_keeps_the_scores_as_well_as_any_can(tmp_path: Path) -> None:
    source = tiny_transformer(tmp_path / "model")
    whole = StaticEncoder.from_token_table(source).table.detach().double()
    small = StaticEncoder.from_token_table(source, dimension=20)
    assert small.dimension == 20
    left_out = torch.linalg.matrix_norm(whole @ whole.T - small.table.double() @ small.table.double().T)
    best = torch.linalg.svdvals(whole)[20:].pow(2).norm()
    torch.testing.assert_close(left_out, best, rtol=1e-4, atol=0)
    with pytest.raises(BadConfig, match="dimension = 33"):
        StaticEncoder.from_token_table(source, dimension=33)


def test_the_same_seed_gives_the_same_start(source: str) -> None:
    first, second, other = (StaticEncoder.random(source, 6, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.table, second.table)
    assert not torch.equal(first.table, other.table)


def test_rows_beyond_the_vocabulary_are_dropped_and_missing_rows_refused(source: str) -> None:
    tokenizer = TextTokenizer.load(source, 9, special_tokens=False)
    encoder = StaticEncoder(tokenizer, torch.ones(tokenizer.vocabulary_size + 5, 2))
    assert len(encoder.table) == tokenizer.vocabulary_size
    with pytest.raises(BadInput, match="token table"):
        StaticEncoder(tokenizer, torch.ones(tokenizer.vocabulary_size - 1, 2))


def test_a_model_without_a_token_table_is_named(source: str) -> None:
    with pytest.raises(BadInput, match="safetensors"):
        StaticEncoder.from_token_table(source)
