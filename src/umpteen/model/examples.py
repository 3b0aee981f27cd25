"""Corrected texts of a model: what people said is right and wrong of them, recorded in its database, lesson by lesson.

A lesson is what one call taught, or that it undoes an earlier one; it is one transaction, and nothing is ever altered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING

import numpy as np
import scipy

from umpteen.errors import BadInput, DamagedModel
from umpteen.model.catalogue import Encode, LiveCatalogue
from umpteen.model.changes import MOST_KEYS, Example, Lesson, Store, check_characters, lessons_of
from umpteen.model.folder import ModelFolder, at_one_moment
from umpteen.model.labels import LiveLabels
from umpteen.search.ranking import of_length_1

if TYPE_CHECKING:
    from umpteen.rerank.memory import Corrections

MOST_EXAMPLES = 100_000  # of one model: all of them are compared with every text
_STANDING = "SELECT count(*) FROM examples WHERE lesson NOT IN (SELECT undoes FROM lessons WHERE undoes IS NOT NULL)"


class LiveExamples:
    """The examples of one model as they are now."""

    def __init__(self, store: Store, dimension: int) -> None:
        self.store = store
        self.lessons = lessons_of(store)
        self._dimension = dimension
        self._corrections: tuple[LiveLabels, int, Corrections | None] | None = None  # for which labels and lessons

    def standing(self) -> list[Lesson]:
        """The lessons that have examples and were not undone, oldest first."""
        undone = {lesson.undoes for lesson in self.lessons}
        return [lesson for lesson in self.lessons if lesson.items and lesson.number not in undone]

    def all(self) -> list[Example]:
        """Oldest first."""
        return [one._replace(time=lesson.time, note=lesson.note) for lesson in self.standing() for one in lesson.items]

    def by_text(self) -> dict[str, tuple[dict[str, bool], bytes]]:
        """Whether a key is right, by text: of the same text and key, what was said last counts; and the vector."""
        found: dict[str, tuple[dict[str, bool], bytes]] = {}
        for lesson in self.standing():
            for example, vector in zip(lesson.items, lesson.vectors, strict=True):
                said = found.get(example.text, ({}, b""))[0]
                said |= dict.fromkeys(example.labels, True) | dict.fromkeys(example.wrong, False)
                found[example.text] = said, vector or b""
        return found

    def corrections(self, labels: LiveLabels) -> Corrections | None:
        """What votes for and against these labels; keys that are none of them, or are retired, do not count."""
        known = self._corrections
        if known is None or known[0] is not labels or known[1] != len(self.lessons):
            known = self._corrections = labels, len(self.lessons), self._of(labels)
        return known[2]

    def _of(self, labels: LiveLabels) -> Corrections | None:
        texts = list(self.by_text().values())
        rows = {key: labels.find(key) for key in {key for said, _ in texts for key in said}}
        active = {key: row for key, row in rows.items() if row is not None and labels.active[row]}
        every = ((number, *one) for number, (keys, _) in enumerate(texts) for one in keys.items())
        said = [(number, active[key], 1 if right else -1) for number, key, right in every if key in active]
        if not said:
            return None
        from umpteen.rerank.memory import Corrections

        text, row, vote = np.array(said, dtype=np.int64).T
        vectors = np.frombuffer(b"".join(vector for _, vector in texts), dtype=np.float16)
        matrix = scipy.sparse.csr_array((vote.astype(np.float32), (text, row)), shape=(len(texts), len(labels)))
        return Corrections.of(vectors.reshape(len(texts), -1), matrix)

    def take_in(self, connection: Connection) -> bool:
        """What other processes have recorded; `Replaced` if these lessons are not its beginning."""
        path = self.store.path
        if connection.execute(_STANDING).fetchone()[0] > MOST_EXAMPLES:
            raise DamagedModel(f"{path}: holds more than {MOST_EXAMPLES:,} examples; copy the model again")
        read = self.lessons.unread(connection)
        for lesson in read:
            vectors = [vector or b"" for vector in lesson.vectors]
            fits = all(len(vector) == 2 * self._dimension for vector in vectors)
            if not fits or not np.isfinite(np.frombuffer(b"".join(vectors), np.float16)).all():
                raise DamagedModel(f"{path}: lesson {lesson.number} has vectors of another model; copy the model again")
        self.lessons += read
        return bool(read)

    def learn(self, given: list[Example], catalogue: LiveCatalogue, encode: Encode, note: str, patience: float) -> int:
        """One new lesson of these examples, all or none of them; how many they are."""
        for place, example in enumerate(given):
            _check(example, place)
        texts = [example.text for example in given]
        with suppress(BadInput):  # a label that it does not know may have come by the time it counts
            _check_keys(given, catalogue.labels)
            encode(texts)  # before anybody has to wait
        with self.store.changing(patience) as connection:
            catalogue.take_in(connection)
            self.take_in(connection)
            _check_keys(given, catalogue.labels)
            if len(self.all()) + len(given) > MOST_EXAMPLES:
                advice = "`umpteen fit DATA --from MODEL` makes a model that was trained with those that are there"
                raise BadInput(f"a model has at most {MOST_EXAMPLES:,} examples; {advice}")
            vectors = [of_length_1(vector[None]).astype(np.float16).tobytes() for vector in encode(texts)]
            made = [self.lessons.record(connection, _rows(given), vectors, note, None)] if given else []
        self.lessons += made
        return len(given)

    def undo(self, patience: float) -> int:
        """The last lesson that counts, counts no more; how many examples it had."""
        with self.store.changing(patience) as connection:
            self.take_in(connection)
            if not self.standing():
                raise BadInput("there is nothing to undo: the model has no examples", code="nothing_to_undo")
            last = self.standing()[-1]
            made = self.lessons.record(connection, (), (), "", last.number)
        self.lessons.append(made)
        return len(last.items)

    def copy(self, connection: Connection, store: Store) -> None:
        """Records in the database of another model, which has none, the lessons that count."""
        copied = lessons_of(store)
        for lesson in self.standing():
            rows = _rows(lesson.items)
            copied.append(copied.record(connection, rows, lesson.vectors, lesson.note, None, time=lesson.time))


def _rows(examples: Sequence[Example]) -> list[tuple[str, str, str]]:
    return [(one.text, json.dumps(one.labels), json.dumps(one.wrong)) for one in examples]


def open_examples(path: Path) -> LiveExamples:
    """The examples of a model folder as they are now, without the rest of the model."""

    def read(folder: ModelFolder, connection: Connection) -> LiveExamples:
        examples = LiveExamples(folder.store, int(folder.manifest["settings"]["dimension"]))
        examples.take_in(connection)
        return examples

    return at_one_moment(path, read)


def _check(example: Example, place: int) -> None:
    what = f"example {place + 1:,}"
    check_characters(f"the text of {what}", example.text)
    if not example.text.strip():
        raise BadInput(f"the text of {what} is empty; give it words, or leave the example out")
    keys = (*example.labels, *example.wrong)
    if not 1 <= len(keys) <= MOST_KEYS:
        reason = f"{what} names {len(keys):,} labels; name 1 to {MOST_KEYS} that are right or wrong"
        raise BadInput(reason, code="bad_input" if keys else "contradiction", place=place)
    for key in keys:
        if not isinstance(key, str):
            raise BadInput(f"{what}: label key {key!r} is a {type(key).__name__}, not a string")
        if keys.count(key) > 1:
            reason = f"{what} names the label {key!r} twice; it is right or wrong"
            raise BadInput(reason, code="contradiction", place=place)


def _check_keys(given: Sequence[Example], labels: LiveLabels) -> None:
    for place, example in enumerate(given):
        for key in (*example.labels, *example.wrong):
            if key not in labels:
                raise BadInput(f"example {place + 1:,}: {labels.unknown(key)}", code="unknown_key", place=place)
