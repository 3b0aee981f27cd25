"""Texts as tf-idf of n-grams: learned from training texts, kept as plain lists and numbers, so loading runs no code.

Each kind of n-gram, of words and of characters, has a vocabulary of its own; a text's features have length 1.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from umpteen.errors import BadInput
from umpteen.ranker.settings import NGrams, RankerSettings

VOCABULARY = "vocabulary.json"
_WORD = r"(?u)\b\w+\b"


class TextFeatures:
    """Turns texts into rows of a sparse matrix."""

    def __init__(self, vectorizers: dict[str, TfidfVectorizer]) -> None:
        self._vectorizers = vectorizers  # by kind: words, characters

    @classmethod
    def fit(cls, texts: Iterable[str], settings: RankerSettings) -> "TextFeatures":
        """The most frequent n-grams of these texts, with their inverse document frequencies."""
        vectorizers = {}
        for kind, lengths in _kinds(settings).items():
            vectorizer = _vectorizer(kind, lengths, min_df=settings.min_texts, max_features=settings.max_features)
            try:
                vectorizers[kind] = vectorizer.fit(texts)
            except ValueError as problem:
                raise BadInput(
                    f"no n-gram of {kind} is left of the training texts ({problem}); lower min_texts, "
                    f"which is {settings.min_texts:,}, or look at the texts with `umpteen data describe`"
                ) from None
        return cls(vectorizers)

    def __len__(self) -> int:
        return sum(len(vectorizer.vocabulary_) for vectorizer in self._vectorizers.values())

    def transform(self, texts: Sequence[str]) -> csr_array:
        """One row a text; a text without a known n-gram is a row of zeros."""
        parts = [csr_array(vectorizer.transform(texts)) for vectorizer in self._vectorizers.values()]
        if len(parts) == 1:
            return parts[0]
        both: csr_array = normalize(csr_array(hstack(parts, format="csr")), copy=False)
        return both

    def idf(self) -> NDArray[np.float32]:
        """Of all n-grams, in the order of the columns."""
        return np.concatenate([vectorizer.idf_ for vectorizer in self._vectorizers.values()]).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Writes the n-grams in the order of their columns; `idf` is kept by whoever keeps arrays."""
        content = {
            kind: {"lengths": vectorizer.ngram_range, "ngrams": vectorizer.get_feature_names_out().tolist()}
            for kind, vectorizer in self._vectorizers.items()
        }
        (folder / VOCABULARY).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, idf: NDArray[np.float32]) -> "TextFeatures":
        """What `save` wrote."""
        content = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        vectorizers, start = {}, 0
        for kind, part in content.items():
            ngrams = part["ngrams"]
            vectorizer = _vectorizer(kind, tuple(part["lengths"]), vocabulary=ngrams)
            vectorizer.idf_ = idf[start : start + len(ngrams)]
            vectorizers[kind] = vectorizer
            start += len(ngrams)
        if start != len(idf):
            raise BadInput(f"{folder / VOCABULARY} has {start:,} n-grams, but {len(idf):,} have a frequency")
        return cls(vectorizers)


def _kinds(settings: RankerSettings) -> dict[str, NGrams]:
    kinds = {"words": settings.words}
    return kinds if settings.characters is None else kinds | {"characters": settings.characters}


def _vectorizer(kind: str, lengths: NGrams, **settings: Any) -> TfidfVectorizer:
    how = {"words": {"analyzer": "word", "token_pattern": _WORD}, "characters": {"analyzer": "char_wb"}}[kind]
    return TfidfVectorizer(ngram_range=lengths, sublinear_tf=True, dtype=np.float32, **how, **settings)
