"""Labels, their vectors and their versions together: every change is in the store before it counts."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from umpteen.encoders.encoder import Encoder, encode_texts
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel
from umpteen.files.progress import Advance
from umpteen.model.changes import (
    PATIENCE,
    Change,
    Recorded,
    Replaced,
    Step,
    Store,
    Version,
    VersionSummary,
    append_version,
    digest_of,
    steps_of,
    vectors_at,
)
from umpteen.model.folder import ModelFolder, Verified, at_one_moment
from umpteen.model.labels import LABELS, LiveLabels, read_labels
from umpteen.search.index import Indexed, LiveVectors, Rows

VECTORS = "vectors.safetensors"
Encode = Callable[[list[str]], Tensor]
Encoded = dict[tuple["LiveCatalogue", str], Tensor]  # by text, kept by who may have to try a change again


class LiveCatalogue:
    """The labels of one model; without a store of its own they change in memory only."""

    def __init__(self, labels: LiveLabels, base: Tensor, store: Store | None = None) -> None:
        self.start = labels  # what the model was written with
        self.labels = labels
        self.base = base  # [L, d], the vectors that the model was written with
        self.versions: list[Version] = []
        self.store = Store.create(None, "", labels.version) if store is None else store
        self.last_change: VersionSummary | None = None  # of those made here, not by other processes
        self._digest: str | None = None  # of the newest version
        self._later: dict[int, Tensor] = {}  # by row: vectors that have come since somebody asked for all
        self._vectors: tuple[LiveLabels, LiveVectors] | None = None  # of these labels

    @classmethod
    def read(cls, folder: ModelFolder, connection: Connection) -> "LiveCatalogue":
        """The labels of a model folder as they are now."""
        vectors = read_vectors(folder.trained)
        labels = read_labels(folder.trained, int(folder.manifest["settings"]["labels_version"]), len(vectors))
        catalogue = cls(labels, vectors, folder.store)
        catalogue.take_in(connection)
        return catalogue

    @property
    def vectors(self) -> LiveVectors:
        """As they are now; who only changes labels needs none."""
        known, vectors = self._vectors or (None, LiveVectors(self.base, self.start.active))
        if known is not self.labels:
            if self._later:
                rows = np.array(list(self._later), dtype=np.int64)
                vectors = vectors.with_rows(rows, torch.stack(list(self._later.values())))
            vectors = vectors.without(np.flatnonzero(~self.labels.active))
            self._vectors, self._later = (self.labels, vectors), {}
        return vectors

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

    def since(self, version: int) -> Rows:
        """The rows that an index of this version has to hear of, ascending: new, gone, back again or renamed ones."""
        return np.sort(np.array([self.labels.find(key) for key in self._touched(version)], dtype=np.int64))

    def indexed(self) -> Indexed:
        """The labels as they are now, for an index over them."""
        return Indexed(self.store.model, self.labels, self.vectors)

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
        known = {} if encoded is None else encoded

        def vectors_of(steps: Sequence[Step]) -> list[Tensor | None]:
            texts = [step.text if self._brings_vector(step) else None for step in steps]
            new = list(dict.fromkeys(text for text in texts if text is not None and (self, text) not in known))
            if new:
                known.update(((self, text), vector) for text, vector in zip(new, encode(new), strict=True))
            return [None if text is None else known[self, text] for text in texts]

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
            then = vectors_at(connection, target)
            vectors = [self._vector(step.key, then[step.key]) if self._brings_vector(step) else None for step in steps]
            made = self._append(connection, steps, vectors, note or f"back to version {target}")
        self._count(made)

    def at(self, version: int) -> LiveLabels:
        self._require(version)
        return self.start.after([older for older in self.versions if older.number <= version])

    def between(self, one: int, other: int) -> tuple[Step, ...]:
        """What turns the labels of one version into those of another."""
        now, then, steps = self.at(one), self.at(other), []
        for key in self._touched(min(one, other)):
            before, after = now.text_of(key), then.text_of(key)
            if after is None and before is not None:
                steps.append(Step("retire", key, None))
            elif after is not None and before is None:
                steps.append(Step("add" if now.find(key) is None else "revive", key, after))
            elif before != after:
                steps.append(Step("rename", key, after))
        return tuple(steps)

    def renamed_since(self, version: int) -> Rows:
        """Rows that were there at this version, and have another text now."""
        if version == self.start.version:
            return self.labels.changed()
        then = self.at(version)
        rows = sorted(row for key in self._touched(version) if (row := then.find(key)) is not None)
        return np.array([row for row in rows if self.labels.texts[row] != then.texts[row]], dtype=np.int64)

    def history(self) -> list[VersionSummary]:
        """What happened since the model was written, oldest first."""
        return [version.summary() for version in self.versions]

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
        for step, vector in zip(steps, vectors, strict=True):
            if vector is not None and not vector.isfinite().all():
                raise BadInput(
                    f"the vector of label {step.key!r} holds NaN or infinity, so the model's weights are no use; train "
                    "it again, with a lower optimizer.learning_rate"
                )
        stored = [None if vector is None else vector.float().contiguous().numpy().tobytes() for vector in vectors]
        time = datetime.now(UTC).isoformat(timespec="seconds")
        version = Version(self.labels.version + 1, time, note, steps)
        labels = self.labels.after([version])
        rows = [labels.find(step.key) for step in steps]
        return Recorded(version, stored, append_version(connection, version, rows, stored, self._digest or ""))

    def _count(self, made: Recorded | None) -> None:
        """A change that is on disk by now."""
        if made is not None:
            self._follow([made])
        self.last_change = made and made.version.summary()

    def _follow(self, read: Sequence[Recorded]) -> None:
        """The versions are part of the labels from here on; nothing is changed if they do not fit."""
        labels = self.labels.after([recorded.version for recorded in read])
        latest: dict[int, Tensor] = {}
        for recorded in read:
            for step, vector in zip(recorded.version.steps, recorded.vectors, strict=True):
                row = labels.find(step.key)
                if row is None or (vector is not None) != self._brings_vector(step):
                    raise ValueError(f"version {recorded.version.number} and its vectors do not fit")
                if step.text is not None:
                    latest[row] = self._vector(step.key, vector)
        self._later |= latest
        self.versions += [recorded.version for recorded in read]
        self.labels = labels
        self._digest = read[-1].digest

    def _vector(self, key: str, stored: bytes | None) -> Tensor:
        """What was recorded with a label's text, or else the vector that it had at first."""
        if stored is None:
            return self.base[self.start.find(key)].float()
        if len(stored) != 4 * self.base.shape[1]:
            raise ValueError(f"the vector of {key!r} has {len(stored)} bytes")
        vector = torch.tensor(np.frombuffer(stored, dtype=np.float32))
        if not vector.isfinite().all():
            raise ValueError(f"the vector of {key!r} holds NaN or infinity")
        return vector


def read_vectors(folder: Path) -> Tensor:
    """Mapped, not read: a label's vector comes into memory when it is first scored."""
    with safe_open(folder / VECTORS, framework="pt") as file:
        vectors: Tensor = file.get_tensor("vectors")
    return vectors


def open_labels(path: Path) -> LiveCatalogue:
    """The labels of a model folder as they are now, without the rest of the model; only their files are checked."""

    def read(folder: ModelFolder, connection: Connection) -> LiveCatalogue:
        files = tuple(f"{folder.trained.name}/{name}" for name in (LABELS, VECTORS))
        folder.require_whole((), Verified(connection), only=files)
        return LiveCatalogue.read(folder, connection)

    return at_one_moment(path, read)


def encode_new(tower: Encoder, texts: Sequence[str], progress: Advance | None = None) -> Tensor:
    """The vectors of texts that the tower was not trained with; one alone needs no table of tokens and no threads."""
    if len(texts) == 1 and tower.rows is None and not tower.training:
        return tower.encode(texts)
    return encode_texts(tower, texts, progress=progress)


def change_labels(
    path: Path,
    changes: Callable[[LiveLabels], Sequence[Change]],
    *,
    note: str = "",
    progress: Advance | None = None,
) -> LiveCatalogue:
    """Makes the changes that follow from the labels there are, as one version; the encoder is loaded only if needed."""

    def encode(texts: list[str]) -> Tensor:
        def read(folder: ModelFolder, connection: Connection) -> Towers:
            folder.require_whole((), Verified(connection), only=(f"{folder.trained.name}/encoder/",))
            return Towers.load(folder.trained / "encoder")

        return encode_new(at_one_moment(path, read).label, texts, progress).float().cpu()

    return _with(path, lambda labels: labels.change(changes(labels.labels), encode, note))


def undo_labels(path: Path, to_version: int | None = None, *, note: str = "") -> LiveCatalogue:
    """Goes back to an older version, by default the one before; the labels afterwards."""
    return _with(path, lambda labels: labels.undo(to_version, note))


def _with(path: Path, change: Callable[[LiveCatalogue], None]) -> LiveCatalogue:
    while True:
        labels = open_labels(path)
        with suppress(Replaced):  # the folder holds another model by now: it is that one's labels that change
            change(labels)
            return labels
