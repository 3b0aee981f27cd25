"""Labels, their vectors and their versions together: every change is in the store before it counts."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from sqlite3 import Connection

import numpy as np
import torch
from torch import Tensor

from umpteen.errors import BadInput, DamagedModel
from umpteen.model.changes import Change, Step, Version, VersionSummary, steps_of
from umpteen.model.live_labels import LiveLabels
from umpteen.model.store import PATIENCE, Recorded, Replaced, Store, append_version, digest_of, rows_at
from umpteen.search.index import LiveVectors, Rows, require_finite

Encode = Callable[[list[str]], Tensor]


class Encoded:
    """Vectors of texts, kept by who may have to try a change again."""

    def __init__(self) -> None:
        self._vectors: dict[str, Tensor] = {}
        self._of: LiveCatalogue | None = None

    def of(self, catalogue: "LiveCatalogue") -> dict[str, Tensor]:
        """Those of this model; another one has others."""
        if self._of is not catalogue:
            self._of, self._vectors = catalogue, {}
        return self._vectors


class LiveCatalogue:
    """The labels of one model; without a store of its own they change in memory only."""

    def __init__(self, labels: LiveLabels, base: Tensor, store: Store | None = None) -> None:
        self.start = labels  # what the model was written with
        self.labels = labels
        self.vectors = LiveVectors(base, labels.active)
        self.versions: list[Version] = []
        self.store = Store.create(None, "", labels.version) if store is None else store
        self.last_change: VersionSummary | None = None  # of those made here, not by other processes
        self._digest: str | None = None  # of the newest version
        self._all: tuple[int, Tensor] | None = None  # of which version
        self._retired: dict[int, Tensor] = {}  # by row: the vectors that labels had to the end

    @property
    def base(self) -> Tensor:
        """The vectors that the model was written with."""  # [L, d]
        return self.vectors.base

    def take_in(self, connection: Connection) -> bool:
        """What other processes have changed, all of it or nothing; `Replaced` if these labels are not its beginning."""
        digest = digest_of(connection, self.labels.version)
        if digest is None or digest != (self._digest or digest):
            raise Replaced
        self._digest = digest
        read = list(self.store.versions(connection, self.labels.version))
        if not read:
            return False
        try:
            self._follow(read)
        except (ValueError, TypeError, LookupError, ArithmeticError, BadInput) as error:
            raise DamagedModel(f"{self.store.path}: is not a history of these labels: {error}") from error
        return True

    def since(self, version: int) -> tuple[Rows, Rows]:
        """What an index of this version has to hear of: rows with a new vector, or back again; rows that are gone."""
        rows = np.array([self.labels.find(key) for key in self._touched(version)], dtype=np.int64)
        active = self.labels.active[rows]
        return rows[active], rows[~active]

    def vectors_at(self, version: int) -> LiveVectors:
        """The vectors of this or an older version."""
        if version == self.labels.version:
            return self.vectors
        self._require(version)
        start = LiveVectors(self.base, self.start.active)
        with self.store.reading() as connection:
            then = list(rows_at(connection, version))
        self._require_rows(row for row, *_ in then)
        return _changed(
            start, [(row, None if text is None else self._vector(row, vector)) for row, text, vector in then]
        )

    def all_vectors(self) -> Tensor:
        """The vectors of all rows, retired ones included: the base itself while no label has changed."""  # [rows, d]
        if not self.versions:
            return self.base
        if self._all is None or self._all[0] != self.labels.version:
            everything = torch.zeros(len(self.labels), self.base.shape[1])
            everything[: len(self.base)] = self.base
            everything[torch.from_numpy(self.vectors.changed)] = self.vectors.vectors
            for row, vector in self._retired.items():
                everything[row] = vector
            self._all = self.labels.version, everything
        return self._all[1]

    def change(
        self,
        changes: Sequence[Change],
        encode: Encode,
        note: str = "",
        *,
        patience: float = PATIENCE,
        encoded: Encoded | None = None,
    ) -> None:
        """One new version with all of these changes, or none if they change nothing; see `Locked`."""
        known = (encoded or Encoded()).of(self)

        def vectors_of(steps: Sequence[Step]) -> list[Tensor | None]:
            texts = [step.text if self._brings_vector(step) else None for step in steps]
            new = list(dict.fromkeys(text for text in texts if text is not None and text not in known))
            known.update(zip(new, encode(new), strict=True) if new else ())
            return [None if text is None else known[text] for text in texts]

        vectors_of(steps_of(changes, self.labels))  # before anybody has to wait for this change
        with self.store.changing(patience) as connection:
            self.take_in(connection)
            steps = steps_of(changes, self.labels)
            made = self._append(connection, steps, vectors_of(steps), note)
        self._count(made)

    def undo(self, to_version: int | None = None, note: str = "", *, patience: float = PATIENCE) -> None:
        """A new version in which all labels are as they were in an older one, by default the one before."""
        with self.store.changing(patience) as connection:
            self.take_in(connection)
            if to_version is None and not self.versions:
                raise BadInput("there is nothing to undo: no label has changed since the model was written")
            target = self.labels.version - 1 if to_version is None else to_version
            steps = self.between(self.labels.version, target)
            then = {row: vector for row, _, vector in rows_at(connection, target)}
            self._require_rows(then)
            rows = [self.labels.find(step.key) for step in steps]
            vectors = [
                self._vector(row, then.get(row)) if row is not None and self._brings_vector(step) else None
                for step, row in zip(steps, rows, strict=True)
            ]
            made = self._append(connection, steps, vectors, note or f"back to version {target}")
        self._count(made)

    def at(self, version: int) -> LiveLabels:
        """The labels of this or an older version."""
        self._require(version)
        return self.start.after([older for older in self.versions if older.number <= version])

    def between(self, one: int, other: int) -> tuple[Step, ...]:
        """What turns the labels of one version into those of another."""
        return _steps_between(self.at(one), self.at(other), self._touched(min(one, other)))

    def renamed_since(self, version: int) -> Rows:
        """Rows that were there at this version, and have another text now."""
        if version == self.start.version:
            return self.labels.changed()
        then = self.at(version)
        rows = {self.labels.find(key) for key in self._touched(version)}
        return np.array(
            sorted(
                row for row in rows if row is not None and row < len(then) and self.labels.texts[row] != then.texts[row]
            ),
            dtype=np.int64,
        )

    def history(self) -> list[VersionSummary]:
        """What happened since the model was written, oldest first."""
        return [version.summary() for version in self.versions]

    def _require_rows(self, rows: Iterable[int]) -> None:
        for row in rows:
            if not 0 <= row < len(self.labels):
                raise DamagedModel(
                    f"{self.store.path}: speaks of row {row} of {len(self.labels):,}; copy the model again"
                )

    def _require(self, version: int) -> None:
        first, last = self.start.version, self.labels.version
        if not first <= version <= last:
            raise BadInput(f"there is no version {version}; there are {first} to {last}")

    def _touched(self, version: int) -> dict[str, None]:
        return dict.fromkeys(step.key for later in self.versions if later.number > version for step in later.steps)

    def _brings_vector(self, step: Step) -> bool:
        """Whether a step's text is encoded: a label that takes back its first text takes back its first vector."""
        if step.text is None:
            return False
        row = self.start.first.find(step.key)
        return row is None or not self.start.is_first_text(row, step.text)

    def _append(
        self, connection: Connection, steps: tuple[Step, ...], vectors: Sequence[Tensor | None], note: str
    ) -> Recorded | None:
        if not steps:
            return None
        for vector in vectors:
            if vector is not None:
                require_finite("label", vector[None])
        stored = [None if vector is None else vector.float().contiguous().numpy().tobytes() for vector in vectors]
        time = datetime.now(UTC).isoformat(timespec="seconds")
        version = Version(self.labels.version + 1, time, note, steps)
        labels = self.labels.after([version])
        rows = [row for step in steps if (row := labels.find(step.key)) is not None]
        return Recorded(version, stored, append_version(connection, version, rows, stored, self._digest or ""))

    def _count(self, made: Recorded | None) -> None:
        """A change that is on disk by now."""
        if made is not None:
            self._follow([made])
        self.last_change = made and made.version.summary()

    def _follow(self, read: Sequence[Recorded]) -> None:
        """The versions are part of the labels from here on; nothing is changed if they do not fit."""
        labels = self.labels.after([recorded.version for recorded in read])
        latest: dict[int, Tensor | None] = {}
        retired = self._retired.copy()
        for recorded in read:
            for step, vector in zip(recorded.version.steps, recorded.vectors, strict=True):
                row = labels.find(step.key)
                if row is None or (vector is not None) != self._brings_vector(step):
                    raise ValueError(f"version {recorded.version.number} and its vectors do not fit")
                if step.text is None:
                    retired[row] = self._last(row, latest)
                else:
                    retired.pop(row, None)
                latest[row] = None if step.text is None else self._vector(row, vector)
        self.vectors = _changed(self.vectors, latest.items())
        self._retired = retired
        self.versions += [recorded.version for recorded in read]
        self.labels = labels
        self._digest = read[-1].digest

    def _last(self, row: int, latest: dict[int, Tensor | None]) -> Tensor:
        """The vector of a label that is there, and may have come or changed in the versions being followed."""
        found = latest.get(row)
        return self.vectors.of(np.array([row]))[0] if found is None else found

    def _vector(self, row: int, stored: bytes | None) -> Tensor:
        if stored is None:
            return self.base[row].float()
        if len(stored) != 4 * self.base.shape[1]:
            raise ValueError(f"the vector of row {row} has {len(stored)} bytes")
        return torch.from_numpy(np.frombuffer(stored, dtype=np.float32).copy())


def _changed(vectors: LiveVectors, rows: Iterable[tuple[int, Tensor | None]]) -> LiveVectors:
    """These rows have these vectors from now on; rows without one are gone."""
    found = list(rows)
    there = [(row, vector) for row, vector in found if vector is not None]
    gone = [row for row, vector in found if vector is None]
    if there:
        new = torch.stack([vector for _, vector in there])
        require_finite("label", new)
        vectors = vectors.with_rows(np.array([row for row, _ in there], dtype=np.int64), new.numpy())
    return vectors.without(np.array(gone, dtype=np.int64)) if gone else vectors


def _steps_between(now: LiveLabels, then: LiveLabels, keys: Iterable[str]) -> tuple[Step, ...]:
    """What turns `now` into `then`, two versions of the same labels that differ in these keys at most."""
    steps = []
    for key in keys:
        before, after = now.text_of(key), then.text_of(key)
        if after is None:
            if before is not None:
                steps.append(Step("retire", key, None))
        elif before is None:
            steps.append(Step("add" if now.find(key) is None else "revive", key, after))
        elif before != after:
            steps.append(Step("rename", key, after))
    return tuple(steps)
