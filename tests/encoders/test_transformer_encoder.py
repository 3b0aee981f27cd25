"""The transformer encoder: pooling, padding, limits, dropout."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny import HIDDEN_SIZE, POSITIONS, tiny_transformer
from umpteen.encoders.encoder import read_encoder, tokens_now
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadConfig, BadFile, BadInput

TEXTS = ["the law of the fish", "", "tax and trade in food", "dog"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_changes_no_vector(source: str, pooling: str) -> None:
    encoder = TransformerEncoder.load(source, pooling=pooling, max_length=POSITIONS).double().eval()
    together = encoder.encode(TEXTS)
    alone = torch.cat([encoder.encode([text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_texts_that_are_padded_in_several_groups_have_the_values_and_gradients_of_each_alone(
    source: str, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TransformerEncoder.load(source, pooling=pooling, max_length=POSITIONS, hidden_dropout=0.0).double()
    calls: list[int] = []
    encoder.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    texts = [*TEXTS, "trade", "fish and food and law", "", "a dog"]
    table = tokens_now(encoder, texts)
    weights = torch.randn(len(texts), encoder.dimension, dtype=torch.double, generator=torch.manual_seed(0))

    def gradients(groups: list[list[int]]) -> list[torch.Tensor]:
        encoder.zero_grad()
        found = torch.cat([encoder(*table.batch(np.array(group))) for group in groups])
        (found * weights).sum().backward()
        return [found.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]

    alone = gradients([[row] for row in range(len(texts))])
    calls.clear()
    monkeypatch.setattr("umpteen.encoders.transformer.PADDED_TOGETHER", 12)
    together = gradients([list(range(len(texts)))])
    assert len(calls) > 2 and max(calls) <= 12
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_pooling_takes_the_mean_or_the_first_of_the_model_s_states(source: str) -> None:
    settings = {"normalise": False, "max_length": POSITIONS}
    mean, first = (TransformerEncoder.load(source, pooling=pooling, **settings).eval() for pooling in ("mean", "first"))
    ids = torch.tensor(mean.tokenizer(["the law"]))
    with torch.no_grad():
        states = mean.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    torch.testing.assert_close(mean.encode(["the law"])[0], states.mean(0))
    torch.testing.assert_close(first.encode(["the law"])[0], states[0])


def test_no_texts_and_texts_without_tokens_give_zeros(source: str) -> None:
    for pooling in ("mean", "first"):
        encoder = TransformerEncoder.load(source, pooling=pooling, max_length=POSITIONS)
        assert encoder.encode([]).shape == (0, HIDDEN_SIZE)
        vectors = encoder(torch.tensor([2, 9, 3]), torch.tensor([0, 0, 3]))
        assert not vectors[0].any() and torch.isfinite(vectors).all()
        vectors.pow(2).sum().backward()
        gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
        assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)


def test_a_projection_sets_the_dimension(source: str) -> None:
    encoder = TransformerEncoder.load(source, projection=5, max_length=POSITIONS).eval()
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (4, 5) and encoder.dimension == 5
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))


def test_random_weights_need_no_weights_file_and_follow_torch_s_seed(tmp_path: Path) -> None:
    folder = tiny_transformer(tmp_path / "model")
    Path(folder, "model.safetensors").unlink()
    vectors = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        vectors.append(TransformerEncoder.load(folder, random_weights=True, max_length=9).eval().encode(["law"]))
    torch.testing.assert_close(vectors[0], vectors[1])
    assert not torch.allclose(vectors[0], vectors[2])
    with pytest.raises(BadInput, match="cannot load the model"):
        TransformerEncoder.load(folder, max_length=9)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet"])
def test_the_layers_keep_their_dropout_unless_told_otherwise(kind: str, tmp_path: Path) -> None:
    folder = tiny_transformer(tmp_path, kind)
    usual = TransformerEncoder.load(folder, max_length=9).train()
    assert not torch.allclose(usual.encode(TEXTS), usual.encode(TEXTS))
    without = TransformerEncoder.load(folder, max_length=9, hidden_dropout=0.0).train()
    torch.testing.assert_close(without.encode(TEXTS), without.encode(TEXTS))
    torch.testing.assert_close(without.encode(TEXTS), usual.eval().encode(TEXTS), rtol=1e-5, atol=1e-5)


def test_dropout_on_the_vectors_rests_in_evaluation(source: str) -> None:
    settings = {"max_length": 9, "hidden_dropout": 0.0, "normalise": False}
    encoder = TransformerEncoder.load(source, dropout=0.5, **settings)
    still = encoder.eval().encode(TEXTS)
    dropped = encoder.train().encode(TEXTS)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * still[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_beyond_the_positions_a_text_is_the_mean_of_its_pieces_weighted_by_their_tokens(
    source: str, pooling: str
) -> None:
    encoder = TransformerEncoder.load(source, pooling=pooling, max_length=3 * POSITIONS - 9, normalise=False)
    encoder = encoder.double().eval()
    words = ["law", "fish", "dog", "tree", "of"] * 60
    room = POSITIONS - 2
    pieces = [" ".join(words[start : min(start + room, 150)]) for start in range(0, 150, room)]  # the last one is short
    found = encoder.encode(["tax", " ".join(words[:150]), "", " ".join(words)])
    weights = torch.tensor([len(piece.split()) + 2 for piece in pieces]).double()
    naive = (encoder.encode(pieces) * weights[:, None]).sum(0) / weights.sum()
    torch.testing.assert_close(found[1], naive, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[:1], encoder.encode(["tax"]), rtol=1e-12, atol=1e-12)
    assert encoder.tokenizer.max_length == 3 * POSITIONS  # whole pieces
    torch.testing.assert_close(found[3], encoder.encode([" ".join(words[: 3 * room])])[0], rtol=1e-12, atol=1e-12)
    assert encoder.tokenizer.uncut_lengths(["", " ".join(words[:150])]) == [2, int(weights.sum())]


def test_the_first_layers_alone_give_what_they_give_below_the_others(source: str) -> None:
    settings = {"normalise": False, "max_length": POSITIONS}
    short, whole = (TransformerEncoder.load(source, layers=layers, **settings).eval() for layers in (1, None))
    ids = torch.tensor(whole.tokenizer(["the law"]))
    with torch.no_grad():
        states = whole.model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    torch.testing.assert_close(short.encode(["the law"])[0], states.hidden_states[1][0].mean(0))


def test_of_trained_layers_the_last_alone_learn_as_they_do_among_all_and_stay_so_when_saved(
    source: str, tmp_path: Path
) -> None:
    every, last = (
        TransformerEncoder.load(source, max_length=9, hidden_dropout=0.0, trained_layers=layers).double()
        for layers in (None, 1)
    )
    for encoder in (every, last):
        encoder(*tokens_now(encoder, TEXTS).batch(np.arange(len(TEXTS))))[:, 0].sum().backward()
    learned = {name: p.grad for name, p in last.named_parameters() if p.grad is not None}
    assert learned and all(".layer.1." in name for name in learned)
    among = dict(every.named_parameters())
    for name, gradient in learned.items():
        torch.testing.assert_close(gradient, among[name].grad, rtol=1e-12, atol=1e-12)
    last.float().save(tmp_path / "saved")
    again = read_encoder(tmp_path / "saved")
    assert {name for name, p in again.named_parameters() if p.requires_grad} == set(learned)


def test_more_trained_layers_than_there_are_and_layers_that_share_weights_are_refused(
    source: str, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match="has 2 layers; give fewer"):
        TransformerEncoder.load(source, max_length=9, trained_layers=3)
    from transformers import AlbertConfig, AlbertModel

    folder = tiny_transformer(tmp_path)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    AlbertModel(AlbertConfig(vocab_size=200, embedding_size=8, **sizes)).save_pretrained(folder)
    with pytest.raises(BadConfig, match="leave it out"):
        TransformerEncoder.load(folder, max_length=9, trained_layers=1)


def test_positions_that_start_after_the_padding_leave_fewer(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    folder = tiny_transformer(tmp_path)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    RobertaModel(RobertaConfig(vocab_size=200, max_position_embeddings=20, pad_token_id=1, **sizes)).save_pretrained(
        folder
    )
    assert TransformerEncoder.load(folder, max_length=19).tokenizer.window == 18
    encoder = TransformerEncoder.load(folder, max_length=18).double().eval()
    together = encoder.encode(["law " * 30, "tax"])
    alone = torch.cat([encoder.encode(["law " * 30]), encoder.encode(["tax"])])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


def test_weights_with_a_tensor_missing_are_refused_not_made_up(tmp_path: Path) -> None:
    folder = tiny_transformer(tmp_path)
    file = Path(folder, "model.safetensors")
    tensors = load_file(file)
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(BadInput, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        TransformerEncoder.load(folder, max_length=9)


def test_a_cut_weights_file_is_refused(tmp_path: Path) -> None:
    folder = tiny_transformer(tmp_path)
    file = Path(folder, "model.safetensors")
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(BadInput, match="cannot load the model"):
        TransformerEncoder.load(folder, max_length=9)


def test_a_broken_or_missing_configuration_is_named(tmp_path: Path) -> None:
    folder = tiny_transformer(tmp_path)
    config = Path(folder, "config.json")
    config.write_text("{")
    with pytest.raises(BadFile, match=r"config\.json"):
        TransformerEncoder.load(folder, max_length=9)
    config.unlink()
    with pytest.raises(BadFile, match=r"config\.json: is missing"):
        TransformerEncoder.load(folder, max_length=9)


def test_loading_is_silent(source: str, capfd: pytest.CaptureFixture[str]) -> None:
    TransformerEncoder.load(source, max_length=9)
    assert capfd.readouterr() == ("", "")
