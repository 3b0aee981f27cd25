"""Nouns, tags and definitions: what is to be generated stands in no prompt and in no text an encoder reads.

A query "lemmas: definition" is cut in two. Encoders and prompts get lemmas; a definition is only ever a target.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import LabelCatalogue
from umpteen.errors import BadInput
from umpteen.search.ranking import NO_LABEL

BETWEEN = ": "  # the lemmas and the definition


@dataclass(frozen=True)
class Nouns:
    """Some queries in their two halves; `split` is what encoders see of them: the lemmas and the labels."""

    split: Split
    definitions: list[str]

    def __len__(self) -> int:
        return len(self.definitions)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Nouns":
        return Nouns(self.split.take(np.asarray(rows)), [self.definitions[row] for row in rows])


@dataclass(frozen=True)
class Vocabulary:
    """All nouns of the experiment, and the labels that become their tags."""

    labels: LabelCatalogue  # as encoders see them
    tags: list[str]  # what stands for a label in a prompt: its first lemma
    train: Nouns
    validation: Nouns
    test: Nouns
    dropped: int  # training nouns whose definition is a held-out noun's, word for word
    cut_labels: int  # labels whose definition is the first clause of a held-out one; encoders see their lemmas alone

    def for_encoders(self, name: str, rows: Sequence[int] | NDArray[np.int64] | None = None) -> Dataset:
        """The lemmas with their labels: these rows of train (all, if left out), and validation to choose the epoch."""
        train = self.train if rows is None else self.train.take(rows)
        return Dataset.of(name, self.labels, train.split, self.validation.split)


def cut_in_two(text: str) -> tuple[str, str]:
    """The lemmas and the definition of a text."""
    lemmas, between, definition = text.partition(BETWEEN)
    if not between or not lemmas.strip() or not definition.strip():
        raise BadInput(
            f"generation needs query and label texts of the form 'noun: definition', and {text[:80]!r} is not one; "
            "run it on wordnet-nouns or a dataset like it"
        )
    return lemmas.strip(), definition.strip()


def read_vocabulary(dataset: Dataset, *, validation: int, test: int, seed: int) -> Vocabulary:
    """Cuts a dataset's texts in two and removes from train and labels whatever repeats a held-out definition.

    Validation comes out of train unless the dataset brings its own. At most so many nouns of validation and test stay;
    which ones is drawn by the seed.
    """
    if dataset.test is None:
        raise BadInput(f"{dataset.name} has no test split; generation is judged on texts that training never saw")
    dataset = dataset.with_validation(0.1, seed)
    assert dataset.validation is not None and dataset.test is not None
    rng = np.random.default_rng(seed)
    train = _nouns(_some(dataset.train, len(dataset.train), rng))
    chosen = _nouns(_some(dataset.validation, validation, rng))
    judged = _nouns(_some(dataset.test, test, rng))
    held_out = {_as_compared(text) for text in (*chosen.definitions, *judged.definitions)}
    fresh = [row for row, text in enumerate(train.definitions) if _as_compared(text) not in held_out]
    clauses = {_first_clause(text) for text in held_out}
    halves = [cut_in_two(text) for text in dataset.labels.texts]
    repeats = [_first_clause(_as_compared(definition)) in clauses for _, definition in halves]
    texts = [
        lemmas if repeat else f"{lemmas}{BETWEEN}{definition}"
        for (lemmas, definition), repeat in zip(halves, repeats, strict=True)
    ]
    return Vocabulary(
        labels=LabelCatalogue(list(dataset.labels.keys), texts),
        tags=[lemmas.partition(",")[0] for lemmas, _ in halves],
        train=train.take(fresh),
        validation=chosen,
        test=judged,
        dropped=len(train) - len(fresh),
        cut_labels=sum(repeats),
    )


def _some(split: Split, limit: int, rng: np.random.Generator) -> Split:
    """At most so many queries, in their order, of those that have a label."""
    labelled = np.flatnonzero(np.diff(split.relevance.without(split.filtered).matrix.indptr))
    if limit < len(labelled):
        labelled = np.sort(rng.choice(labelled, limit, replace=False))
    return split.take(labelled)


def _nouns(split: Split) -> Nouns:
    """The halves of a split's texts; a noun whose lemmas give its definition away is left out."""
    halves = [cut_in_two(text) for text in split.texts]
    kept = [row for row, (lemmas, definition) in enumerate(halves) if not gives_away(lemmas, definition)]
    rows = split.take(np.array(kept, dtype=np.int64))
    return Nouns(
        Split.of([halves[row][0] for row in kept], rows.relevance.without(rows.filtered), rows.filtered),
        [halves[row][1] for row in kept],
    )


def gives_away(shown: str, definition: str) -> bool:
    """Whether a text that is shown contains the whole definition or its first clause."""
    return _first_clause(_as_compared(definition)) in _as_compared(shown)


def true_labels(nouns: Nouns, counts: ArrayLike, most: int) -> list[list[int]]:
    """Each noun's own labels, those of the fewest training nouns first, since they say the most."""
    rarity = np.asarray(counts)
    rows = (nouns.split.relevance.of(query) for query in range(len(nouns)))
    return [row[np.argsort(rarity[row], kind="stable")][:most].tolist() for row in rows]


def prompts(nouns: Nouns, tags: Sequence[str], labels: Iterable[Sequence[int]] | None) -> Iterator[str]:
    """What the language model is given for each noun: its tags, if there are any, and its lemmas.

    A noun's own synset is never among its tags, nor is a tag that contains its definition.
    """
    for query, rows in enumerate(labels if labels is not None else [[]] * len(nouns)):
        own = set(nouns.split.filtered.of(query).tolist()) | {NO_LABEL}
        shown = dict.fromkeys(tags[row] for row in rows if row not in own)
        safe = [tag for tag in shown if not gives_away(tag, nouns.definitions[query])]
        start = f"Tags: {'; '.join(safe)}. " if safe else ""
        yield f"{start}Noun: {nouns.split.texts[query]}. Definition:"


def folds(count: int, parts: int, seed: int) -> list[NDArray[np.int64]]:
    """Rows 0 … count − 1 dealt out at random into parts of (nearly) equal size."""
    order = np.random.default_rng(seed).permutation(count)
    return [np.sort(order[part::parts]) for part in range(parts)]


def _as_compared(text: str) -> str:
    return " ".join(text.casefold().split())


def _first_clause(text: str) -> str:
    return text.partition(";")[0].strip()
