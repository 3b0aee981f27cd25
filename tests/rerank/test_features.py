"""Features are learned from training texts alone and survive their folder to the bit."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from umpteen.errors import BadConfig, BadInput
from umpteen.rerank.features import RankerSettings, TextFeatures

TEXTS = ["a small dog", "the dog of the house", "Fischerei in Flüssen", "tax law, tax law", "図書館 network"]
BOTH = RankerSettings(words=(1, 2), characters=(2, 3))


@pytest.mark.parametrize("settings", [RankerSettings(), BOTH])
def test_saved_features_give_the_same_numbers(tmp_path: Path, settings: RankerSettings) -> None:
    features = TextFeatures.fit(TEXTS, settings)
    features.save(tmp_path)
    loaded = TextFeatures.load(tmp_path, features.idf)
    texts = [*TEXTS, "another dog", "unheard-of words: qqq"]
    assert len(loaded) == len(features)
    assert (loaded.transform(texts) != features.transform(texts)).nnz == 0


@pytest.mark.parametrize(("words", "characters"), [((1, 2), None), ((1, 1), (2, 4)), ((2, 3), (1, 1))])
def test_features_are_those_of_scikit_learn(words: tuple[int, int], characters: tuple[int, int] | None) -> None:
    odd = ["", "x", "?!", "Ab  c\tdef\u3000 G", "ÄÖ-ß İstanbul", "a a a b b a", "a_b 12 3.4"]
    known, asked = [*TEXTS, *odd], [*odd, *TEXTS, "another DOG, unheard of"]
    how = [(words, {"analyzer": "word", "token_pattern": r"(?u)\b\w+\b"}), (characters, {"analyzer": "char_wb"})]
    parts = [
        TfidfVectorizer(ngram_range=lengths, sublinear_tf=True, dtype=np.float32, **own).fit(known).transform(asked)
        for lengths, own in how
        if lengths
    ]
    expected = normalize(hstack(parts, format="csr"))
    found = TextFeatures.fit(known, RankerSettings(words=words, characters=characters)).transform(asked)
    assert found.has_sorted_indices and found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-7)


def test_a_text_has_length_1_or_no_known_word() -> None:
    for settings in (RankerSettings(), BOTH):
        rows = TextFeatures.fit(TEXTS, settings).transform([*TEXTS, "?!"])
        lengths = np.sqrt(rows.multiply(rows).sum(1))
        np.testing.assert_allclose(lengths, [1] * len(TEXTS) + [0], atol=1e-6)


def test_words_of_one_letter_count_and_the_vocabulary_is_bounded() -> None:
    assert len(TextFeatures.fit(["x y", "x z"], RankerSettings(words=(1, 1)))) == 3
    assert len(TextFeatures.fit(["x y", "x z"], RankerSettings(words=(1, 1), min_texts=2))) == 1
    assert len(TextFeatures.fit(TEXTS, RankerSettings(max_features=4))) == 4


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no n-gram of words is left.*min_texts"):
        TextFeatures.fit(["?!", "…"], RankerSettings())
    with pytest.raises(BadInput, match="min_texts, which is 9"):
        TextFeatures.fit(TEXTS, RankerSettings(min_texts=9))


def test_an_unknown_or_impossible_setting_is_named() -> None:
    for given, told in (
        ({"costs": 1.0}, "did you mean cost"),
        ({"cost": 0}, "cost = 0"),
        ({"cost": "much"}, "cost = 'much'"),
        ({"words": [2, 1]}, "words"),
        ({"words": 2}, "words = 2"),
        ({"candidates": 1.5}, "whole number"),
        ({"candidates": True}, "candidates"),
    ):
        with pytest.raises(BadConfig, match=told):
            RankerSettings.of(given)
    settings = RankerSettings.of({"words": [1, 3], "characters": [3, 5], "cost": 2})
    assert settings == RankerSettings(words=(1, 3), characters=(3, 5), cost=2.0)
    assert RankerSettings.of(asdict(settings)) == settings
