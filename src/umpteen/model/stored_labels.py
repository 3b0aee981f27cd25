"""labels.db: the labels a model was written with, which never change; a million open without being read."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote

import numpy as np
from safetensors import safe_open
from torch import Tensor

from umpteen.errors import DamagedModel
from umpteen.model.live_labels import ORIGINS, LiveLabels, Stop, never, same_texts

LABELS, VECTORS = "labels.db", "vectors.safetensors"
_SCHEMA = (
    "CREATE TABLE labels (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "origin INTEGER NOT NULL, retired INTEGER NOT NULL) STRICT",
    "CREATE INDEX changed ON labels (row) WHERE origin OR retired",
    "CREATE VIRTUAL TABLE search USING fts5 (key, text, content = '', columnsize = 0, "
    "tokenize = 'trigram case_sensitive 1')",
)
_FIRST_AND_LAST = "SELECT (SELECT min(row) FROM labels), (SELECT max(row) FROM labels)"  # both at once read them all
_LETTERS_INDEXED = 3  # what is shorter is looked for in every label
STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's machine, at whether anybody still waits
_ROWS_AT_A_TIME = 4096
_NO_LETTER = "\ufffe"  # stands for NUL in what is searched: no text has it


def write_labels(folder: Path, labels: LiveLabels) -> None:
    """All rows of the labels, in their order, as the first ones of a new model."""
    rows = zip(
        range(len(labels)),
        labels.keys,
        labels.texts,
        labels.origins().tolist(),
        (~labels.active).astype(np.int64).tolist(),
        strict=True,
    )
    with closing(sqlite3.connect(folder / LABELS, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")  # the folder appears when it is whole
        connection.execute("BEGIN")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.executemany("INSERT INTO labels VALUES (?, ?, ?, ?, ?)", rows)
        found = connection.cursor().execute("SELECT row, key, text FROM labels ORDER BY row")
        connection.executemany(
            "INSERT INTO search (rowid, key, text) VALUES (?, ?, ?)",
            ((row, _searched(key), _searched(text)) for row, key, text in found),
        )
        connection.execute("INSERT INTO search (search) VALUES ('optimize')")
        connection.execute("COMMIT")


def read_labels(folder: Path, version: int, rows: int) -> LiveLabels:
    """The labels of a model's files, one for each of so many rows, which are read when somebody asks for one."""
    first = StoredLabels(folder / LABELS, rows)
    changed = first.rows("SELECT row, origin, retired FROM labels WHERE origin OR retired")
    active, origins = np.ones(len(first), dtype=np.bool_), np.zeros(len(first), dtype=np.uint8)
    for row, origin, retired in changed:
        if not 0 <= origin < len(ORIGINS):
            raise DamagedModel(f"{folder / LABELS}: row {row} has the origin {origin}; copy the model again")
        active[row], origins[row] = not retired, origin
    return LiveLabels(first, version=version, active=active, origins=origins if origins.any() else None)


def read_vectors(folder: Path) -> Tensor:
    """Mapped, not read: a label's vector comes into memory when it is first scored."""
    with safe_open(folder / VECTORS, framework="pt") as file:
        vectors: Tensor = file.get_tensor("vectors")
    return vectors


class StoredLabels:
    """The labels of a file that never changes; threads may share it, and it may be deleted while it is open."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._count = rows
        self._reading = _Connection(path)
        self._searching = _Connection(path)  # of its own: nobody who reads a label waits for a search
        tables = {sql for (sql,) in self.rows("SELECT sql FROM sqlite_schema WHERE name IN ('labels', 'search')")}
        others = self.rows("SELECT name FROM sqlite_schema WHERE type IN ('view', 'trigger')")
        if any(others) or tables != {_SCHEMA[0], _SCHEMA[2]}:
            raise DamagedModel(f"{path}: was altered, it has other tables than umpteen makes; copy the model again")
        ((first, last),) = self.rows(_FIRST_AND_LAST)
        if (first, last) != (0, rows - 1):
            raise DamagedModel(
                f"{path}: holds the rows {first} to {last}, not those of {rows:,} vectors; copy the model again"
            )
        self.keys: Sequence[str] = _Field(self, "key")
        self.texts: Sequence[str] = _Field(self, "text")

    def __len__(self) -> int:
        return self._count

    def rows(self, query: str, *given: Any) -> Iterator[Any]:
        """What the file answers."""
        return self._reading.rows(query, given)

    def find(self, key: str) -> int | None:
        """The label's row, or None if there is no such key."""
        if not _is_text(key):
            return None
        return next((int(row) for (row,) in self.rows("SELECT row FROM labels WHERE key = ?", key)), None)

    def matching(self, search: str, stop: Stop = never) -> Iterator[int]:
        """Rows, ascending, whose key or text holds this, whatever the case; no more of them once `stop` says so."""
        if not _is_text(search):
            return
        wanted = search.casefold()
        if len(wanted) >= _LETTERS_INDEXED and not {"\0", _NO_LETTER} & set(wanted):
            phrase = '"' + wanted.replace('"', '""') + '"'
            found = self._searching.rows(
                "SELECT rowid FROM search WHERE search MATCH ? ORDER BY rowid", (phrase,), stop
            )
        else:
            query = "SELECT row FROM labels WHERE holds(key, ?1) OR holds(text, ?1)"
            found = self._searching.rows(query, (wanted,), stop)
        yield from (row for (row,) in found)


class _Connection:
    """A way to the file for one thread at a time, each for a moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = threading.Lock()
        address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"  # no locks, no journal: nobody writes it
        try:
            self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            self._connection.execute("PRAGMA trusted_schema=OFF")
        except sqlite3.Error as error:
            raise DamagedModel(f"{path}: cannot be opened ({error}); copy the model again") from error
        self._connection.create_function("holds", 2, lambda text, part: part in text.casefold(), deterministic=True)

    def rows(self, query: str, given: tuple[Any, ...], stop: Stop = never) -> Iterator[Any]:
        cursor, some = None, None
        while some is None or some:
            try:
                with self._one_at_a_time:
                    # Whoever searched before may have given up: that is not to end this search.
                    self._connection.set_progress_handler(None if stop is never else stop, STEPS_BETWEEN_LOOKS)
                    cursor = cursor or self._connection.execute(query, given)
                    some = cursor.fetchmany(_ROWS_AT_A_TIME)
            except sqlite3.Error as error:  # in a file too large to be checked at every load
                if stop():
                    return
                raise DamagedModel(f"{self._path}: is damaged ({error}); copy the model again") from error
            yield from some


def _searched(text: str) -> str:
    """As searches see it. SQLite knows less of upper and lower case than Python, and stops at a NUL."""
    return text.casefold().replace("\0", _NO_LETTER)


def _is_text(text: str) -> bool:
    """Whether it can be in a file at all: halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Field(Sequence[str]):
    """One field of all labels."""

    def __init__(self, labels: StoredLabels, name: str) -> None:
        self._labels = labels
        self._name = name

    def __len__(self) -> int:
        return len(self._labels)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        for (text,) in self._labels.rows(f"SELECT {self._name} FROM labels WHERE row = ?", int(row) % len(self)):
            return str(text)
        raise DamagedModel(f"label {row} is missing in the model's {LABELS}; copy the model again")

    def __iter__(self) -> Iterator[str]:
        return (text for (text,) in self._labels.rows(f"SELECT {self._name} FROM labels ORDER BY row"))

    def __eq__(self, other: object) -> bool:
        return same_texts(self, other)

    __hash__ = None  # type: ignore[assignment]
