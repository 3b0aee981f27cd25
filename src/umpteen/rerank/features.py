"""Texts as tf-idf of n-grams: learned from training texts, kept as plain lists and numbers, so loading runs no code.

Each kind of n-gram, of words and of characters, has a vocabulary of its own; a text's features have length 1.
A stored vocabulary is parsed with the first text: many who open a model never get there.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.errors import BadConfig, BadInput, DamagedModel, known

NGrams = tuple[int, int]  # the shortest and the longest
VOCABULARY = "vocabulary.json"
_WORD = re.compile(r"(?u)\b\w+\b")


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
    index_from: int = 100_000  # remembered texts from which on the nearest are found by an index

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
        for name in given:
            known(cls.__dataclass_fields__, name, f"a ranker has no setting {name}")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        return cls(**values)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


# scikit-learn learns the n-grams; what a text has of them is found as its analyzers "word" and "char_wb" would, without
# the second and a half that importing it takes.
def _of_words(lengths: NGrams, text: str) -> list[str]:
    words, sizes = _WORD.findall(text.lower()), range(lengths[0], lengths[1] + 1)
    return [" ".join(words[at : at + size]) for size in sizes for at in range(len(words) - size + 1)]


def _of_characters(lengths: NGrams, text: str) -> list[str]:
    found: list[str] = []
    for word in map(" {} ".format, text.lower().split()):
        for size in range(lengths[0], lengths[1] + 1):
            found += [word[at : at + size] for at in range(max(1, len(word) - size + 1))]
            if size >= len(word):  # it counts once, whatever else it is too short for
                break
    return found


_KINDS: dict[str, Callable[[NGrams, str], list[str]]] = {"words": _of_words, "characters": _of_characters}


class Vocabulary(NamedTuple):
    """The known n-grams of one kind."""

    kind: str
    lengths: NGrams
    columns: dict[str, int]  # rising

    def of(self, text: str) -> list[str]:
        """All n-grams of a text, known or not, each as often as it stands there."""
        return _KINDS[self.kind](self.lengths, text)


class TextFeatures:
    """Turns texts into rows of a sparse matrix."""

    def __init__(self, idf: NDArray[np.float32], vocabularies: Callable[[], list[Vocabulary]]) -> None:
        self.idf = idf  # of all n-grams, in the order of the columns
        self._make: Callable[[], list[Vocabulary]] | None = vocabularies

    @cached_property
    def _vocabularies(self) -> list[Vocabulary]:
        assert self._make is not None
        made = self._make()
        self._make = None  # it holds the stored vocabulary
        return made

    @classmethod
    def fit(cls, texts: Iterable[str], settings: RankerSettings) -> "TextFeatures":
        """The most frequent n-grams of these texts, with their inverse document frequencies."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        found: list[Vocabulary] = []
        idf = np.empty(0, np.float32)
        kinds = {"words": settings.words, "characters": settings.characters} if settings.sparse else {}
        for kind, lengths in kinds.items():
            if lengths is None:
                continue
            limits = {"min_df": settings.min_texts, "max_features": settings.max_features}
            try:
                learnt = TfidfVectorizer(analyzer=partial(_KINDS[kind], lengths), dtype=np.float32, **limits).fit(texts)
            except ValueError as problem:
                left = f"no n-gram of {kind} is left of the training texts ({problem}); lower min_texts"
                advice = f"which is {settings.min_texts:,}, or look at the texts with `umpteen data describe`"
                raise BadInput(f"{left}, {advice}") from None
            ngrams = learnt.get_feature_names_out().tolist()
            found.append(Vocabulary(kind, lengths, {ngram: at for at, ngram in enumerate(ngrams, len(idf))}))
            idf = np.concatenate([idf, learnt.idf_.astype(np.float32)])
        return cls(idf, lambda: found)

    def __len__(self) -> int:
        return len(self.idf)

    def transform(self, texts: Sequence[str]) -> csr_array:
        """One row a text, of length 1: (1 + log count) · idf, the kinds alike; of zeros if it has no known n-gram."""
        columns, counts, starts = array("i"), array("i"), array("i", [0])
        for text in texts:
            for vocabulary in self._vocabularies:
                found: Counter[Any] = Counter(map(vocabulary.columns.get, vocabulary.of(text)))
                del found[None]
                columns.extend(found)
                counts.extend(found.values())
                starts.append(len(columns))
        kinds = len(self._vocabularies)
        values = (1 + np.log(np.array(counts, np.float32))) * self.idf[np.array(columns, np.int32)]
        for step in sorted({1, kinds}):
            owner = np.repeat(np.arange(len(starts[::step]) - 1), np.diff(starts[::step]))
            values = (values / np.sqrt(np.bincount(owner, np.square(values)))[owner]).astype(np.float32)
        stored = values, np.array(columns, np.int32), np.array(starts[::kinds], np.int32)
        rows = csr_array(stored, shape=(len(texts), len(self)))
        rows.sort_indices()
        return rows

    def ngrams(self, text: str) -> dict[int, str]:
        """The n-grams of a text that are known, by their columns."""
        of = ((one.columns, ngram) for one in self._vocabularies for ngram in one.of(text))
        return {columns[ngram]: ngram for columns, ngram in of if ngram in columns}

    def save(self, folder: Path) -> None:
        """Writes the n-grams in the order of their columns; `idf` is kept by whoever keeps arrays."""
        content = {one.kind: {"lengths": one.lengths, "ngrams": list(one.columns)} for one in self._vocabularies}
        (folder / VOCABULARY).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, idf: NDArray[np.float32]) -> "TextFeatures":
        path = folder / VOCABULARY
        stored = path.read_bytes()  # now: another model may stand in the folder's place when the first text comes
        return cls(idf, lambda: _stored_vocabularies(path, stored, len(idf)))


def _stored_vocabularies(path: Path, stored: bytes, count: int) -> list[Vocabulary]:
    found, start = [], 0
    try:
        for kind, part in json.loads(stored).items():
            ngrams, (shortest, longest) = part["ngrams"], part["lengths"]
            columns = {ngram: column for column, ngram in enumerate(ngrams, start)}
            if len(columns) != len(ngrams) or not 1 <= shortest <= longest or kind not in _KINDS:
                raise ValueError(f"an n-gram stands twice, or the lengths {shortest} to {longest} of {kind} are none")
            found.append(Vocabulary(kind, (int(shortest), int(longest)), columns))
            start += len(ngrams)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedModel(f"{path}: is no list of n-grams ({error!r}); copy the model again") from error
    if start != count:
        raise DamagedModel(f"{path}: has {start:,} n-grams, but {count:,} have a frequency; copy the model again")
    return found
