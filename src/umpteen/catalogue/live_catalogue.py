"""Labels, their vectors and their versions together: every change is on disk before it counts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from umpteen.catalogue.changes import Change, Step, Version, VersionSummary, steps_of
from umpteen.catalogue.differences import steps_between
from umpteen.catalogue.journal import Journal
from umpteen.catalogue.live import LiveLabels
from umpteen.catalogue.vectors import Rows, VectorHistory
from umpteen.errors import BadInput, DamagedModel
from umpteen.retrieval.exact import require_finite

Encode = Callable[[list[str]], Tensor]
Encoded = WeakKeyDictionary["LiveCatalogue", dict[str, Tensor]]  # by catalogue, as each model has vectors of its own

_kept: ContextVar[Encoded | None] = ContextVar("kept", default=None)  # None: nobody will try again


@contextmanager
def keeping(encoded: Encoded) -> Iterator[None]:
    """What a change in here encodes is kept, so that a second try after `Locked` encodes nothing again."""
    before = _kept.set(encoded)
    try:
        yield
    finally:
        _kept.reset(before)


class LiveCatalogue:
    """The labels of one model; without a journal they change in memory only."""

    def __init__(self, labels: LiveLabels, vectors: Tensor, journal: Journal | None = None) -> None:
        self.start = labels  # what the model was written with
        self.labels = labels
        self.vectors = VectorHistory(vectors)
        self.versions: list[Version] = []
        self.journal = journal
        self.last_change: VersionSummary | None = None  # of those made here, not by other processes
        self._digest: str | None = None  # of the newest version's file
        self.refresh()

    def is_behind(self) -> bool:
        """Whether another process has written a version that is not taken in yet: one look at the disk."""
        return self.journal is not None and self.journal.has(self.labels.version + 1)

    def refresh(self) -> None:
        """Takes in what other processes have written, all of it or nothing."""
        before = self.labels.version
        read = [] if self.journal is None else list(self.journal.read(before, self._digest))
        if self.journal is not None and read:
            try:
                self._take_in([(version, vectors) for version, vectors, _ in read])
            except (ValueError, TypeError, BadInput) as error:
                raise DamagedModel(f"{self.journal.folder}: is not a history of these labels: {error}") from error
            self._digest = read[-1].digest

    def since(self, version: int) -> tuple[Rows, Rows]:
        """What an index of this version has to hear of: rows with a new vector, or back again; rows that are gone."""
        steps = [step for later in self.versions if later.number > version for step in later.steps]
        rows = np.array([self.labels.find(key) for key in dict.fromkeys(step.key for step in steps)], dtype=np.int64)
        active = self.labels.active[rows]
        return rows[active], rows[~active]

    def change(self, changes: Sequence[Change], encode: Encode, note: str = "") -> None:
        """One new version with all of these changes, or none if they change nothing."""
        kept = _kept.get()
        vectors: dict[str, Tensor] = {} if kept is None else kept.setdefault(self, {})

        def encoded(steps: Sequence[Step]) -> Tensor | None:
            texts = [str(step.text) for step in steps if self._brings_vector(step)]
            new = list(dict.fromkeys(text for text in texts if text not in vectors))
            vectors.update(zip(new, encode(new), strict=True) if new else ())
            return torch.stack([vectors[text] for text in texts]) if texts else None

        encoded(steps_of(changes, self.labels))  # before anybody has to wait for the lock
        with self._locked():
            self.refresh()
            steps = steps_of(changes, self.labels)
            self._append(steps, encoded(steps), note)

    def undo(self, to_version: int | None = None, note: str = "") -> None:
        """A new version in which all labels are as they were in an older one, by default the one before."""
        with self._locked():
            self.refresh()
            if to_version is None and not self.versions:
                raise BadInput("there is nothing to undo: no label has changed since the model was written")
            target = self.labels.version - 1 if to_version is None else to_version
            steps = steps_between(self.labels, self.at(target), self._touched(target))
            rows = [self.labels.find(step.key) for step in steps if self._brings_vector(step)]
            vectors = self.vectors.of(np.array(rows, dtype=np.int64), target) if rows else None
            self._append(steps, vectors, note or f"back to version {target}")

    def at(self, version: int) -> LiveLabels:
        """The labels of this or an older version."""
        first, last = self.start.version, self.labels.version
        if not first <= version <= last:
            raise BadInput(f"there is no version {version}; there are {first} to {last}")
        return self.start.after([older for older in self.versions if older.number <= version])

    def between(self, one: int, other: int) -> tuple[Step, ...]:
        """What turns the labels of one version into those of another."""
        return steps_between(self.at(one), self.at(other), self._touched(min(one, other)))

    def history(self) -> list[VersionSummary]:
        """What happened since the model was written, oldest first."""
        return [version.summary() for version in self.versions]

    def _touched(self, version: int) -> dict[str, None]:
        return dict.fromkeys(step.key for later in self.versions if later.number > version for step in later.steps)

    def _brings_vector(self, step: Step) -> bool:
        """Whether a step's text is encoded: a label that takes back its first text takes back its first vector."""
        if step.text is None:
            return False
        row = self.start.first.find(step.key)
        return row is None or not self.start.is_first_text(row, step.text)

    def _append(self, steps: tuple[Step, ...], vectors: Tensor | None, note: str) -> None:
        self.last_change = None
        if not steps:
            return
        if vectors is not None:
            require_finite("label", vectors)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        version = Version(self.labels.version + 1, time, note, steps)
        if self.journal is not None:
            self._digest = self.journal.append(version, vectors, self._digest)
        self._take_in([(version, vectors)])
        self.last_change = version.summary()

    def _take_in(self, read: Sequence[tuple[Version, Tensor | None]]) -> None:
        """The versions are part of the labels from here on; nothing is changed if they do not fit."""
        labels = self.labels.after([version for version, _ in read])
        given: list[tuple[int, list[int | None], Tensor]] = []
        for version, vectors in read:
            found = torch.empty(0, self.vectors.first.shape[1]) if vectors is None else vectors
            require_finite("label", found)
            new = [labels.find(step.key) for step in version.steps if self._brings_vector(step)]
            if tuple(found.shape) != (len(new), self.vectors.first.shape[1]):
                raise ValueError(
                    f"version {version.number} needs {len(new)} vectors, not of shape {tuple(found.shape)}"
                )
            given.append((version.number, new, found))
            back = [labels.find(step.key) for step in version.steps if step.text and not self._brings_vector(step)]
            given.append((version.number, back, self.vectors.first[back].float() if back else found[:0]))
        for number, rows, found in given:
            self.vectors.give(number, np.array(rows, dtype=np.int64), found)
        self.versions += [version for version, _ in read]
        self.labels = labels

    def _locked(self) -> AbstractContextManager[None]:
        return nullcontext() if self.journal is None else self.journal.locked()
