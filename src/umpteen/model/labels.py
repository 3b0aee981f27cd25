"""The labels of a model: those it was written with, in a file that never changes, and all of them as they are now.

A label keeps its row for ever. Adding appends a row, renaming changes a row's text, retiring leaves the row unused.
"""

from __future__ import annotations

import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from difflib import get_close_matches
from heapq import merge
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np

from umpteen.errors import BadInput, DamagedModel
from umpteen.model.changes import Add, Change, Retire, Step, Version, check_key, check_text

if TYPE_CHECKING:
    from umpteen.data.labels import LabelCatalogue

LABELS = "labels.db"
Origin = Literal["trained", "added", "renamed"]
ORIGINS: tuple[Origin, ...] = ("trained", "added", "renamed")
TRAINED, ADDED, RENAMED = range(3)  # places in ORIGINS
STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's machine, at whether anybody still waits
_ROWS_AT_A_TIME = 4096
_LETTERS_INDEXED = 3  # what is shorter is looked for in every label
_NO_LETTER = "\ufffe"  # stands for NUL in what is searched: no text has it
_FIRST_AND_LAST = "SELECT (SELECT min(row) FROM labels), (SELECT max(row) FROM labels)"  # both at once read them all
_SCHEMA = (
    "CREATE TABLE labels (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "origin INTEGER NOT NULL, retired INTEGER NOT NULL) STRICT",
    "CREATE INDEX changed ON labels (row) WHERE origin OR retired",
    "CREATE VIRTUAL TABLE search USING fts5 (key, text, content = '', columnsize = 0, "
    "tokenize = 'trigram case_sensitive 1')",
)

Stop = Callable[[], bool] | None  # whether nobody waits for a search any more


class Column(Sequence[str]):
    """Keys or texts by row, each looked up when it is asked for."""

    def __init__(self, count: int, of_row: Callable[[int], str], of_all: Callable[[], Iterator[str]]) -> None:
        self._count = count
        self._of_row = of_row
        self._of_all = of_all

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self._of_row(place) for place in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        return self._of_row(int(row) % self._count)

    def __iter__(self) -> Iterator[str]:
        return self._of_all()


class StoredLabels:
    """labels.db, a million open without being read; threads may share it, and it may be deleted while it is open."""

    def __init__(self, path: Path, rows: int) -> None:
        self._count = rows
        self.rows = _Connection(path).rows
        self._searching = _Connection(path)  # of its own: nobody who reads a label waits for a search
        tables = {sql for (sql,) in self.rows("SELECT sql FROM sqlite_schema WHERE name IN ('labels', 'search')")}
        others = self.rows("SELECT name FROM sqlite_schema WHERE type IN ('view', 'trigger')")
        if any(others) or tables != {_SCHEMA[0], _SCHEMA[2]}:
            raise DamagedModel(f"{path}: was altered, it has other tables than umpteen makes; copy the model again")
        ((first, last),) = self.rows(_FIRST_AND_LAST)
        if (first, last) != (0, rows - 1):
            both = f"holds the rows {first} to {last}, not those of {rows:,} vectors"
            raise DamagedModel(f"{path}: {both}; copy the model again")
        self.keys, self.texts = self._column("key"), self._column("text")

    def _column(self, name: str) -> Sequence[str]:
        query = f"SELECT {name} FROM labels"

        def of_row(row: int) -> str:
            for (text,) in self.rows(f"{query} WHERE row = ?", row):
                return str(text)
            raise DamagedModel(f"label {row} is missing in the model's {LABELS}; copy the model again")

        return Column(self._count, of_row, lambda: (text for (text,) in self.rows(f"{query} ORDER BY row")))

    def __len__(self) -> int:
        return self._count

    def find(self, key: str) -> int | None:
        return next((int(row) for (row,) in self.rows("SELECT row FROM labels WHERE key = ?", key)), None)

    def matching(self, search: str, stop: Stop = None) -> Iterator[int]:
        wanted = search.casefold()
        query = "SELECT row FROM labels WHERE holds(key, ?1) OR holds(text, ?1)"
        if len(wanted) >= _LETTERS_INDEXED and not {"\0", _NO_LETTER} & set(wanted):
            query = "SELECT rowid FROM search WHERE search MATCH ? ORDER BY rowid"
            wanted = '"' + wanted.replace('"', '""') + '"'
        yield from (row for (row,) in self._searching.rows(query, wanted, stop=stop))


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

    def rows(self, query: str, *given: Any, stop: Stop = None) -> Iterator[Any]:
        cursor, some = None, None
        while some is None or some:
            try:
                with self._one_at_a_time:
                    # Whoever searched before may have given up: that is not to end this search.
                    self._connection.set_progress_handler(stop, STEPS_BETWEEN_LOOKS)
                    cursor = cursor or self._connection.execute(query, given)
                    some = cursor.fetchmany(_ROWS_AT_A_TIME)
            except UnicodeEncodeError:  # halves of surrogate pairs are in no file
                return
            except sqlite3.Error as error:  # in a file too large to be checked at every load
                if stop is not None and stop():
                    return
                raise DamagedModel(f"{self._path}: is damaged ({error}); copy the model again") from error
            yield from some


FirstLabels: TypeAlias = "StoredLabels | LabelCatalogue"  # those a model was written with, which never change


class LabelEntry(NamedTuple):
    key: str
    text: str
    row: int
    origin: Origin
    retired: bool


class LiveLabels:
    """An immutable snapshot that shares the first labels and adds what has changed; retired rows are in it."""

    def __init__(self, first: FirstLabels, version: int = 0, marked: Iterable[tuple[int, int, int]] = ()) -> None:
        """`marked` are those of the first labels that are not as trained: row, origin, and whether it is retired."""
        self.version, self.first = version, first
        self.active = np.ones(len(first), dtype=np.bool_)
        self.origins = np.full(len(first), TRAINED, dtype=np.uint8)  # of the rows' vectors, as places in ORIGINS
        for row, origin, retired in marked:
            self.active[row], self.origins[row] = not retired, origin
        self._first_origins = self.origins
        self._keys: dict[int, str] = {}  # of the rows after the first ones
        self._rows: dict[str, int] = {}  # the same, the other way round
        self._texts: dict[int, str] = {}  # of those rows, and of first ones with another text than at first
        self._count = int(self.active.sum())

    def after(self, versions: Sequence[Version]) -> LiveLabels:
        """The labels once these versions, the next ones, have happened too."""
        new = copy(self)
        new._keys, new._rows, new._texts = self._keys.copy(), self._rows.copy(), self._texts.copy()
        added = sum(step.do == "add" for version in versions for step in version.items)
        new.active = np.concatenate([self.active, np.zeros(added, dtype=np.bool_)])
        new.origins = np.concatenate([self.origins, np.full(added, ADDED, dtype=np.uint8)])
        for version in versions:
            new.version = version.number
            for do, key, text in version.items:
                row = new.find(key)
                if (row is None) != (do == "add") or (text is None) != (do == "retire"):
                    raise ValueError(f"{do} {key!r} does not fit the labels before it")
                if row is None:
                    row = len(new.first) + len(new._keys)
                    new._keys[row], new._rows[key] = key, row
                new.active[row] = text is not None
                if text is not None and self.is_first_text(row, text):
                    new._texts.pop(row, None)
                    new.origins[row] = self._first_origins[row]
                elif text is not None:
                    new._texts[row] = text
                    new.origins[row] = RENAMED if new.origins[row] == TRAINED else new.origins[row]
        new._count = int(new.active.sum())
        return new

    @property
    def keys(self) -> Sequence[str]:
        return self._column(self.first.keys, self._keys)

    @property
    def texts(self) -> Sequence[str]:
        return self._column(self.first.texts, self._texts)

    def _column(self, first: Sequence[str], changed: dict[int, str]) -> Sequence[str]:
        if not changed:
            return first
        new = range(len(first), len(self))
        return Column(
            len(self),
            lambda row: changed[row] if row in changed else first[row],
            lambda: chain((changed.get(row, text) for row, text in enumerate(first)), (changed[row] for row in new)),
        )

    def __len__(self) -> int:
        return len(self.active)

    def count(self) -> int:
        """How many labels there are, retired ones left out."""
        return self._count

    def find(self, key: str) -> int | None:
        """The row of a label, even if it is retired; None for a key nobody ever had."""
        row = self._rows.get(key)
        return self.first.find(key) if row is None else row

    def row(self, key: str) -> int:
        """The position of a label in every matrix."""
        row = self.find(key)
        if row is None or not self.active[row]:
            raise self.unknown(key)
        return row

    def unknown(self, key: str) -> BadInput:
        """Names the nearest key, if there are not too many to compare with."""
        if self.is_retired(key):
            return BadInput(f"the label {key!r} is retired; add it again to bring it back", code="unknown_key")
        from umpteen.data.prepared import KEYS_CHEAP_TO_COMPARE

        there: Iterable[str] = ()
        if len(self) <= KEYS_CHEAP_TO_COMPARE:
            there = (known for known, is_active in zip(self.keys, self.active, strict=True) if is_active)
        meant = "".join(f"; did you mean {nearest!r}?" for nearest in get_close_matches(key, there, n=1))
        return BadInput(f"there is no label with the key {key!r}{meant}", code="unknown_key")

    def steps_of(self, changes: Sequence[Change]) -> tuple[Step, ...]:
        """The changes as steps, each checked against these labels; those that change nothing are left out."""
        steps: dict[str, Step | None] = {}
        for place, change in enumerate(changes):
            try:
                if not isinstance(change.key, str):
                    raise BadInput(f"label key {change.key!r} is a {type(change.key).__name__}, not a string")
                if change.key in steps:
                    reason = f"label key {change.key!r} stands twice among the changes; give each key once"
                    raise BadInput(reason, code="duplicate_key")
                steps[change.key] = self.step_of(change)
            except BadInput as problem:
                problem.place = place
                raise
        made = tuple(step for step in steps.values() if step is not None)
        if self.count() + sum({"add": 1, "revive": 1, "retire": -1}.get(step.do, 0) for step in made) < 1:
            reason = "this would retire the last label, and a model without labels can answer nothing; add one first"
            raise BadInput(reason, code="last_label")
        return made

    def step_of(self, change: Change) -> Step | None:
        """The change as a step, checked against these labels; None if it changes nothing."""
        key, there = change.key, self.text_of(change.key)
        if isinstance(change, Add):
            if there is not None:
                reason = f"there is a label with the key {key!r} already ({there!r}); rename it, or choose another key"
                raise BadInput(reason, code="duplicate_key")
            if not self.is_retired(key):
                check_key(key)
                if self.find(unicodedata.normalize("NFD", key)) is not None:
                    raise BadInput(f"{key!r} is there already, in decomposed form; rename it", code="duplicate_key")
        elif there is None:
            raise self.unknown(key)
        if isinstance(change, Retire):
            return self.step_to(key, None)
        check_text(key, change.text)
        return self.step_to(key, change.text)

    def step_to(self, key: str, text: str | None) -> Step | None:
        """What gives the key this text, or retires it for None; None if it is so already."""
        there = self.text_of(key)
        if there == text:
            return None
        if text is None:
            return Step("retire", key, None)
        return Step("rename" if there is not None else "add" if self.find(key) is None else "revive", key, text)

    def __contains__(self, key: object) -> bool:
        row = self.find(key) if isinstance(key, str) else None
        return row is not None and bool(self.active[row])

    def text_of(self, key: str) -> str | None:
        """The text of the label with this key, if there is one and it is not retired."""
        return self.texts[self.row(key)] if key in self else None

    def is_retired(self, key: str) -> bool:
        """Whether this is the key of a label that was there once."""
        return key not in self and self.find(key) is not None

    def is_first_text(self, row: int, text: str) -> bool:
        """Whether this row had this text, and so this text's vector, when the model was written."""
        return row < len(self.first) and self.first.texts[row] == text

    def entry(self, row: int) -> LabelEntry:
        """All there is to say about a row."""
        return LabelEntry(self.keys[row], self.texts[row], row, ORIGINS[self.origins[row]], not self.active[row])

    def find_rows(self, search: str = "", *, retired: bool = False, stop: Stop = None) -> Iterator[int]:
        """Rows, ascending, whose key or text holds `search`, whatever the case; no more of them once `stop` says so."""
        rows: Iterable[int] = range(len(self))
        if search:
            wanted, keys, texts = search.casefold(), self.keys, self.texts
            in_memory = sorted(self._texts) if isinstance(self.first, StoredLabels) else range(len(self))
            asked = takewhile(lambda _: stop is None or not stop(), in_memory)
            rows = (row for row in asked if wanted in texts[row].casefold() or wanted in keys[row].casefold())
            if isinstance(self.first, StoredLabels):
                rows = merge((row for row in self.first.matching(search, stop) if row not in self._texts), rows)
        return (row for row in rows if retired or self.active[row])

    def catalogue(self) -> LabelCatalogue:
        """Keys and texts of all rows for code that reads them all, retired ones included."""
        from umpteen.data.labels import LabelCatalogue

        if isinstance(self.first, LabelCatalogue) and not self._texts:
            return self.first
        return LabelCatalogue(self.keys, self.texts)

    def __repr__(self) -> str:
        return f"<{self.count():,} labels, version {self.version}>"


def read_labels(folder: Path, version: int, rows: int) -> LiveLabels:
    """The labels of a model's files, one for each of so many rows, which are read when somebody asks for one."""
    first = StoredLabels(folder / LABELS, rows)
    marked = list(first.rows("SELECT row, origin, retired FROM labels WHERE origin OR retired"))
    for row, origin, _ in marked:
        if not 0 <= origin < len(ORIGINS):
            raise DamagedModel(f"{folder / LABELS}: row {row} has the origin {origin}; copy the model again")
    return LiveLabels(first, version, marked)


def write_labels(folder: Path, labels: LiveLabels) -> None:
    """All rows of the labels, in their order, as the first ones of a new model."""
    origins, retired = labels.origins.tolist(), (~labels.active).astype(np.int64).tolist()
    rows = zip(range(len(labels)), labels.keys, labels.texts, origins, retired, strict=True)
    with closing(sqlite3.connect(folder / LABELS, isolation_level=None)) as connection:
        # As searches see it. SQLite knows less of upper and lower case than Python, and stops at a NUL.
        connection.create_function("searched", 1, lambda text: text.casefold().replace("\0", _NO_LETTER))
        connection.execute("PRAGMA journal_mode=OFF")  # the folder appears when it is whole
        connection.execute("BEGIN")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.executemany("INSERT INTO labels VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute(
            "INSERT INTO search (rowid, key, text) SELECT row, searched(key), searched(text) FROM labels ORDER BY row"
        )
        connection.execute("INSERT INTO search (search) VALUES ('optimize')")
        connection.execute("COMMIT")
