"""Why a label: every explanation adds up to the score that predict gives, and its evidence to its terms."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from miniature import KEYS, LABELS, command
from tiny import tiny_transformer
from umpteen.data.labels import LabelCatalogue
from umpteen.data.texts import Texts
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.frozen import FrozenEncoder, FrozenReader
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import RowTable
from umpteen.encoders.static import StaticEncoder, bigram_buckets
from umpteen.encoders.table import LabelTable
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput, DamagedModel
from umpteen.model.classifier import Classifier
from umpteen.model.explain import Explanation
from umpteen.model.live import Told
from umpteen.parallel.world import Shard, World
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import Ranker

TEXT = "The  dog, and network-law of\tfish 7"
TRAIN = ["law of fish", "the dog and the tree", "network of book 7", "tax and trade", "dog, fish, food", "a library"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"))


def encoder_of(kind: str, start: str) -> Encoder:
    if kind == "transformer":
        return TransformerEncoder.load(start, max_length=200)
    static = StaticEncoder.random(start, 32, seed=0, bigrams=50, max_length=16)
    with torch.no_grad():
        static.token_weights.copy_(torch.linspace(0.1, 1, len(static.token_weights)))
        assert static.bigrams is not None
        static.bigrams.copy_(torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) / 5)
    if kind == "static":
        return static
    parts = {"static": static, "frozen": FrozenEncoder(FrozenReader(TransformerEncoder.load(start, max_length=16)))}
    return PartsEncoder(parts, "sum" if kind == "sum" else "concat", weights={"static": 0.6, "frozen": 1.4})


def classifier_of(kind: str, start: str, *, sparse: bool = False, memory: bool = False) -> Classifier:
    """Random weights over the miniature's labels, the last of which no training text has."""
    query, catalogue = encoder_of(kind.removesuffix(", bias"), start), LabelCatalogue(KEYS, LABELS)
    shard, label = Shard(World(), len(LABELS)), None
    if kind.endswith("bias"):
        label = LabelTable(RowTable.gaussian(shard, query.dimension, 1), RowTable.gaussian(shard, 1, 2))
    towers = Towers(query, label).eval()
    plain = Classifier.build(towers, catalogue, rows=np.arange(len(LABELS)))
    recipe = "[objective]\ntemperature = 0.1\n"
    if not (sparse or memory):
        return Classifier(towers, catalogue, plain.vectors, told=Told(recipe=recipe))
    settings = RankerSettings(candidates=6, sparse=sparse, memory=memory, neighbours=4, similarity=0.2)
    chance = np.random.default_rng(0)
    relevant = (chance.random((len(TRAIN), len(LABELS))) < 0.5).astype(np.float32)
    relevant[:, -1] = 0
    features = TextFeatures.fit(TRAIN, settings)
    ranker = Ranker(
        features,
        csr_array(chance.normal(size=(len(features), len(LABELS))).astype(np.float32)),
        chance.normal(size=len(LABELS)).astype(np.float32) * sparse,
        relevant.sum(0).astype(np.int64),
        settings,
        Memory(towers.query.encode(TRAIN), csr_array(relevant), Texts.of(TRAIN)) if memory else None,
        weight=0.6,
        votes=0.4 if sparse and memory else float(memory),
        rare=0.5,
    )
    return Classifier(towers, catalogue, plain.vectors, ranker=ranker, told=Told(recipe=recipe))


def adds_up(why: Explanation) -> dict[str, float]:
    """The terms by name, after all sums are checked."""
    terms = {term.name: term.score for term in why.terms}
    close = {"rel": 1e-5, "abs": 2e-6}
    assert sum(terms.values()) == pytest.approx(why.score, **close)
    encoder = sum(score for name, score in terms.items() if name.startswith("dual encoder"))
    assert sum(word.score for word in why.words) == pytest.approx(encoder, **close)
    assert sum(ngram.score for ngram in why.ngrams) == pytest.approx(terms.get("n-grams", 0), **close)
    assert sum(near.score for near in why.neighbours) == pytest.approx(terms.get("training texts", 0), **close)
    return terms


@pytest.mark.parametrize("ranker", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "kind", ["static", "sum", "concat", "transformer", "static, bias", "sum, bias", "transformer, bias"]
)
def test_terms_add_up_to_the_score_that_predict_gives(kind: str, ranker: tuple[bool, bool], start: str) -> None:
    sparse, memory = ranker
    classifier = classifier_of(kind, start, sparse=sparse, memory=memory)
    explainer, names, voters = classifier.explainer(TEXT), set(), set()
    for label in classifier.predict([TEXT], k=6)[0]:
        why = explainer.explain(label.key)
        assert (why.key, why.label, why.probability, why.is_candidate) == (label.key, label.text, None, True)
        assert why.score == pytest.approx(label.score, abs=2e-6)
        assert why.method == ("exact" if kind.startswith("static") else "occlusion")
        assert [(TEXT[word.start : word.end], word.text) for word in why.words] == [(w.text, w.text) for w in why.words]
        names |= set(adds_up(why))
        voters |= {near.text for near in why.neighbours}
    parts = ": static" if kind.startswith(("sum", "concat")) else ""
    assert {f"dual encoder{parts}"} <= names and ("bias" in names) is kind.endswith("bias")
    assert ({"n-grams", "intercept"} <= names) is sparse and ("training texts" in names) is memory
    assert voters <= set(TRAIN) and bool(voters) is memory


@pytest.mark.parametrize("normalise", [True, False])
def test_shares_of_words_are_exact_for_a_bag(normalise: bool, start: str) -> None:
    encoder = encoder_of("static", start)
    assert isinstance(encoder, StaticEncoder) and encoder.bigrams is not None
    encoder.normalise = normalise
    classifier = Classifier.build(Towers(encoder).eval(), LabelCatalogue(KEYS, LABELS))
    why = classifier.explain(TEXT, KEYS[1])
    words = ["The", "dog", ",", "and", "network", "-", "law", "of", "fish", "7"]
    assert [word.text for word in why.words] == words
    pieces = [(word, token) for word, text in enumerate(words) for token in encoder.tokenizer([text])[0]]
    tokens = torch.tensor([token for _, token in pieces])
    buckets = bigram_buckets(tokens, torch.tensor([0, len(tokens)]), 50)[0].tolist()
    rows, weights, pairs = (tensor.detach().double().numpy() for tensor in (*encoder.parameters(),))
    naive = np.zeros((len(words), 32))
    for place, (word, token) in enumerate(pieces):
        naive[word] += weights[token] * rows[token] / len(pieces)
        for neighbour in (place - 1, place):
            if 0 <= neighbour < len(buckets):
                naive[word] += pairs[buckets[neighbour]] / len(buckets) / 2
    length = np.linalg.norm(naive.sum(0)) if normalise else 1.0
    expected = naive @ classifier.vectors[1].double().numpy() / length
    np.testing.assert_allclose([word.score for word in why.words], expected, rtol=1e-9, atol=1e-12)


def test_n_grams_share_what_they_add_in_proportion_to_their_part_of_the_margin(start: str) -> None:
    classifier = classifier_of("static", start, sparse=True)
    ranker = classifier.ranker
    assert ranker is not None
    row = 0
    why = classifier.explain(TEXT, KEYS[row])
    found = ranker.features.transform([TEXT]).toarray()[0].astype(np.float64)
    margins = dict(zip(names_of(ranker.features), found * ranker.weights.toarray()[:, row], strict=True))
    assert {ngram.text for ngram in why.ngrams} == {name for name, share in margins.items() if share}
    slopes = [ngram.score / margins[ngram.text] for ngram in why.ngrams]
    assert slopes == pytest.approx([slopes[0]] * len(slopes)) and slopes[0] > 0


def names_of(features: TextFeatures) -> list[str]:
    """All n-grams in the order of their columns."""
    known = {column: ngram for text in TRAIN for column, ngram in features.ngrams(text).items()}
    return [known[column] for column in range(len(features))]


def test_a_label_beyond_the_candidates_is_explained_as_if_it_were_one(start: str) -> None:
    classifier = classifier_of("static", start, sparse=True, memory=True)
    ranker = classifier.ranker
    assert ranker is not None
    dense = classifier.index.search(classifier.towers.query.encode([TEXT]), ranker.settings.candidates)
    beyond = [row for row in range(len(KEYS) - 1) if row not in dense.rows]
    wider = replace(ranker, settings=replace(ranker.settings, candidates=len(KEYS)))
    whole = Classifier(classifier.towers, LabelCatalogue(KEYS, LABELS), classifier.vectors, ranker=wider)
    told = {label.key: label.score for label in whole.predict([TEXT], k=len(KEYS))[0]}
    assert beyond
    for row in beyond:
        why = classifier.explain(TEXT, KEYS[row])
        adds_up(why)
        assert not why.is_candidate and why.score == pytest.approx(told[KEYS[row]], abs=2e-6)


def test_labels_the_ranker_knows_nothing_of_have_a_place_and_new_ones_a_head_start(start: str) -> None:
    classifier = classifier_of("concat", start, sparse=True, memory=True)
    assert "place" in adds_up(classifier.explain(LABELS[-1], KEYS[-1]))
    classifier.add_labels({"new": "the dog and network law"})
    why = classifier.explain(TEXT, "new")
    terms = adds_up(why)
    assert terms["head start"] == pytest.approx(0.4 * 0.2) and {"place", "head start"} < set(terms)
    assert why.score == pytest.approx({label.key: label.score for label in classifier.predict([TEXT])[0]}["new"])


def test_words_of_a_long_text_are_left_out_several_at_once_and_unread_ones_have_no_share(start: str) -> None:
    classifier = classifier_of("transformer", start)
    why = classifier.explain(" ".join(f"dog {number}" for number in range(500)), KEYS[0])
    scores = [word.score for word in why.words]
    adds_up(why)
    assert len(scores) == 1000 and scores[0] == scores[1] != 0 and not any(scores[200:])


def test_an_unknown_key_is_refused_with_the_nearest_one(start: str) -> None:
    classifier = classifier_of("static", start)
    with pytest.raises(BadInput, match="no label with the key 'key-dog-tre'; did you mean 'key-dog-tree'"):
        classifier.explain(TEXT, "key-dog-tre")
    classifier.retire_labels([KEYS[0]])
    with pytest.raises(BadInput, match="is retired"):
        classifier.explain(TEXT, KEYS[0])


def test_the_command_line_tells_people_and_machines_why(start: str, tmp_path: Path) -> None:
    classifier = classifier_of("concat", start, sparse=True, memory=True)
    classifier.save(tmp_path / "model")
    best = classifier.predict([TEXT], k=2)[0]
    told = json.loads(command("predict", tmp_path / "model", TEXT, "--k", "2", "--explain", "--json").out)
    for said, label in zip(told["labels"], best, strict=True):
        expected = classifier.explain(TEXT, label.key).to_dict()
        assert said["explanation"].keys() == expected.keys() and "probability" not in expected
        assert [one["name"] for one in said["explanation"]["terms"]] == [one["name"] for one in expected["terms"]]
        assert [one["text"] for one in said["explanation"]["neighbours"]] == [
            one["text"] for one in expected["neighbours"]
        ]
        assert said["explanation"]["score"] == pytest.approx(said["score"])
    shown = command("predict", tmp_path / "model", TEXT, "--explain").out
    for what in ("score: dual encoder: static", "words (occlusion): ", "n-grams: '", 'like: "', "training texts +"):
        assert what in shown
    outcome = command("predict", tmp_path / "model", "--explain", "--input", "x.txt", "--output", "y.jsonl")
    assert outcome.code == 2 and "--explain goes with TEXT" in outcome.err


def test_a_ranker_without_texts_shows_none_and_one_with_too_few_is_refused(start: str, tmp_path: Path) -> None:
    classifier = classifier_of("static", start, memory=True)
    ranker = classifier.ranker
    assert ranker is not None and ranker.memory is not None
    for texts, name in ((None, "without"), (Texts.of(TRAIN[1:]), "fewer")):
        replace(ranker, memory=replace(ranker.memory, texts=texts)).save(tmp_path / name)
    silent = Ranker.load(tmp_path / "without")
    other = Classifier(classifier.towers, LabelCatalogue(KEYS, LABELS), classifier.vectors, ranker=silent)
    shown = [near for key in KEYS[:-1] for near in other.explain(TEXT, key).neighbours]
    assert shown and all(near.text is None for near in shown)
    with pytest.raises(DamagedModel, match="5 texts are kept of 6"):
        Ranker.load(tmp_path / "fewer")


@pytest.mark.parametrize("ranked", [False, True])
def test_what_corrections_say_is_a_term_of_its_own(start: str, ranked: bool) -> None:
    classifier = classifier_of("static", start, sparse=ranked, memory=ranked)
    best, *others, last = [label.key for label in classifier.predict([TEXT], k=len(KEYS))[0]]
    untouched = adds_up(classifier.explain(TEXT, others[0]))
    assert classifier.learn([TEXT], [[last]], [[best]]) == 1
    assert (
        adds_up(classifier.explain(TEXT, last))["corrections"]
        > 0
        > adds_up(classifier.explain(TEXT, best))["corrections"]
    )
    assert adds_up(classifier.explain(TEXT, others[0])) == pytest.approx(untouched)
