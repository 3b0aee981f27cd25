"""What can change in a model, and the one SQLite database that records it: versions of labels, and current parts.

What is asked for (Add, Rename, Retire) becomes steps, and all steps of a change one version. A change is one
transaction: on disk when it returns, whole or absent for every process. A connection lives as long as its transaction,
so a database at rest is one file.
"""

import hashlib
import json
import os
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote

from umpteen.errors import BadInput, DamagedModel, NotSaved

LONGEST_KEY = 512  # characters
LONGEST_TEXT = 10_000
# Ranges for a regular expression: control characters, bidirectional controls, line and paragraph separators.
UNSEEN = r"\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
NO_PART_OF_A_TEXT = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # tabs and line ends are one
_SURROGATES = r"\ud800-\udfff"


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


@dataclass(frozen=True)
class Version:
    """All that happened to the labels at once; `steps` name a key once at most."""

    number: int
    time: str  # UTC
    note: str
    steps: tuple[Step, ...]

    def summary(self) -> "VersionSummary":
        done = Counter(step.do for step in self.steps)
        added = done["add"] + done["revive"]
        return VersionSummary(self.number, self.time, added, done["rename"], done["retire"], self.note)


class VersionSummary(NamedTuple):
    """One line of a catalogue's history; labels that came back count as added."""

    version: int
    time: str
    added: int
    renamed: int
    retired: int
    note: str


class Labels(Protocol):
    """What has to be known of the labels there are."""

    def text_of(self, key: str) -> str | None: ...
    def is_retired(self, key: str) -> bool: ...
    def count(self) -> int: ...


def steps_of(changes: Sequence[Change], labels: Labels) -> tuple[Step, ...]:
    """The changes as steps, each checked against the labels there are; those that change nothing are left out."""
    steps: list[Step] = []
    seen: set[str] = set()
    for change in changes:
        _check_key_type(change.key)
        if change.key in seen:
            raise BadInput(f"label key {change.key!r} stands twice among the changes; give each key once")
        seen.add(change.key)
        step = step_of(change, labels)
        if step is not None:
            steps.append(step)
    left = labels.count() + sum({"add": 1, "revive": 1, "retire": -1}.get(step.do, 0) for step in steps)
    if left < 1:
        raise BadInput("this would retire the last label, and a model without labels can answer nothing; add one first")
    return tuple(steps)


def step_of(change: Change, labels: Labels) -> Step | None:
    """The change as a step, checked against the labels there are; None if it changes nothing."""
    there = labels.text_of(change.key)
    if isinstance(change, Add):
        if there is not None:
            raise BadInput(
                f"there is a label with the key {change.key!r} already ({there!r}); rename it, or choose another key"
            )
        retired = labels.is_retired(change.key)
        if not retired:
            check_key(change.key)
            other = unicodedata.normalize("NFD", change.key)
            if other != change.key and (labels.text_of(other) is not None or labels.is_retired(other)):
                raise BadInput(f"there is a label with the key {change.key!r} already, in decomposed form; rename it")
        check_text(change.key, change.text)
        return Step("revive" if retired else "add", change.key, change.text)
    if there is None:
        raise unknown_key(change.key, labels.is_retired(change.key))
    if isinstance(change, Rename):
        check_text(change.key, change.text)
        return None if change.text == there else Step("rename", change.key, change.text)
    return Step("retire", change.key, None)


def unknown_key(key: str, retired: bool) -> BadInput:
    if retired:
        return BadInput(f"the label with the key {key!r} is retired; add it again to bring it back")
    return BadInput(f"there is no label with the key {key!r}")


def check_key(key: str) -> None:
    """Refuses what cannot be the key of a new label: it must fit into a line, a path and an address."""
    _check_key_type(key)
    if not key.strip():
        raise BadInput("a label's key is empty; give it one")
    if key in (".", ".."):
        raise BadInput(f"label key {key!r} would be a way through folders in an address; choose another")
    if key != key.strip():
        raise BadInput(f"label key {key!r} begins or ends with blanks; remove them")
    if len(key) > LONGEST_KEY:
        raise BadInput(f"label key {key[:40]!r}… has {len(key):,} characters; {LONGEST_KEY} are the most")
    if found := re.search(f"[/{UNSEEN}{_SURROGATES}]", key):
        what = "a slash" if found[0] == "/" else f"the character U+{ord(found[0]):04X}"
        raise BadInput(f"label key {key!r} holds {what}; keys have no slashes, line ends or control characters")
    if (composed := unicodedata.normalize("NFC", key)) != key:
        raise BadInput(f"label key {key!a} is not in Unicode's form NFC, so it could stand twice; give {composed!r}")


def check_text(key: str, text: object) -> None:
    if not isinstance(text, str):
        raise BadInput(f"the text of label {key!r} is a {type(text).__name__}, not a string")
    if not text.strip():
        raise BadInput(f"label {key!r} has an empty text; give it one, or leave the label out")
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"the text of label {key!r} has {len(text):,} characters; {LONGEST_TEXT:,} are the most")
    if found := re.search(f"[{NO_PART_OF_A_TEXT}{_SURROGATES}]", text):
        what = "half of a surrogate pair" if found[0] >= "\ud800" else "a control character"
        raise BadInput(f"the text of label {key!r} holds U+{ord(found[0]):04X}, {what}; remove it")


def _check_key_type(key: object) -> None:
    if not isinstance(key, str):
        raise BadInput(f"label key {key!r} is a {type(key).__name__}, not a string")


PATIENCE = 120.0  # seconds that a change waits for the one before it; who makes one encodes no texts meanwhile
_APPLICATION = 0x756D7074  # "umpt" in the file's header
_FORMAT = 1
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


class Recorded(NamedTuple):
    """A version as it was read."""

    version: Version
    vectors: list[bytes | None]  # of its steps, where a text brought one
    digest: str


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
                digest = hashlib.sha256(model.encode()).hexdigest()
                connection.execute("INSERT INTO versions VALUES (?, '', '', ?)", (first_version, digest))
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

    def versions(self, connection: Connection, after: int) -> Iterator[Recorded]:
        """All versions after this one, oldest first, each of them the next of the one before."""
        previous = digest_of(connection, after)
        for number, time, note, digest in connection.execute(
            "SELECT version, time, note, digest FROM versions WHERE version > ? ORDER BY version", (after,)
        ).fetchall():
            found = connection.execute(
                "SELECT do, key, text, vector FROM changes WHERE version = ? ORDER BY place", (number,)
            ).fetchall()
            version = Version(number, time, note, tuple(Step(do, key, text) for do, key, text, _ in found))
            vectors = [vector for *_, vector in found]
            after += 1
            if number != after or previous is None or digest != _digest(previous, version, vectors):
                raise DamagedModel(f"{self.path}: version {number} does not follow the one before it; copy it again")
            previous = digest
            yield Recorded(version, vectors, digest)

    def problems(self) -> list[str]:
        """What is wrong with it, looked at to the last byte."""
        try:
            with self.reading() as connection:
                found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
                for first in connection.execute("SELECT first_version FROM about").fetchall():
                    list(self.versions(connection, *first))
        except DamagedModel as damage:
            return [str(damage)]
        return [f"{self.path}: {problem}; copy the model again" for problem in found]

    @contextmanager
    def _opened(self, patience: float, *, doomed: bool = False) -> Iterator[Connection]:
        if self._memory is not None:
            yield self._memory
            return
        assert self.path is not None
        if Path(f"{self.path}-journal").exists():  # none is written in WAL mode, and it could name any file to delete
            raise DamagedModel(
                f"{self.path}-journal: is none of umpteen's files; remove it, and ask where the model comes from"
            )
        address = _address(self.path)
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


def append_version(
    connection: Connection, version: Version, rows: Sequence[int | None], vectors: list[bytes | None], previous: str
) -> str:
    """The version follows the one with the digest `previous`; returns its own."""
    digest = _digest(previous, version, vectors)
    connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", (version.number, version.time, version.note, digest))
    connection.executemany(
        "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (version.number, place, step.do, step.key, row, step.text, vector)
            for place, (step, row, vector) in enumerate(zip(version.steps, rows, vectors, strict=True))
        ),
    )
    return digest


def digest_of(connection: Connection, version: int) -> str | None:
    """Which version this is; two histories that part have other digests from there on."""
    found = connection.execute("SELECT digest FROM versions WHERE version = ?", (version,)).fetchone()
    return None if found is None else str(found[0])


def vectors_at(connection: Connection, version: int) -> dict[str, bytes | None]:
    """The vectors (None: the first one) of all labels that had changed by this version, by key."""
    return dict(
        connection.execute(
            # Of the row that has the maximum, SQLite gives the other columns, too; a join would look up every key.
            "SELECT key, vector FROM (SELECT key, vector, max(version) FROM changes WHERE version <= ? GROUP BY key)",
            (version,),
        ).fetchall()
    )


def read_parts(connection: Connection) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, folder, version, *described in connection.execute(
        "SELECT name, folder, labels_version, about, files FROM parts"
    ):
        try:
            about, files = map(json.loads, described)
        except (ValueError, RecursionError):
            about = files = None
        if not (isinstance(about, dict) and isinstance(files, dict)):
            raise DamagedModel(f"the model's {name} is said to be what no {name} is; do not use this model")
        parts[name] = Part(name, folder, version, about, files)
    return parts


def write_part(connection: Connection, part: Part) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)",
        (part.name, part.folder, part.labels_version, json.dumps(part.about), json.dumps(part.files)),
    )


def drop_part(connection: Connection, name: str) -> None:
    connection.execute("DELETE FROM parts WHERE name = ?", (name,))


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


def _digest(previous: str, version: Version, vectors: list[bytes | None]) -> str:
    content = [previous, version.number, version.time, version.note, version.steps]
    made = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode())
    for vector in vectors:
        made.update(vector or b"")
    return made.hexdigest()


def _address(path: Path) -> str:
    """Never creates a file. A folder that cannot be written is read as it lies there."""
    mode = "mode=rw"
    if not os.access(path.parent, os.W_OK) or not os.access(path, os.W_OK):
        mode = "mode=ro" if Path(f"{path}-wal").exists() else _AS_IT_LIES
    return f"file:{quote(str(path.absolute()))}?{mode}"


def _require_ours(connection: Connection, path: Path, model: str) -> None:
    """Tables as this module makes them and nothing else: no view or trigger of somebody else's runs here."""
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if found != [_APPLICATION, _FORMAT]:
        raise DamagedModel(f"{path}: is no database of this version of umpteen; copy the model again")
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
            raise NotSaved(
                f"{path}: could not be written ({error}); nothing was changed. Free space, or copy the model folder to "
                "a place you may write to"
            ) from error
        if code == sqlite3.SQLITE_CANTOPEN and path is not None and not path.exists():
            raise Replaced from error
        raise DamagedModel(f"{path}: is damaged ({error}); copy the model again") from error
