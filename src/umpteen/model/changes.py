"""What can change in a model, and the one SQLite database that records it: versions, lessons, and current parts.

What is asked for (Add, Rename, Retire) becomes steps, and all steps of a change one version; all examples that are
learnt at once are one lesson. A change is one transaction: on disk when it returns, whole or absent for every process.
A connection lives as long as its transaction, so a database at rest is one file.
"""

import hashlib
import json
import os
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from umpteen.errors import BadInput, DamagedModel, NotSaved

LONGEST_KEY = 512  # characters
LONGEST_TEXT = 10_000
MOST_KEYS = 256  # of one example
# Ranges for a regular expression: control characters, bidirectional controls, line and paragraph separators.
UNSEEN = r"\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
NO_PART_OF_A_TEXT = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # tabs and line ends are one
_SURROGATES = r"\ud800-\udfff"


def visible(text: object) -> str:
    """The text in one line that a terminal only shows: characters that would steer it stand as escapes."""
    return re.sub(f"[{UNSEEN}{_SURROGATES}]", lambda found: found[0].encode("unicode_escape").decode(), str(text))


@dataclass(frozen=True)
class Add:
    """A label that is not there; one that was retired comes back in its old row."""

    key: str
    text: str


@dataclass(frozen=True)
class Rename:
    """The label with this key has another text from now on."""

    key: str
    text: str


@dataclass(frozen=True)
class Retire:
    """The label with this key is never found again; its row stays its own."""

    key: str


Change = Add | Rename | Retire
Doing = Literal["add", "rename", "retire", "revive"]


class Step(NamedTuple):
    """One recorded change; whatever comes to be there has a text."""

    do: Doing
    key: str
    text: str | None


class Example(NamedTuple):
    """A text, the keys of labels that are right for it, and of some that are wrong."""

    text: str
    labels: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    time: str = ""  # UTC
    note: str = ""


Item = TypeVar("Item", bound=tuple[Any, ...])


class Entry(NamedTuple, Generic[Item]):
    """What was recorded at once."""

    number: int
    time: str  # UTC
    note: str
    items: tuple[Item, ...]
    vectors: tuple[bytes | None, ...] = ()  # of the items' texts, where one brings one
    undoes: int | None = None  # which lesson
    digest: str = ""  # of it and all before it


Version = Entry[Step]  # all that happened to the labels at once: no key stands twice
Lesson = Entry[Example]  # all that was learnt at once; one that undoes another has no examples


@dataclass(frozen=True)
class VersionSummary:
    """One line of a catalogue's history; labels that came back count as added."""

    version: int
    time: str
    added: int
    renamed: int
    retired: int
    note: str

    @classmethod
    def of(cls, version: Version) -> "VersionSummary":
        done = Counter(step.do for step in version.items)
        added = done["add"] + done["revive"]
        return cls(version.number, version.time, added, done["rename"], done["retire"], version.note)


def check_key(key: str) -> None:
    """Refuses what cannot be the key of a new label: it must fit into a line, a path and an address."""
    reason = ""
    if not key.strip():
        reason = "a label's key is empty; give it one"
    elif key in (".", ".."):
        reason = f"label key {key!r} would be a way through folders in an address; choose another"
    elif key != key.strip():
        reason = f"label key {key!r} begins or ends with blanks; remove them"
    elif len(key) > LONGEST_KEY:
        reason = f"label key {key[:40]!r}… has {len(key):,} characters; {LONGEST_KEY} are the most"
    elif found := re.search(f"[/{UNSEEN}{_SURROGATES}]", key):
        what = "a slash" if found[0] == "/" else f"the character U+{ord(found[0]):04X}"
        reason = f"label key {key!r} holds {what}; keys have no slashes, line ends or control characters"
    elif (composed := unicodedata.normalize("NFC", key)) != key:
        reason = f"label key {key!a} is not in Unicode's form NFC, so it could stand twice; give {composed!r}"
    if reason:
        raise BadInput(reason, code="bad_key")


def check_text(key: str, text: object) -> None:
    if isinstance(text, str) and not text.strip():
        raise BadInput(f"label {key!r} has an empty text; give it one, or leave the label out", code="bad_text")
    check_characters(f"the text of label {key!r}", text, "bad_text")


def check_characters(what: str, text: object, code: str = "bad_input") -> None:
    """Refuses what is no string, too long, or holds characters that no text has."""
    if not isinstance(text, str):
        raise BadInput(f"{what} is a {type(text).__name__}, not a string", code=code)
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"{what} has {len(text):,} characters; {LONGEST_TEXT:,} are the most", code=code)
    if found := re.search(f"[{NO_PART_OF_A_TEXT}{_SURROGATES}]", text):
        kind = "half of a surrogate pair" if found[0] >= "\ud800" else "a control character"
        raise BadInput(f"{what} holds U+{ord(found[0]):04X}, {kind}; remove it", code=code)


PATIENCE = 120.0  # seconds that a change waits for the one before it; who makes one encodes no texts meanwhile
_APPLICATION = 0x756D7074  # "umpt" in the file's header
_FORMAT = 2
_AS_IT_LIES = "mode=ro&immutable=1"  # SQLite looks at no lock and no log then
_SCHEMA = (
    "CREATE TABLE about (model TEXT NOT NULL, first_version INTEGER NOT NULL) STRICT",
    "CREATE TABLE versions (version INTEGER PRIMARY KEY, time TEXT NOT NULL, note TEXT NOT NULL, "
    "digest TEXT NOT NULL) STRICT",
    "CREATE TABLE changes (version INTEGER NOT NULL REFERENCES versions, place INTEGER NOT NULL, do TEXT NOT NULL, "
    "key TEXT NOT NULL, row INTEGER NOT NULL, text TEXT, vector BLOB, PRIMARY KEY (version, place)) STRICT",
    "CREATE INDEX changes_of_row ON changes (row, version)",
    "CREATE TABLE parts (name TEXT PRIMARY KEY, folder TEXT NOT NULL UNIQUE, labels_version INTEGER NOT NULL, "
    "about TEXT NOT NULL, files TEXT NOT NULL) STRICT",
    "CREATE TABLE lessons (lesson INTEGER PRIMARY KEY, time TEXT NOT NULL, note TEXT NOT NULL, undoes INTEGER, "
    "digest TEXT NOT NULL) STRICT",
    "CREATE TABLE examples (lesson INTEGER NOT NULL REFERENCES lessons, place INTEGER NOT NULL, text TEXT NOT NULL, "
    "labels TEXT NOT NULL, wrong TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (lesson, place)) STRICT",
    "CREATE TABLE verified (file TEXT PRIMARY KEY, stamp TEXT NOT NULL, sha256 TEXT NOT NULL) STRICT",
)


class Locked(NotSaved):
    """Another process is changing the model, and waiting for its end took too long; nothing was changed."""


class Replaced(Exception):
    """Another model, or another history of its labels, has taken the place of the one that was read."""


class Part(NamedTuple):
    """Something added to a trained model: a folder that is never altered, current until another takes its place."""

    name: str  # ranker, index, calibration
    folder: str
    labels_version: int  # it was made with
    about: dict[str, Any]
    files: dict[str, dict[str, Any]]  # size and SHA-256 by name


class Store:
    """The database of one model; without a path it is in memory, and goes with this object."""

    def __init__(self, path: Path | None, model: str, is_current: Callable[[], bool] = lambda: True) -> None:
        self.path = path
        self.model = model
        self._is_current = is_current  # whether the folder still names this model
        self._memory: Connection | None = None

    @classmethod
    def create(cls, path: Path | None, model: str, first_version: int) -> "Store":
        """A new database, whose labels are those the model is written with."""
        store = cls(path, model)
        connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        with _explained(path):
            if path is not None:
                connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={_FORMAT}")
            with _transaction(connection, "BEGIN"):
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute("INSERT INTO about VALUES (?, ?)", (model, first_version))
                written = (first_version, hashlib.sha256(model.encode()).hexdigest())
                connection.execute("INSERT INTO versions VALUES (?, '', '', ?)", written)
            if path is None:
                store._memory = connection
            else:
                connection.close()
        return store

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One snapshot, whatever others change meanwhile."""
        with self._opened(PATIENCE) as connection, _transaction(connection, "BEGIN"):
            yield connection

    @contextmanager
    def changing(self, patience: float = PATIENCE) -> Iterator[Connection]:
        """Nobody else changes anything meanwhile; what the body did is on disk when it ends well, else undone."""
        with self._opened(patience) as connection, _transaction(connection, "BEGIN IMMEDIATE"):
            if not self._is_current():
                raise Replaced
            yield connection

    def nobody_reads_older(self) -> bool:
        """Whether every snapshot that is being read has all that was committed before this call."""
        with self._opened(0.0) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def is_at_rest(self) -> bool:
        """Whether no process has it open; it is of no use to anybody after this look, which is for who deletes it."""
        try:
            with self._opened(0.0, doomed=True) as connection:
                return bool(connection.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete")
        except (Locked, DamagedModel, Replaced):
            return False

    def copy(self, folder: Path) -> None:
        """Writes it as it is now into another folder, under the same name."""
        assert self.path is not None
        with self.reading() as connection, closing(sqlite3.connect(folder / self.path.name)) as made:
            connection.backup(made)

    def problems(self) -> list[str]:
        """What is wrong with it, looked at to the last byte."""
        found: list[str] = []
        try:
            with self.reading() as connection:
                lines = (str(line) for (line,) in connection.execute("PRAGMA integrity_check"))
                found += [f"{self.path}: {line}; copy the model again" for line in lines if line != "ok"]
                for (first,) in connection.execute("SELECT first_version FROM about").fetchall():
                    versions_of(self, first).unread(connection)
                lessons_of(self).unread(connection)
        except DamagedModel as damage:
            found.append(str(damage))
        return found

    @contextmanager
    def _opened(self, patience: float, *, doomed: bool = False) -> Iterator[Connection]:
        if self._memory is not None:
            yield self._memory
            return
        assert self.path is not None
        if Path(f"{self.path}-journal").exists():  # none is written in WAL mode, and it could name any file to delete
            advice = "remove it, and ask where the model comes from"
            raise DamagedModel(f"{self.path}-journal: is none of umpteen's files; {advice}")
        mode = "mode=rw"  # never creates a file; a folder that cannot be written is read as it lies there
        if not os.access(self.path.parent, os.W_OK) or not os.access(self.path, os.W_OK):
            mode = "mode=ro" if Path(f"{self.path}-wal").exists() else _AS_IT_LIES
        address = f"file:{quote(str(self.path.absolute()))}?{mode}"
        with (
            _explained(self.path, patience),
            closing(sqlite3.connect(address, uri=True, timeout=patience, isolation_level=None)) as found,
        ):
            found.execute("PRAGMA trusted_schema=OFF")
            found.execute("PRAGMA synchronous=FULL")
            found.execute("PRAGMA wal_autocheckpoint=0")  # who closes it last does it alone (sqlite.org: WAL-reset bug)
            _require_ours(found, self.path, self.model)
            is_logged = found.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            if not (is_logged or doomed or address.endswith(_AS_IT_LIES)):  # about to be deleted: see `is_at_rest`
                if not self._is_current():
                    raise Replaced
                raise DamagedModel(f"{self.path}: is no database of this version of umpteen; copy the model again")
            yield found


class History(list[Entry[Item]]):
    """What a database records of one kind, as far as it was read, each entry the next of the one before."""

    def __init__(
        self, store: Store, tables: tuple[str, str, str], item: Callable[..., Item], first: int, digest: str
    ) -> None:
        super().__init__()
        self.store = store
        self._name, self._entries, self._items = tables  # of the number, of the tables
        self._item: Callable[..., Item] = item  # of the cells of a row
        self._first = first, digest  # what stands for the number and the digest of the entry before all others

    def unread(self, connection: Connection) -> list[Entry[Item]]:
        """What was recorded since, oldest first; `Replaced` if what was read is not its beginning."""
        name, (number, digest) = self._name, self._last()
        known = connection.execute(f"SELECT digest FROM {self._entries} WHERE {name} = ?", (number,)).fetchone()
        if self and known != (digest,):
            raise Replaced
        later = f"SELECT * FROM {self._entries} WHERE {name} > ? ORDER BY {name}"
        items_of = f"SELECT * FROM {self._items} WHERE {name} = ? ORDER BY place"
        found: list[Entry[Item]] = []
        for *about, stored in connection.execute(later, (number,)).fetchall():
            rows = connection.execute(items_of, about[:1]).fetchall()
            try:
                items = tuple(self._item(*row[2:-1]) for row in rows)
            except (ValueError, TypeError, RecursionError):
                items = ()  # whose digest is another one
            entry = _entry(digest, about, items, [row[-1] for row in rows])
            number, digest = number + 1, entry.digest
            if entry.number != number or stored != digest:
                said = f"{name} {entry.number} does not follow the one before it"
                raise DamagedModel(f"{self.store.path}: {said}; copy the model again")
            found.append(entry)
        return found

    def record(
        self,
        connection: Connection,
        rows: Sequence[Sequence[Any]],
        vectors: Sequence[bytes | None],
        note: str,
        *undoes: int | None,
        time: str | None = None,
    ) -> Entry[Item]:
        """Writes an entry behind all others, which are known; it counts here when it is on disk, and appended."""
        number, digest = self._last()
        about = [number + 1, time or datetime.now(UTC).isoformat(timespec="seconds"), note, *undoes]
        entry = _entry(digest, about, tuple(self._item(*row) for row in rows), vectors)
        _insert(connection, self._entries, [[*about, entry.digest]])
        placed = enumerate(zip(rows, vectors, strict=True))
        _insert(connection, self._items, [[number + 1, place, *row, vector] for place, (row, vector) in placed])
        return entry

    def _last(self) -> tuple[int, str]:
        return (self[-1].number, self[-1].digest) if self else self._first


def _entry(before: str, about: Sequence[Any], items: tuple[Item, ...], vectors: Sequence[bytes | None]) -> Entry[Item]:
    number, time, note, *undoes = about
    made = hashlib.sha256(json.dumps([before, *about, [item[:3] for item in items]], ensure_ascii=False).encode())
    for vector in vectors:
        made.update(vector or b"")
    return Entry(number, time, note, items, tuple(vectors), undoes[0] if undoes else None, made.hexdigest())


def versions_of(store: Store, first: int) -> History[Step]:
    def step(do: Doing, key: str, row: int, text: str | None) -> Step:
        return Step(do, key, text)

    digest = hashlib.sha256(store.model.encode()).hexdigest()
    return History(store, ("version", "versions", "changes"), step, first, digest)


def lessons_of(store: Store) -> History[Example]:
    def example(text: str, labels: str, wrong: str) -> Example:
        return Example(text, tuple(map(str, json.loads(labels))), tuple(map(str, json.loads(wrong))))

    return History(store, ("lesson", "lessons", "examples"), example, 0, store.model)


def _insert(connection: Connection, table: str, rows: list[list[Any]]) -> None:
    for row in rows[:1]:
        connection.executemany(f"INSERT INTO {table} VALUES (?{', ?' * (len(row) - 1)})", rows)


def has_version(connection: Connection, version: int) -> bool:
    return connection.execute("SELECT 1 FROM versions WHERE version = ?", (version,)).fetchone() is not None


def vectors_at(connection: Connection, version: int) -> dict[str, bytes | None]:
    """The vectors (None: the first one) of all labels that had changed by this version, by key."""
    # Of the row that has the maximum, SQLite gives the other columns, too; a join would look up every key.
    newest = "SELECT key, vector FROM (SELECT key, vector, max(version) FROM changes WHERE version <= ? GROUP BY key)"
    return dict(connection.execute(newest, (version,)).fetchall())


def read_parts(connection: Connection) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, folder, version, *described in connection.execute("SELECT * FROM parts"):
        try:
            about, files = map(json.loads, described)
        except (ValueError, RecursionError):
            about = files = None
        if not (isinstance(about, dict) and isinstance(files, dict)):
            raise DamagedModel(f"the model's {name} is said to be what no {name} is; do not use this model")
        parts[name] = Part(name, folder, version, about, files)
    return parts


def write_part(connection: Connection, part: Part) -> None:
    row = part.name, part.folder, part.labels_version, json.dumps(part.about), json.dumps(part.files)
    connection.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", row)


def drop_parts(connection: Connection, names: Iterable[str]) -> None:
    connection.executemany("DELETE FROM parts WHERE name = ?", ((name,) for name in names))


@contextmanager
def _transaction(connection: Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # else SQLite has done it, after an error of the disk
            connection.execute("ROLLBACK")
        raise


def is_database(path: Path) -> bool:
    """Whether the file is such a database, by its header."""
    with path.open("rb") as file:
        header = file.read(72)
    return header[:15] == b"SQLite format 3" and int.from_bytes(header[68:72], "big") == _APPLICATION


def _require_ours(connection: Connection, path: Path, model: str) -> None:
    """Tables as this module makes them and nothing else: no view or trigger of somebody else's runs here."""
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if found != [_APPLICATION, _FORMAT]:
        version = f"this version of umpteen (format {found[1]}, now {_FORMAT})"
        raise DamagedModel(f"{path}: is no database of {version}; copy the model again, or train it again")
    tables = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    if sorted(sql for (sql,) in tables) != sorted(_SCHEMA):
        raise DamagedModel(f"{path}: was altered, it has other tables than umpteen makes; copy the model again")
    (belongs_to,) = connection.execute("SELECT model FROM about").fetchone() or ("",)
    if belongs_to != model:
        raise DamagedModel(f"{path}: belongs to another model than the one beside it; copy the model again")


@contextmanager
def _explained(path: Path | None, patience: float = PATIENCE) -> Iterator[None]:
    """SQLite's errors in the words of this package."""
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
            waited = f" for {patience:g} s" if patience else ""
            reason = f"another process has been changing it{waited}; nothing was changed, try again later"
            raise Locked(f"{path}: {reason}") from error
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            advice = "Free space, or copy the model folder to a place you may write to"
            raise NotSaved(f"{path}: could not be written ({error}); nothing was changed. {advice}") from error
        if code == sqlite3.SQLITE_CANTOPEN and path is not None and not path.exists():
            raise Replaced from error
        if code == sqlite3.SQLITE_CANTOPEN and Path(f"{path}-wal").exists():
            left = f"a killed process left {path}-wal, which is taken in where it can be written"
            raise DamagedModel(f"{path}: is not at rest, {left}; copy the whole folder to such a place") from error
        raise DamagedModel(f"{path}: is damaged ({error}); copy the model again") from error
