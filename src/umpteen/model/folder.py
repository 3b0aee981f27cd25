"""A model folder: what never changes is files under names of their own, what changes is one database beside them.

manifest.json names the model that counts. It is replaced in one step; models and parts nobody reads any more are swept.
A folder may come from a stranger: it holds no links, and no name in it leads outside (docs/reference/model-folder.md).
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path, PurePosixPath
from sqlite3 import Connection
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from umpteen import __version__
from umpteen.errors import BadFile, BadInput, DamagedModel, NotSaved, UmpteenError
from umpteen.files.progress import Advance, silent
from umpteen.files.storage import atomic_folder, digest_of, is_taken, unfinished_target, write_atomically
from umpteen.model.changes import Part, Replaced, Store, drop_parts, has_version, is_database, read_parts, write_part

FORMAT = 3
MANIFEST, MARK = "manifest.json", "part.json"
REPORT, RECIPE, CARD = "report.json", "recipe.toml", "README.md"
RANKER, INDEX, CALIBRATION, RUNTIME = "ranker", "index", "calibration", "runtime"
_REMOVED_BY = {RANKER: "umpteen rerank remove", INDEX: "umpteen index remove", RUNTIME: "umpteen export --to torch"}
_KEEP_HASH = "INSERT OR REPLACE INTO verified VALUES (?, ?, ?)"
ALWAYS_HASHED = 8 * 2**20  # bytes; larger files are hashed once after a change, else judged by size and header
_ID = re.compile(r"[0-9a-f]{8}")
OURS = re.compile(rf"(model|{RANKER}|{INDEX}|{CALIBRATION}|{RUNTIME})-({_ID.pattern})(\.db)?")

# What code may raise that reads files which are whole, but of a stranger's making.
_UNREADABLE: tuple[type[Exception], ...] = (UmpteenError, OSError, ValueError, LookupError, ArithmeticError)
_UNREADABLE += (AttributeError, TypeError, RuntimeError, SafetensorError)

_SECTIONS = {  # of the card, for parts that are there
    RANKER: """
## Ranker

N-grams of a text (linear weights a label) and similar training texts (which vote for their labels) put the encoder's
first labels in order; a score is (1 − weight) · inner product + weight · the ranker's score, of which the votes have
the share that is told below. `Classifier.load(folder, ranker=False)` leaves it out.
""",
    CALIBRATION: """
## Probabilities

Learnt from texts that the model was not fitted on. From the threshold of a precision on, at least that share of the
labels given to new texts of their kind is right, with the confidence that is told below.
""",
    RUNTIME: """
## Runtime

Where onnxruntime is installed (`pip install 'umpteen[onnx]'`) it encodes texts, else torch does. The agreement is the
share of texts that get the same best labels from both. `Classifier.load(folder, runtime=False)` leaves it out.
""",
}

Files = dict[str, dict[str, Any]]  # size and SHA-256 by name
Stamp = tuple[tuple[int, int, int], ...]  # of some files: inode, time of change in nanoseconds, size
Hashed = tuple[str, str, str]  # a file, its stamp then, and its SHA-256
Result = TypeVar("Result")


class ModelFolder:
    """A folder, and the model that its manifest names."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.model: str = self.manifest["model"]
        self.trained = self.path / f"model-{self.model}"
        self.database = self.path / f"model-{self.model}.db"
        self.store = Store(self.database, self.model, self.is_current)
        self._hashed: list[Hashed] = []  # large files that were found to be whole, and are not known as such yet

    def is_current(self) -> bool:
        return bool(read_manifest(self.path)["model"] == self.model)

    def stamp(self) -> Stamp:
        """Changes with whatever is written here: three looks at the disk."""
        return tuple(stamp_of(file) for file in (self.path / MANIFEST, f"{self.database}", f"{self.database}-wal"))

    @contextmanager
    def adding(self, name: str) -> Iterator["NewPart"]:
        """A part to write and to describe, current when the body ends well; nothing is changed if it does not."""
        refuse_links(self.path)
        target = self.path / f"{name}-{secrets.token_hex(4)}"
        with ExitStack() as held, atomic_folder(target) as folder:
            new = NewPart(folder)
            yield new
            mark(folder, name, new.about)
            files = listed(folder, new.living)
            connection = held.enter_context(self.changing())  # until the folder is in its place
            there = read_parts(connection)
            for other, needed in new.needs.items():
                if there.get(other) != needed:
                    reason = f"has another {other} by now, so this {name} holds no more"
                    raise NotSaved(f"{self.path}: {reason}; make it again")
            if not has_version(connection, new.labels_version):
                raise NotSaved(f"{self.path}: its labels were put back meanwhile; make the {name} again")
            new.replaced = there.get(name)
            write_part(connection, Part(name, target.name, new.labels_version, new.about, files))
            drop_parts(connection, new.replaces)
        self._clean_up_after(name)

    def drop(self, name: str, *others: str) -> Part:
        """There is no such part from now on, and none of the others, if they are there; returns what it was."""
        refuse_links(self.path)
        with self.changing() as connection:
            part = read_parts(connection).get(name)
            if part is None:
                raise BadInput(f"{self.path} has no {name} to remove")
            drop_parts(connection, (name, *others))
        self._clean_up_after(name)
        return part

    def _clean_up_after(self, name: str) -> None:
        """What the part has replaced is removed, and the card says what the parts are."""
        self.sweep()
        card = self.path / CARD
        if name in _SECTIONS and card.is_file():
            with suppress(Replaced), self.store.reading() as connection:  # else the card is another model's
                parts = checked_parts(connection).values()
                write_atomically(card, card_with(card.read_text("utf-8", errors="replace"), parts))

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """A transaction on this very model."""
        try:
            with self.store.changing() as connection:
                yield connection
        except Replaced:
            raise NotSaved(f"{self.path}: holds another model by now; nothing was changed, try again") from None

    def sweep(self) -> None:
        """Removes what was replaced and nobody can be about to read; what somebody may need is left for later."""
        with suppress(UmpteenError, Replaced, OSError):
            with self.store.reading() as connection:
                needed = self._names(connection)
            if not self.store.nobody_reads_older():
                return
            with self.store.changing(0.0) as connection:  # nobody puts a part into its place meanwhile
                if self._names(connection) == needed:  # else somebody may be reading what came in between
                    for path in list(self.path.iterdir()):
                        if path.name not in needed:
                            remove_if_ours(path)
                    gone = f"substr(file, 1, instr(file, '/') - 1) NOT IN ({', '.join('?' * len(needed))})"
                    connection.execute(f"DELETE FROM verified WHERE {gone}", [*needed])

    def _names(self, connection: Connection) -> set[str]:
        parts = (part.folder for part in read_parts(connection).values())
        return {self.trained.name, f"{self.trained.name}.db", *parts}

    def members(self, connection: Connection) -> list[str]:
        """The manifest, the card, the database, and all that is listed: what a copy of the model needs."""
        groups = [(self.trained.name, self.manifest["files"])]
        groups += [(part.folder, part.files) for part in checked_parts(connection).values()]
        return [MANIFEST, CARD, self.database.name, *(f"{folder}/{file}" for folder, files in groups for file in files)]

    def require_whole(self, connection: Connection, parts: Iterable[Part] = (), only: tuple[str, ...] = ("",)) -> None:
        """Refuses damaged files, as far as `problems` sees without reading every byte."""
        for problem in self.problems(connection, parts, only=only):
            raise DamagedModel(problem)

    def problems(
        self,
        connection: Connection,
        parts: Iterable[Part],
        *,
        every_byte: bool = False,
        only: tuple[str, ...] = ("",),
        progress: Advance = silent,
    ) -> Iterator[str]:
        """What is not as the manifest and the parts say, one line for each file whose path begins with one of `only`.

        Small files are hashed, large ones if they have changed since they last were or if every byte is to be looked
        at; else these are judged by size and header. Advance counts bytes.
        """
        known = set(connection.execute("SELECT * FROM verified"))
        groups = [(self.trained.name, self.manifest["files"], "copy the model again, or train it again")]
        for part in parts:
            other = f", or remove it (`{_REMOVED_BY[part.name]}`)" if part.name in _REMOVED_BY else ""
            groups.append((part.folder, part.files, f"make the {part.name} again{other}"))
        total = sum(file["bytes"] for _, files, _ in groups for file in files.values())
        done = 0
        for folder, files, advice in groups:
            for name, expected in files.items():
                at = f"{folder}/{name}"
                problem = self._problem(at, expected, known, every_byte) if at.startswith(only) else None
                if problem is not None:
                    yield f"{self.path / at}: {problem}; {advice}"
                done += expected["bytes"]
                progress(done, total)

    def _problem(self, name: str, expected: dict[str, Any], known: set[Hashed], every_byte: bool) -> str | None:
        path = self.path / name
        if not path.is_file():
            return "is missing"
        stamp = stamp_of(path)  # before it is read: what is written to it meanwhile gives it another
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"has {size:,} bytes instead of {expected['bytes']:,}"
        is_large, hashed = size > ALWAYS_HASHED, (name, str(stamp), expected["sha256"])
        if is_large and path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="numpy"):
                    pass
            except SafetensorError as error:
                return f"has a damaged header ({error})"
        if is_large and not every_byte and (hashed in known or not os.access(path.parent, os.W_OK)):
            return None
        if sha256_of(path) != expected["sha256"]:
            return "was altered, its SHA-256 does not match"
        if is_large:
            self._hashed.append(hashed)
        return None

    def keep_hashes(self) -> None:
        """What was hashed need not be again; where that cannot be kept at once, nothing is lost but time."""
        if self._hashed:
            with suppress(UmpteenError, Replaced), self.store.changing(0.0) as connection:
                connection.executemany(_KEEP_HASH, self._hashed)
                self._hashed.clear()


@dataclass
class NewPart:
    folder: Path
    labels_version: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    living: str | None = None  # a subfolder that changes in use (a database), so nothing in it is listed
    needs: dict[str, Part | None] = field(default_factory=dict)  # other parts that it was made with
    replaces: tuple[str, ...] = ()  # other parts that hold no more
    replaced: Part | None = None  # whose place it has taken


def at_one_moment(path: Path | str, read: Callable[[ModelFolder, Connection], Result]) -> Result:
    """What `read` finds in one snapshot of the model that counts; whatever it cannot read is a damaged model."""
    while True:
        folder = ModelFolder(path)
        refuse_links(folder.path)
        try:
            with folder.store.reading() as connection:
                try:
                    return read(folder, connection)
                except (DamagedModel, NotSaved):
                    raise
                except _UNREADABLE as error:
                    raise DamagedModel(f"{path}: cannot be loaded although its files are whole: {error}") from error
        except (Replaced, DamagedModel, OSError) as error:  # its files may be swept as soon as it counts no more
            if not folder.is_current():
                continue
            if not isinstance(error, Replaced):
                raise
            raise DamagedModel(f"{folder.store.path}: is missing; copy the model again, or train it again") from None


def card_with(card: str, parts: Iterable[Part]) -> str:
    """The card with its last sections saying what these are, and without others; the rest stays as it is."""
    there = {part.name: part.about for part in parts}
    for section in _SECTIONS.values():
        card = card.partition(section)[0].rstrip() + "\n"
    for name, section in _SECTIONS.items():
        if name in there:
            lines = [f"- {key.replace('_', ' ')}: {value}" for key, value in there[name].items()]
            card = "\n".join([card + section, *lines, ""])
    return card


def has_part(path: Path | str, name: str) -> bool:
    return at_one_moment(path, lambda folder, connection: name in checked_parts(connection))


def checked_parts(connection: Connection) -> dict[str, Part]:
    """The current parts, none of whose names leads outside."""
    parts = read_parts(connection)
    for part in parts.values():
        ours = OURS.fullmatch(part.folder)
        if ours is None or ours[1] != part.name or ours[3]:
            raise DamagedModel(f"the model's {part.name} is said to be in {part.folder!r}; do not use this model")
        if not has_version(connection, part.labels_version):
            lost = f"was made with version {part.labels_version} of the labels, which is not there"
            raise DamagedModel(f"{part.folder}: {lost}; make the {part.name} again")
        _require_confined(part.files, part.folder)
    return parts


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, if it is whole and of this format."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise BadFile(folder, "there is no such model folder; `umpteen train` makes one")
    try:
        content: dict[str, Any] = json.loads(read_plainly(path))
        found, model = content["format"], content.get("model")
    except FileNotFoundError:
        reason = "this is no umpteen model, or it was not copied whole"
        raise DamagedModel(f"{folder}: {MANIFEST} is missing; {reason}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedModel(f"{path}: is damaged ({error!r}); copy the model again, or train it again") from error
    if found != FORMAT:
        both = f"it was written by umpteen {content.get('umpteen', '(unknown)')}, this is {__version__}"
        advice = "use that version, or train it again"
        raise DamagedModel(f"{path}: format {found!r} found, {FORMAT} expected; {both}: {advice}")
    if content.get("checksum") != checksum_of(content) or not (isinstance(model, str) and _ID.fullmatch(model)):
        raise DamagedModel(f"{path}: was altered, its checksum does not match; copy the model again, or train it again")
    if not all(isinstance(content.get(name), dict) for name in ("settings", "files")):
        raise DamagedModel(f"{path}: has no settings or no list of files; copy the model again, or train it again")
    _require_confined(content["files"], MANIFEST)
    return content


def write_manifest(folder: Path, model: str, settings: dict[str, Any], files: Files) -> None:
    """From here on, this is the model that counts."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content: dict[str, Any] = {"format": FORMAT, "umpteen": __version__, "created": now}
    content |= {"model": model, "settings": settings, "files": files}
    content["checksum"] = checksum_of(content)
    write_atomically(folder / MANIFEST, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def refuse_links(folder: Path | str) -> None:
    """A model folder holds files and folders of its own, and nothing that leads elsewhere."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:  # databases in use make and remove files
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                refuse_links(entry.path)
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                reason = f"{entry.path}: is a link or no file; a model folder holds its own files only"
                raise DamagedModel(f"{reason}. Nothing was changed: remove it, and ask where the model comes from")


def verify(path: Path | str, progress: Advance = silent) -> list[str]:
    """Every byte of a model folder, its database included: one line for each problem."""

    def look(folder: ModelFolder, connection: Connection) -> list[str]:
        parts = checked_parts(connection).values()
        found = list(folder.problems(connection, parts, every_byte=True, progress=progress))
        for part in parts:
            mark_of_it, digest = folder.path / part.folder / MARK, _digest_of(part.about)
            is_whole = not any(problem.startswith(f"{mark_of_it}:") for problem in found)
            if is_whole and _read_mark(mark_of_it.parent).get("about", digest) != digest:
                said = f"what it says of the {part.name} was altered; make the {part.name} again"
                found.append(f"{folder.store.path}: {said}")
        found += folder.store.problems()
        if found and not folder.is_current():  # its files may be swept: the new one is looked at
            raise Replaced
        return found

    return at_one_moment(path, look)


def checksum_of(content: dict[str, Any]) -> str:
    """Of everything but the checksum itself, however the JSON is laid out."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def mark(folder: Path, name: str, about: dict[str, Any] | None = None) -> None:
    """Says whose folder this is, as only what has a mark is ever swept; and what the database says of a part."""
    content = {"umpteen": name} if about is None else {"umpteen": name, "about": _digest_of(about)}
    (folder / MARK).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _digest_of(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def remove_if_ours(path: Path) -> None:
    """Removes a model, a part, or what a killed process left of one: by its name, its mark, and unless it is in use."""
    target = unfinished_target(path)
    ours = OURS.fullmatch(path.name if target is None else target)
    if ours is None or path.is_symlink():
        return
    if ours[3] and path.is_file():
        journal = Path(f"{path}-journal")  # nobody opens it beside one, which a kill has left while it was deleted
        if target is not None:
            path.unlink()
        elif is_database(path) and (journal.is_file() or Store(path, ours[2]).is_at_rest()):
            for name in (journal, Path(f"{path}-wal"), Path(f"{path}-shm"), path):
                name.unlink(missing_ok=True)
    elif not ours[3] and path.is_dir() and not any(is_taken(lock) for lock in path.rglob("*.lock")):
        database = path.with_name(f"{path.name}.db")  # only a model has one
        if target is not None or _read_mark(path).get("umpteen") == ours[1]:
            if database.exists():
                remove_if_ours(database)
            if not database.exists():  # else somebody is about to read it
                shutil.rmtree(path, ignore_errors=True)


def _read_mark(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_plainly(folder / MARK))
        return found if isinstance(found, dict) else {}
    return {}


def keep_hashes_of(connection: Connection, folder: Path, files: Files) -> None:
    """Of files that were listed a moment ago: the first load need not hash the large ones again."""
    large = {name: file["sha256"] for name, file in files.items() if file["bytes"] > ALWAYS_HASHED}
    hashed = [(f"{folder.name}/{name}", str(stamp_of(folder / name)), sha256) for name, sha256 in large.items()]
    connection.executemany(_KEEP_HASH, hashed)


def listed(folder: Path, living: str | None = None) -> Files:
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (living is None or not path.is_relative_to(folder / living))
    }


def weights_of(files: Files) -> str:
    """A digest of the encoder's arrays, as a model's files are listed: what was made of others does not hold."""
    arrays = {name: file["sha256"] for name, file in files.items() if re.fullmatch(r"encoder/.*\.safetensors", name)}
    return digest_of(arrays)[:32]


def stamp_of(path: Path | str) -> tuple[int, int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def _require_confined(files: Mapping[str, Any], where: str) -> None:
    for name, file in files.items():
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
            raise DamagedModel(f"{where}: lists {name!r}, which is no file of the model; do not use this model")
        if not (isinstance(file, dict) and isinstance(file.get("bytes"), int) and isinstance(file.get("sha256"), str)):
            raise DamagedModel(f"{where}: says nothing of the size and SHA-256 of {name!r}; copy the model again")


def sha256_of(path: Path) -> str:
    """In hexadecimal, read in blocks, as `read_plainly` reads."""
    with _opened_plainly(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_plainly(path: Path) -> bytes:
    """The file itself, never what a link in its place leads to."""
    with _opened_plainly(path) as file:
        return file.read()


def _opened_plainly(path: Path) -> BufferedReader:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
