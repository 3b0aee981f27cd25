"""Labels, their vectors and their versions together: every change is in the store before it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from umpteen.data.texts import Texts
from umpteen.encoders.folder import map_arrays
from umpteen.errors import BadInput, DamagedModel
from umpteen.files.progress import Advance, silent
from umpteen.model.changes import PATIENCE, Change, Replaced, Step, Store, Version, has_version, vectors_at, versions_of
from umpteen.model.folder import ModelFolder, at_one_moment
from umpteen.model.labels import LABELS, LiveLabels, read_labels
from umpteen.search.index import Indexed, LiveVectors, Rows
from umpteen.search.ranking import OF_NO_USE, Vectors

if TYPE_CHECKING:
    from torch import Tensor

    from umpteen.encoders.encoder import Encoder

VECTORS = "vectors.safetensors"
_FEW = 64  # texts
Encode = Callable[[list[str]], Iterable[NDArray[np.float32]]]
Encoded = dict[tuple[object, str], NDArray[np.float32]]  # by which tower; kept by who may have to try again


def encoding(tower: Callable[[], Encoder], known: Encoded | None, progress: Advance = silent) -> Encode:
    """Encodes each text once, and refuses vectors of no use; the tower is asked for when there are texts."""
    known = {} if known is None else known

    def encode(texts: list[str]) -> list[NDArray[np.float32]]:
        by = tower() if texts else None
        new = list(dict.fromkeys(text for text in texts if (by, text) not in known))
        vectors = () if by is None or not new else encode_new(by, new, progress=progress).float().cpu().numpy()
        for text, vector in zip(new, vectors, strict=True):
            if not np.isfinite(vector).all():
                raise BadInput(f"the vector of {text[:40]!r} holds NaN or infinity, {OF_NO_USE}")
            known[by, text] = vector
        return [known[by, text] for text in texts]

    return encode


class LiveCatalogue:
    """The labels of one model; without a store of its own they change in memory only."""

    def __init__(self, labels: LiveLabels, base: Vectors, store: Store | None = None) -> None:
        self.start = labels  # what the model was written with
        self.labels = labels
        self.base = base  # [L, d], the vectors that the model was written with
        self.store = Store.create(None, "", labels.version) if store is None else store
        self.versions = versions_of(self.store, labels.version)
        self.last_change: Version | None = None  # of those made here, not by other processes
        self._changed: dict[int, NDArray[np.float32]] = {}  # the vectors of rows that have another one than at first
        self._vectors: tuple[LiveLabels, LiveVectors] | None = None  # of these labels

    @classmethod
    def read(cls, folder: ModelFolder, connection: Connection) -> LiveCatalogue:
        vectors = read_vectors(folder.trained)
        labels = read_labels(folder.trained, int(folder.manifest["settings"]["labels_version"]), len(vectors))
        catalogue = cls(labels, vectors, folder.store)
        catalogue.take_in(connection)
        return catalogue

    @property
    def vectors(self) -> LiveVectors:
        """As they are now; who only changes labels needs none."""
        if self._vectors is None or self._vectors[0] is not self.labels:
            rows, vectors = sorted(self._changed), None
            if rows:
                vectors = np.stack([self._changed[row] for row in rows])
                self._changed = dict(zip(rows, vectors, strict=True))  # so that they are held once
            changed = LiveVectors(self.base, self.labels.active, np.array(rows, dtype=np.int64), vectors)
            self._vectors = self.labels, changed
        return self._vectors[1]

    def take_in(self, connection: Connection) -> bool:
        """What other processes have changed, all of it or nothing; `Replaced` if these labels are not its beginning."""
        if not has_version(connection, self.labels.version):
            raise Replaced
        read = self.versions.unread(connection)
        try:
            self._follow(read)
        except (ValueError, TypeError, LookupError, ArithmeticError, BadInput) as error:
            raise DamagedModel(f"{self.store.path}: is not a history of these labels: {error}") from error
        return bool(read)

    def since(self, version: int) -> Rows:
        """The rows that an index of this version has to hear of, ascending: new, gone, back again or renamed ones."""
        return np.sort(np.array([self.labels.find(key) for key in self._touched(version)], dtype=np.int64))

    def indexed(self) -> Indexed:
        """The labels as they are now, for an index over them."""
        return Indexed(self.store.model, self.labels.version, self.labels.keys, self.vectors)

    def change(self, changes: Sequence[Change], encode: Encode, note: str = "", patience: float = PATIENCE) -> None:
        """One new version with all of these changes, or none if they change nothing; see `Locked`."""

        def vectors_of(steps: Sequence[Step]) -> list[bytes | None]:
            texts = {step.key: step.text for step in steps if step.text is not None and self._brings_vector(step)}
            vectors = dict(zip(texts, encode([*texts.values()]), strict=True))
            return [vectors[step.key].tobytes() if step.key in vectors else None for step in steps]

        vectors_of(self.labels.steps_of(changes))  # before anybody has to wait for this change
        with self.store.changing(patience) as connection:
            self.take_in(connection)
            steps = self.labels.steps_of(changes)
            made = self._record(connection, steps, vectors_of(steps), note)
        self._count(made)

    def undo(self, to_version: int | None = None, note: str = "", patience: float = PATIENCE) -> None:
        """A new version in which all labels are as they were in an older one, by default the one before."""
        with self.store.changing(patience) as connection:
            self.take_in(connection)
            if to_version is None and not self.versions:
                reason = "there is nothing to undo: no label has changed since the model was written"
                raise BadInput(reason, code="nothing_to_undo")
            target = self.labels.version - 1 if to_version is None else to_version
            steps, then = self.between(self.labels.version, target), vectors_at(connection, target)
            vectors = [then[step.key] if self._brings_vector(step) else None for step in steps]
            made = self._record(connection, steps, vectors, note or f"back to version {target}")
        self._count(made)

    def at(self, version: int) -> LiveLabels:
        first, last = self.start.version, self.labels.version
        if not first <= version <= last:
            raise BadInput(f"there is no version {version}; there are {first} to {last}", code="unknown_version")
        return self.start.after(self.versions[: version - first])

    def between(self, one: int, other: int) -> tuple[Step, ...]:
        """What turns the labels of one version into those of another."""
        now, then = self.at(one), self.at(other)
        steps = (now.step_to(key, then.text_of(key)) for key in self._touched(min(one, other)))
        return tuple(step for step in steps if step is not None)

    def renamed_since(self, version: int) -> Rows:
        """Rows that were there at this version, and have another text now."""
        then = self.at(version)
        rows = sorted(row for key in self._touched(version) if (row := then.find(key)) is not None)
        return np.array([row for row in rows if self.labels.texts[row] != then.texts[row]], dtype=np.int64)

    def _touched(self, version: int) -> dict[str, None]:
        later = self.versions[max(0, version - self.start.version) :]
        return dict.fromkeys(step.key for version in later for step in version.items)

    def _brings_vector(self, step: Step) -> bool:
        """Whether a step's text is encoded: a label that takes back its first text takes back its first vector."""
        if step.text is None:
            return False
        row = self.start.first.find(step.key)
        return row is None or not self.start.is_first_text(row, step.text)

    def _record(
        self, connection: Connection, steps: Sequence[Step], vectors: Sequence[bytes | None], note: str
    ) -> list[Version]:
        new = count(len(self.labels))
        rows = [(do, key, next(new) if do == "add" else self.labels.find(key), text) for do, key, text in steps]
        return [self.versions.record(connection, rows, vectors, note)] if steps else []

    def _count(self, made: list[Version]) -> None:
        """A change that is on disk by now, if there was anything to change."""
        self._follow(made)
        self.last_change = self.versions[-1] if made else None

    def _follow(self, read: Sequence[Version]) -> None:
        """The versions are part of the labels from here on; nothing is changed if they do not fit."""
        if not read:
            return
        labels, changed = self.labels.after(read), self._changed.copy()
        for version in read:
            for step, vector in zip(version.items, version.vectors, strict=True):
                row = labels.find(step.key)
                if row is None or (vector is not None) != self._brings_vector(step):
                    raise ValueError(f"version {version.number} and its vectors do not fit")
                if vector is not None:
                    changed[row] = self._vector(step.key, vector)
                elif step.text is not None:  # it has its first vector back
                    changed.pop(row, None)
        self._changed = changed
        self.versions += [version._replace(vectors=()) for version in read]  # the vectors are held once
        self.labels = labels

    def _vector(self, key: str, stored: bytes) -> NDArray[np.float32]:
        if len(stored) != 4 * self.base.shape[1]:
            raise ValueError(f"the vector of {key!r} has {len(stored)} bytes")
        vector = np.frombuffer(stored, dtype=np.float32)
        if not np.isfinite(vector).all():
            raise ValueError(f"the vector of {key!r} holds NaN or infinity")
        return vector


def read_vectors(folder: Path) -> NDArray[Any]:
    """Mapped, not read: a label's vector comes into memory when it is first scored."""
    return map_arrays(folder / VECTORS)["vectors"]


def open_labels(path: Path) -> LiveCatalogue:
    """The labels of a model folder as they are now, without the rest of the model; only their files are checked."""

    def read(folder: ModelFolder, connection: Connection) -> LiveCatalogue:
        folder.require_whole(connection, only=tuple(f"{folder.trained.name}/{name}" for name in (LABELS, VECTORS)))
        return LiveCatalogue.read(folder, connection)

    return at_one_moment(path, read)


def encode_new(tower: Encoder, texts: Sequence[str], progress: Advance = silent) -> Tensor:
    """The vectors of texts that the tower was not trained with; a few need no table of tokens and no threads."""
    from umpteen.encoders.encoder import encode_texts, encode_tokens, tokens_for

    if isinstance(texts, Texts):  # of a dataset: they are tokenised once, into the cache
        return encode_tokens(tower, tokens_for(tower, texts), progress=progress)
    if len(texts) <= (1 if tower.pads else _FEW) and tower.rows is None and not tower.training:
        return tower.encode(texts)
    return encode_texts(tower, texts, progress=progress)


def change_labels(
    path: Path, changes: Callable[[LiveLabels], Sequence[Change]], *, note: str = "", progress: Advance = silent
) -> LiveCatalogue:
    """Makes the changes that follow from the labels there are, as one version; the encoder is loaded only if needed."""

    def read(folder: ModelFolder, connection: Connection) -> Encoder:
        from umpteen.encoders.towers import Towers

        folder.require_whole(connection, only=(f"{folder.trained.name}/encoder/",))
        return Towers.load(folder.trained / "encoder").label

    def change(labels: LiveCatalogue) -> None:
        encode = encoding(cache(lambda: at_one_moment(path, read)), None, progress)
        labels.change(changes(labels.labels), encode, note)

    return with_labels(path, change)


def with_labels(path: Path, change: Callable[[LiveCatalogue], None]) -> LiveCatalogue:
    """The labels of a model folder, after this change of them."""
    while True:
        labels = open_labels(path)
        with suppress(Replaced):  # the folder holds another model by now: it is that one's labels that change
            change(labels)
            return labels
