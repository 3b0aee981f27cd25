"""A learned vector per label, alone or added to the text's: values, gradients, folders, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from answers import same_answers
from miniature import files_of
from tiny import tiny_tokenizer, tiny_transformer
from umpteen.data.labels import LabelCatalogue
from umpteen.data.texts import Texts
from umpteen.encoders.encoder import NEW, Encoder, encode_texts, encode_tokens, tokens_for
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import RowTable
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.table import LabelTable
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput, DamagedModel
from umpteen.model.classifier import Classifier, verify
from umpteen.parallel.world import Shard, World

TEXTS = ["fish", "law of the tree", "book", "book", "dog and tree"]
ROWS = np.arange(len(TEXTS))


def rows(dimension: int = 8, count: int = len(TEXTS)) -> RowTable:
    return RowTable.gaussian(Shard(World(), count), dimension, seed=4)


def text_tower(folder: Path, kind: str = "static", *, normalise: bool = True) -> Encoder:
    if kind == "static":
        return StaticEncoder.random(tiny_tokenizer(folder), 8, seed=0, bigrams=20, normalise=normalise)
    start = tiny_transformer(folder, hidden_size=8)
    return TransformerEncoder.load(start, max_length=9, hidden_dropout=0.0, normalise=normalise)


def with_rows(text: Encoder, table: RowTable, *, normalise: bool = True) -> PartsEncoder:
    """A text's vector plus a residual for each label."""
    parts = {"static": text, "table": LabelTable(table, normalise=False, optional=True)}
    return PartsEncoder(parts, "sum", normalise=normalise)


def vectors_of(tower: Encoder, chosen: np.ndarray = ROWS) -> Tensor:
    texts = Texts.of([TEXTS[row] for row in chosen])
    return tower(*tokens_for(tower, texts, chosen).batch(np.arange(len(chosen))))


@pytest.mark.parametrize("normalise", [True, False])
def test_a_table_gives_each_label_its_row(normalise: bool) -> None:
    tower = LabelTable(rows(), normalise=normalise)
    weight = tower.table.weight
    expected = normalize(weight) if normalise else weight
    torch.testing.assert_close(vectors_of(tower), expected)
    torch.testing.assert_close(vectors_of(tower, np.array([3, 0])), expected[[3, 0]])


def biases(count: int = len(TEXTS)) -> RowTable:
    return RowTable(torch.linspace(-2, 1, count)[:, None])


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kind", ["static", "transformer"])
def test_a_label_s_bias_is_added_to_its_inner_products(kind: str, normalise: bool, tmp_path: Path) -> None:
    query = text_tower(tmp_path, kind, normalise=normalise).eval()
    plain = query.encode(TEXTS)
    label = LabelTable(rows(), biases(), normalise=normalise)
    towers = Towers(query, label).eval()
    assert towers.dimension == label.dimension == 9
    torch.testing.assert_close(query.encode(TEXTS)[:, :-1], plain)
    table = normalize(label.table.weight) if normalise else label.table.weight
    expected = plain @ table.T + biases().weight[:, 0]
    torch.testing.assert_close(query.encode(TEXTS) @ vectors_of(label).T, expected)
    assert Towers(query, label).dimension == 9  # the 1 is appended once
    assert query(*query.read_now([])).shape == (0, 9)


def test_a_bias_that_does_not_fit_its_table_is_refused() -> None:
    for bias in (biases(4), RowTable(torch.zeros(5, 2))):
        with pytest.raises(BadInput, match=r"biases \(.*for 5 labels"):
            LabelTable(rows(), bias)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kind", ["static", "transformer"])
def test_a_fused_tower_starts_as_its_text_tower_and_adds_what_it_learns(
    kind: str, normalise: bool, tmp_path: Path
) -> None:
    text = text_tower(tmp_path, kind, normalise=normalise).double().eval()
    tower = with_rows(text, RowTable.zeros(Shard(World(), len(TEXTS)), 8), normalise=normalise).double()
    plain = torch.cat([text.encode([label]) for label in TEXTS])
    torch.testing.assert_close(vectors_of(tower), plain)
    assert tower.rows is not None
    tower.rows.weight.data = rows().weight.double()
    fused = plain + tower.rows.weight
    expected = normalize(fused) if normalise else fused
    torch.testing.assert_close(vectors_of(tower), expected)
    assert not torch.equal(vectors_of(tower)[2], vectors_of(tower)[3])  # equal texts, residuals of their own
    shuffled = np.array([4, 1, 1])
    torch.testing.assert_close(vectors_of(tower, shuffled), expected[shuffled])


@pytest.mark.parametrize("normalise", [True, False])
def test_the_gradients_of_a_fused_tower_are_those_of_dense_autograd(normalise: bool, tmp_path: Path) -> None:
    tower = with_rows(text_tower(tmp_path, normalise=normalise), rows(), normalise=normalise).double()
    text = tower.encoders["static"]
    assert isinstance(text, StaticEncoder) and tower.rows is not None
    tower.weigh({"static": 0.7, "table": 1.3})
    vectors_of(tower).sin().sum().backward()
    ours = tower.rows.dense_gradient(), text.table.grad
    assert tower.weights.grad is not None and not tower.weights.grad.any()  # both stay
    text.zero_grad()
    residual, weights = tower.rows.weight.detach().requires_grad_(), tower.weights.detach()
    plain = torch.cat([text(*text.read_now([label])) for label in TEXTS])
    fused = weights[0] * plain + weights[1] * residual
    (normalize(fused) if normalise else fused).sin().sum().backward()
    for mine, theirs in zip(ours, (residual.grad, text.table.grad), strict=True):
        assert mine is not None and theirs is not None and theirs.abs().max() > 1e-3
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_a_label_new_to_a_fused_tower_has_no_residual(tmp_path: Path) -> None:
    text = text_tower(tmp_path).eval()
    tower = with_rows(text, rows()).eval()
    known, new = encode_texts(tower, TEXTS, rows=ROWS), encode_texts(tower, TEXTS)
    torch.testing.assert_close(new, text.encode(TEXTS))
    torch.testing.assert_close(tower.encode(TEXTS), new)
    assert (known - new).abs().max() > 0.1
    mixed = encode_texts(tower, TEXTS, rows=np.array([0, NEW, 2, NEW, 4]))
    torch.testing.assert_close(mixed, torch.where(torch.tensor([[1], [0], [1], [0], [1]]).bool(), known, new))


def test_a_table_refuses_texts(tmp_path: Path) -> None:
    tower = LabelTable(rows())
    query = text_tower(tmp_path)
    labels = LabelCatalogue([f"key {row}" for row in ROWS], TEXTS)
    for attempt in (
        lambda: tower.encode(["fish"]),
        lambda: tower.tokenizer,
        lambda: tower(*query.read_now(TEXTS)),
        lambda: encode_texts(tower, TEXTS),
        lambda: Classifier.build(Towers(query, tower).eval(), labels),
    ):
        with pytest.raises(BadInput, match=r"label table.*text label tower"):
            attempt()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", ["table", "table and biases", "fused"])
def test_a_classifier_with_rows_survives_its_folder(kind: str, tmp_path: Path) -> None:
    query, fused = text_tower(tmp_path / "start"), kind == "fused"
    text = StaticEncoder.random(tmp_path / "start", 8, seed=3, dropout=0.2)
    bias = biases() if kind == "table and biases" else None
    label = with_rows(text, rows()) if fused else LabelTable(rows(), bias, normalise=False, dropout=0.3)
    catalogue = LabelCatalogue([f"key {row}" for row in ROWS], TEXTS)
    classifier = Classifier(
        Towers(query, label).eval(), catalogue, encode_texts(label.eval(), TEXTS, rows=ROWS).float()
    )
    classifier.save(tmp_path / "model")
    assert verify(tmp_path / "model") == []
    loaded = Classifier.load(tmp_path / "model")
    same_answers(loaded.predict(TEXTS, 3), classifier.predict(TEXTS, 3))
    torch.testing.assert_close(encode_texts(loaded.towers.label, TEXTS, rows=ROWS), classifier.vectors)
    assert loaded.towers.describe() == classifier.towers.describe()
    assert "5 labels" in loaded.towers.describe() and ("and a bias" in loaded.towers.describe()) is (bias is not None)
    table = "label/table/model.safetensors" if fused else "label/model.safetensors"
    (files_of(tmp_path / "model") / "encoder" / table).unlink()
    with pytest.raises(DamagedModel, match=table):
        Classifier.load(tmp_path / "model")


def test_sentence_transformers_loads_the_query_tower_of_a_model_with_a_table(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    query = TransformerEncoder.load(tiny_transformer(tmp_path / "start", hidden_size=8), max_length=9).eval()
    Towers(query, LabelTable(rows())).save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(theirs.encode(TEXTS, convert_to_tensor=True), query.encode(TEXTS), rtol=1e-5, atol=1e-6)


def test_sentence_transformers_gives_the_constant_that_a_bias_is_multiplied_by(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    query = TransformerEncoder.load(tiny_transformer(tmp_path / "start", hidden_size=8), max_length=9).eval()
    Towers(query, LabelTable(rows(), biases())).save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    found = theirs.encode(TEXTS, convert_to_tensor=True)
    assert found.shape == (len(TEXTS), 9) and (found[:, -1] == 1).all()
    torch.testing.assert_close(found, query.encode(TEXTS), rtol=1e-5, atol=1e-6)


def test_parameters_are_counted_by_tower_and_a_shared_table_in_all(tmp_path: Path) -> None:
    query = text_tower(tmp_path)
    assert isinstance(query, StaticEncoder) and query.bigrams is not None
    of_query = query.table.numel() + query.token_weights.numel() + query.bigrams.numel()
    part = RowTable.zeros(Shard(World(1, 3), 100), 8)
    biased = LabelTable(part, RowTable.zeros(part.shard, 1))
    for label, of_label in ((LabelTable(part), 800), (with_rows(query, part), of_query + 800 + 2), (biased, 900)):
        counts = Towers(query, label).parameter_counts()
        assert counts == {"query": of_query, "label": of_label, "total": of_query + of_label, "frozen": 0}
    assert Towers(query).parameter_counts()["total"] == of_query


def test_many_labels_are_encoded_in_micro_batches_as_in_one(tmp_path: Path) -> None:
    tower = with_rows(text_tower(tmp_path), rows()).eval()
    tokens = tokens_for(tower, Texts.of(TEXTS), ROWS)
    torch.testing.assert_close(encode_tokens(tower, tokens, token_budget=6), encode_tokens(tower, tokens))
    ((_, text),) = tower.leaves(tokens)
    assert len(text.batch(ROWS)[0]) == len(tokens.batch(ROWS)[0]) - 2 * len(TEXTS)  # a length and a row each
