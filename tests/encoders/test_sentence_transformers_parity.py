"""sentence-transformers loads our folders and gives our vectors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tiny import tiny_tokenizer, tiny_transformer
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.folder import locate
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder

TEXTS = [
    "The law of the fish",
    "",
    "tax and trade in food " * 20,
    "Öffentliche Bücherei – библиотека, 図書館と中文字, bibliothèque, مكتبة",
    "dog",
    " \t ",
]

ENCODERS: dict[str, Callable[[Path], Encoder]] = {
    "static": lambda folder: _static(folder),
    "static, not normalised": lambda folder: _static(folder, normalise=False),
    "static with bigrams": lambda folder: _static(folder, bigrams=37),
    "static with bigrams, not normalised": lambda folder: _static(folder, bigrams=1000, normalise=False),
    "mean": lambda folder: _transformer(folder),
    "mean, not normalised": lambda folder: _transformer(folder, normalise=False),
    "first": lambda folder: _transformer(folder, pooling="first"),
    "first of a DistilBERT": lambda folder: _transformer(folder, kind="distilbert", pooling="first", normalise=False),
    "mean of an MPNet": lambda folder: _transformer(folder, kind="mpnet"),
    "mean, projected": lambda folder: _transformer(folder, projection=8),
    "first, projected, not normalised": lambda folder: _transformer(
        folder, pooling="first", projection=40, normalise=False
    ),
}
TOWERS: dict[str, tuple[str, str]] = {
    "static, twice": ("static", "static, not normalised"),
    "bigrams for queries": ("static with bigrams", "static"),
    "a transformer for queries, static labels": ("mean", "static"),
    "static queries, a transformer for labels": ("static", "first"),
}


def _static(folder: Path, bigrams: int = 0, normalise: bool = True) -> StaticEncoder:
    source = tiny_tokenizer(folder / "source")
    encoder = StaticEncoder.random(source, 32, seed=1, bigrams=bigrams, normalise=normalise, dropout=0.3, max_length=20)
    numbers = torch.Generator().manual_seed(2)
    encoder.token_weights.data = torch.rand(len(encoder.token_weights), generator=numbers) + 0.5
    if encoder.bigrams is not None:
        encoder.bigrams.data.normal_(generator=numbers)
    return encoder.eval()


def _transformer(folder: Path, kind: str = "bert", **settings: object) -> TransformerEncoder:
    source = tiny_transformer(folder / "source", kind)
    torch.manual_seed(3)
    return TransformerEncoder.load(source, max_length=20, dropout=0.3, **settings).eval()


def _theirs(folder: Path, texts: list[str], method: str = "encode") -> Tensor:
    from sentence_transformers import SentenceTransformer

    # trust_remote_code lets it import the class for what it has no modules for from umpteen; others don't need it.
    ours = any("EncoderModule" in file.read_text() for file in folder.rglob("*.json"))
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=ours, local_files_only=True)
    vectors = getattr(model, method)(texts, convert_to_tensor=True, show_progress_bar=False)
    assert isinstance(vectors, Tensor)
    return vectors


def _same(ours: Tensor, theirs: Tensor) -> None:
    assert torch.isfinite(ours).all() and torch.isfinite(theirs).all()
    scale = ours.abs().max().clamp_min(1.0)
    assert (ours - theirs).abs().max() <= 1e-6 * scale


@pytest.mark.parametrize("name", ENCODERS)
def test_sentence_transformers_gives_the_vectors_of_a_shared_tower(name: str, tmp_path: Path) -> None:
    encoder = ENCODERS[name](tmp_path)
    Towers(encoder).save(tmp_path / "saved")
    _same(encoder.encode(TEXTS), _theirs(tmp_path / "saved", TEXTS))


@pytest.mark.parametrize("name", TOWERS)
def test_sentence_transformers_gives_the_vectors_of_two_towers_together_and_alone(name: str, tmp_path: Path) -> None:
    query, label = (ENCODERS[kind](tmp_path / side) for kind, side in zip(TOWERS[name], ("q", "l"), strict=True))
    saved = tmp_path / "saved"
    Towers(query, label).save(saved)
    _same(query.encode(TEXTS), _theirs(saved / "query", TEXTS))
    _same(label.encode(TEXTS), _theirs(saved / "label", TEXTS))
    _same(query.encode(TEXTS), _theirs(saved, TEXTS, "encode_query"))
    _same(label.encode(TEXTS), _theirs(saved, TEXTS, "encode_document"))


@pytest.mark.parametrize("name", ENCODERS)
def test_a_loaded_tower_gives_the_vectors_it_was_saved_with(name: str, tmp_path: Path) -> None:
    encoder = ENCODERS[name](tmp_path)
    if isinstance(encoder, StaticEncoder):
        encoder.settle()  # as saving does
    Towers(encoder).save(tmp_path / "saved")
    loaded = Towers.load(tmp_path / "saved")
    assert loaded.shared and not loaded.training
    torch.testing.assert_close(loaded.query.encode(TEXTS), encoder.encode(TEXTS), rtol=0, atol=1e-6)
    assert loaded.query.tokenizer.fingerprint == encoder.tokenizer.fingerprint
    assert loaded.query.describe() == encoder.describe()


def test_two_loaded_towers_give_the_vectors_they_were_saved_with(tmp_path: Path) -> None:
    query, label = ENCODERS["mean"](tmp_path / "q"), ENCODERS["static with bigrams"](tmp_path / "l")
    Towers(query, label).save(tmp_path / "saved")
    loaded = Towers.load(tmp_path / "saved")
    assert not loaded.shared
    torch.testing.assert_close(loaded.query.encode(TEXTS), query.encode(TEXTS), rtol=0, atol=1e-6)
    torch.testing.assert_close(loaded.label.encode(TEXTS), label.encode(TEXTS), rtol=0, atol=1e-6)


def test_saving_folds_the_token_weights_and_leaves_the_encoder_as_it_was(tmp_path: Path) -> None:
    encoder = _static(tmp_path)
    weights = encoder.token_weights.detach().clone()
    encoder.save(tmp_path / "saved")
    loaded = Towers.load(tmp_path / "saved").query
    assert torch.equal(encoder.token_weights, weights)
    assert torch.equal(loaded.token_weights, torch.ones_like(weights))
    torch.testing.assert_close(loaded.encode(TEXTS), encoder.encode(TEXTS), rtol=0, atol=1e-6)


def test_the_default_model_gives_the_vectors_it_gives_in_sentence_transformers() -> None:
    encoder = TransformerEncoder.load("all-MiniLM-L6-v2", max_length=256).eval()
    _same(encoder.encode(TEXTS), _theirs(locate("all-MiniLM-L6-v2"), TEXTS))
