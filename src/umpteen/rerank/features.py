"""Texts as tf-idf of n-grams: learned from training texts, kept as plain lists and numbers, so loading runs no code.

Each kind of n-gram, of words and of characters, has a vocabulary of its own; a text's features have length 1.
scikit-learn is imported where it is used, and a stored vocabulary parsed with the first text: many who open a model
never get there.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from umpteen.errors import BadConfig, BadInput, DamagedModel

NGrams = tuple[int, int]  # the shortest and the longest


@dataclass(frozen=True)
class RankerSettings:
    """Frozen and checked; the defaults are those that did best on validation (docs/how-to/ranker.md)."""

    candidates: int = 100  # labels of a query that are looked at again
    words: NGrams = (1, 2)  # n-grams of words
    characters: NGrams | None = None  # n-grams of characters within words
    min_texts: int = 1  # an n-gram must occur in so many training texts
    max_features: int = 1_000_000  # the most frequent n-grams of each kind
    cost: float = 1.0  # of a training error, against short weights (liblinear's C)
    threshold: float = 0.05  # weights nearer to 0 are dropped
    tolerance: float = 0.01  # at which liblinear stops
    iterations: int = 100  # after which it stops anyway
    sparse: bool = True  # weights of n-grams for each label
    memory: bool = True  # votes of the nearest training texts
    keep_texts: bool = True  # these texts lie in the model folder, for explanations to show
    neighbours: int = 20  # that vote
    similarity: float = 0.05  # temperature of the softmax over similarities that weighs the votes

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in ("words", "characters"):
                is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_count, value))
                fits = value[0] <= value[1] if is_pair else value is None and name == "characters"
                rule = "two lengths, the shorter first, for instance [1, 2]"
            elif isinstance(field.default, bool):
                fits, rule = isinstance(value, bool), "true or false"
            elif isinstance(field.default, int):
                fits, rule = _is_count(value), f"a whole number, at least 1 and below {2**31:,}"
            else:
                is_number, open_ended = isinstance(value, int | float), name in ("cost", "tolerance", "similarity")
                fits = is_number and not isinstance(value, bool) and (value > 0 or (value == 0 and not open_ended))
                rule = "a number above 0" if open_ended else "a number, 0 or above"
            if not fits:
                raise BadConfig(f"{name} = {value!r}: must be {rule}")
        if not (self.sparse or self.memory):
            raise BadConfig("sparse and memory are both off; nothing is left to put labels in order by")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RankerSettings":
        """Settings as they come from JSON or from the command line: lists for pairs, every name checked."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(known)}"
                raise BadConfig(f"a ranker has no setting {name}; {hint}")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


VOCABULARY = "vocabulary.json"
_WORD = r"(?u)\b\w+\b"


class TextFeatures:
    """Turns texts into rows of a sparse matrix."""

    def __init__(self, count: int, vectorizers: Callable[[], dict[str, Any]]) -> None:
        self._count = count
        self._make: Callable[[], dict[str, Any]] | None = vectorizers

    @cached_property
    def _vectorizers(self) -> dict[str, Any]:
        """scikit-learn's TfidfVectorizers by kind: words, characters."""
        assert self._make is not None
        made = self._make()
        self._make = None  # it holds the stored vocabulary
        return made

    @classmethod
    def fit(cls, texts: Iterable[str], settings: RankerSettings) -> "TextFeatures":
        """The most frequent n-grams of these texts, with their inverse document frequencies."""
        vectorizers = {}
        kinds = {"words": settings.words, "characters": settings.characters} if settings.sparse else {}
        for kind, lengths in kinds.items():
            if lengths is None:
                continue
            vectorizer = _vectorizer(kind, lengths, min_df=settings.min_texts, max_features=settings.max_features)
            try:
                vectorizers[kind] = vectorizer.fit(texts)
            except ValueError as problem:
                raise BadInput(
                    f"no n-gram of {kind} is left of the training texts ({problem}); lower min_texts, "
                    f"which is {settings.min_texts:,}, or look at the texts with `umpteen data describe`"
                ) from None
        return cls(sum(len(vectorizer.vocabulary_) for vectorizer in vectorizers.values()), lambda: vectorizers)

    def __len__(self) -> int:
        return self._count

    def transform(self, texts: Sequence[str]) -> csr_array:
        """One row a text; a text without a known n-gram is a row of zeros."""
        parts = [csr_array(vectorizer.transform(texts)) for vectorizer in self._vectorizers.values()]
        if len(parts) == 1:
            return parts[0]
        from sklearn.preprocessing import normalize

        both: csr_array = normalize(csr_array(hstack(parts, format="csr")), copy=False)
        return both

    def ngrams(self, text: str) -> dict[int, str]:
        """The n-grams of a text that are known, by their columns."""
        found: dict[int, str] = {}
        start = 0
        for vectorizer in self._vectorizers.values():
            known = vectorizer.vocabulary_
            found |= {start + known[ngram]: ngram for ngram in vectorizer.build_analyzer()(text) if ngram in known}
            start += len(known)
        return found

    def idf(self) -> NDArray[np.float32]:
        """Of all n-grams, in the order of the columns."""
        return np.concatenate([np.empty(0), *(found.idf_ for found in self._vectorizers.values())]).astype(np.float32)

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
        path = folder / VOCABULARY
        stored = path.read_bytes()  # now: another model may stand in the folder's place when the first text comes
        return cls(len(idf), lambda: _stored_vectorizers(path, stored, idf))


def _stored_vectorizers(path: Path, stored: bytes, idf: NDArray[np.float32]) -> dict[str, Any]:
    vectorizers, start = {}, 0
    try:
        for kind, part in json.loads(stored).items():
            ngrams, (shortest, longest) = part["ngrams"], part["lengths"]
            columns = {ngram: column for column, ngram in enumerate(ngrams)}
            if len(columns) != len(ngrams) or not 1 <= shortest <= longest:
                raise ValueError(f"an n-gram stands twice, or the lengths {shortest} to {longest} are none")
            vectorizer = _vectorizer(kind, (int(shortest), int(longest)), vocabulary=columns)
            vectorizer.idf_ = idf[start : start + len(ngrams)]
            vectorizers[kind] = vectorizer
            start += len(ngrams)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedModel(f"{path}: is no list of n-grams ({error!r}); copy the model again") from error
    if start != len(idf):
        raise DamagedModel(f"{path}: has {start:,} n-grams, but {len(idf):,} have a frequency; copy the model again")
    return vectorizers


def _vectorizer(kind: str, lengths: NGrams, **settings: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    how = {"words": {"analyzer": "word", "token_pattern": _WORD}, "characters": {"analyzer": "char_wb"}}[kind]
    return TfidfVectorizer(ngram_range=lengths, sublinear_tf=True, dtype=np.float32, **how, **settings)
