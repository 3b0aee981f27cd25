"""The binary copy of a dataset: readers stream rows into a Builder once, later opens only map its files.

Every rule about a row (ranges, weights, empty texts, repeated keys) is checked here, for all formats alike.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.sparse import csr_array

from umpteen.data.labels import LabelCatalogue, Relevance, Split, UniqueKeys
from umpteen.data.texts import Texts, TextsWriter
from umpteen.errors import BadFile, BadInput, NotSaved
from umpteen.files.progress import Advance
from umpteen.files.storage import atomic_folder, locked_file

Found = TypeVar("Found")

PREPARED_VERSION = 4
SPLITS = ("train", "validation", "test")
PARTS = ("relevant", "filtered")  # the matrices of a split
MANIFEST = "prepared.json"
ABOUT = ("name", "fingerprint", "labels_are_named", "told")  # what is known of a dataset besides its content
ARRAYS = {"starts": np.int64, "labels": np.int32, "weights": np.float32}  # of a matrix of pairs
GREATEST_WEIGHT = float(np.finfo(np.float32).max)
KEYS_CHEAP_TO_COMPARE = 10_000
_OWN_CACHE: ContextVar[Path | None] = ContextVar("umpteen's own cache", default=None)


class Place(NamedTuple):
    """Where a row was read: what an error must name."""

    path: Path
    line: int

    def error(self, problem: str) -> BadFile:
        return BadFile(self.path, problem, line=self.line)


class Builder(ExitStack):
    """Takes labels, then each split's queries one by one, and writes them as they come; a query may name new labels.

    In memory stay the label keys, and one split's pairs: 12 bytes for each of them.
    """

    def __init__(self, folder: Path, name: str, asked: Mapping[str, str], size: int, progress: Advance) -> None:
        super().__init__()
        self.name, self._folder = name, folder
        self.asked = asked  # which columns count, if somebody has said it
        self._read, self._size, self._progress = 0, size, progress  # bytes of the sources
        texts = (self.enter_context(TextsWriter(folder, name)) for name in ("keys", "labels", "queries"))
        self._keys, self._labels, self._queries = texts
        self._unique = UniqueKeys()
        self.row_of = self._unique.rows
        self._label_lines = array("q")
        self._labels_path: Path | None = None
        self._splits: dict[str, tuple[int, int]] = {}  # first and last + 1 row among the queries
        self._begun: list[_BegunSplit] = []
        self._told: list[str] = []

    def advance(self, size: int) -> None:
        """So many more bytes have been read."""
        self._read += size
        self._progress(min(self._read, self._size), self._size)

    @property
    def labels(self) -> int:
        return len(self.row_of)

    @property
    def labels_are_named(self) -> bool:
        """By the queries, not by a catalogue of their own."""
        return self._labels_path is None

    def begin_labels(self, path: Path) -> None:
        """A catalogue of labels follows; the path is named if none do."""
        self._labels_path = path

    def add_label(self, key: str, text: str, at: Place) -> None:
        if not key.strip():
            raise at.error("the label's key is empty; give it one")
        known = key in self.row_of
        first = self._unique.add(key)
        if first < len(self._label_lines):
            line = f"{self._label_lines[first]:,}" + ("" if known else " (in another Unicode form)")
            problem = f"label key {key!r} stands here for the second time, the first is line {line}"
            raise at.error(f"{problem}; keys must be unique: rename or remove one")
        self._label_lines.append(at.line)
        _append(self._keys, key, "label", at)
        _append(self._labels, text, "label", at)

    def tell(self, guessed: str) -> None:
        """What was guessed of the files, for people; each thing is told once."""
        if guessed and guessed not in self._told:
            self._told.append(guessed)

    def label_row(self, key: str, at: Place, hint: str = "") -> int:
        """The row of a key read earlier; the hint ends the error if there is none."""
        row = self.row_of.get(key)
        if row is None:
            near = difflib.get_close_matches(key, self.row_of, n=1) if self.labels <= KEYS_CHEAP_TO_COMPARE else []
            next_step = f"did you mean {near[0]!r}?" if near else "add it there or correct it here"
            raise at.error(f"label key {key!r} is not among the labels; {next_step}{hint}")
        return row

    def begin(self, split: str, path: Path) -> None:
        """The queries that follow belong to this split; the path is named if none follow."""
        self._require_queries()
        if self._labels_path is not None and self.labels == 0:
            raise BadFile(self._labels_path, "holds no labels; add some")
        self._begun.append(_BegunSplit(split, path, len(self._queries)))

    def add_query(self, text: str, labels: Sequence[int], weights: Sequence[float] | None, at: Place) -> int:
        """The row of a query of the split that was begun, with its label rows; without weights each pair weighs 1.

        Where queries name the labels, all those of one text are one query. A pair given twice counts once, with its
        greater weight.
        """
        split = self._begun[-1]
        query = split.queries
        if self.labels_are_named:
            digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
            query = split.row_of_text.setdefault(digest, query)
        if query == split.queries:
            _append(self._queries, text, "query", at)
            split.queries += 1
        else:
            split.repeated += 1
        if weights is not None and len(weights) != len(labels):
            raise at.error(f"{len(labels):,} labels but {len(weights):,} weights; give each label one weight")
        for label, weight in zip(labels, weights or [1.0] * len(labels), strict=True):
            self._add_pair("relevant", query, label, weight, at)
        return query

    def ignore(self, query: int, label: int, at: Place) -> None:
        """A pair of the split that was begun, by rows, that neither training nor scoring may see."""
        self._add_pair("filtered", query, label, 1.0, at)

    def _add_pair(self, part: str, query: int, label: int, weight: float, at: Place) -> None:
        split = self._begun[-1]
        if not 0 <= query < split.queries:
            there = f"{split.name} has {split.queries:,} queries, rows 0 to {split.queries - 1:,}"
            raise at.error(f"query row {query:,} is out of range: {there}")
        if not 0 <= label < self.labels:
            there = f"there are {self.labels:,} labels, rows 0 to {self.labels - 1:,}"
            raise at.error(f"label row {label:,} is out of range: {there}")
        if not 0 <= weight <= GREATEST_WEIGHT:  # NaN fails every comparison
            raise at.error(f"weight {weight} of label row {label:,} must be a finite number, 0 or greater")
        queries, labels, weights = split.pairs[part]
        queries.append(query)
        labels.append(label)
        weights.append(weight)

    def finish(self) -> None:
        """Close the files and write the manifest, which makes the folder a prepared one."""
        self._require_queries()
        self.close()
        for split in self._begun:
            self._write(split)
        splits = _open_splits(self._folder, self._splits, self.labels)
        fingerprint = content_fingerprint(Texts.open(self._folder, "keys"), Texts.open(self._folder, "labels"), splits)
        about = (self.name, fingerprint, self.labels_are_named, self._told)
        manifest = {"version": PREPARED_VERSION, **dict(zip(ABOUT, about, strict=True)), "splits": self._splits}
        (self._folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    def _require_queries(self) -> None:
        for split in self._begun:
            if split.queries == 0:
                raise BadFile(split.path, f"holds no queries for {split.name}; add some, or remove the file")

    def _write(self, split: _BegunSplit) -> None:
        if self.labels == 0:
            raise BadFile(split.path, "holds no labels; add some")
        if split.repeated:
            self.tell(merging(split.repeated))
        self._splits[split.name] = (split.first, split.first + split.queries)
        for part, pairs in split.pairs.items():
            queries, labels, weights = map(np.asarray, pairs)
            matrix = Relevance.from_pairs(queries, labels, weights, (split.queries, self.labels)).matrix
            for name, values in zip(ARRAYS, (matrix.indptr, matrix.indices, matrix.data), strict=True):
                np.save(self._folder / f"{split.name}.{part}.{name}.npy", values.astype(ARRAYS[name], copy=False))


class _BegunSplit:
    """One split while queries arrive."""

    def __init__(self, name: str, path: Path, first: int) -> None:
        self.name, self.path, self.first, self.queries = name, path, first, 0
        self.row_of_text: dict[bytes, int] = {}  # by digest
        self.repeated = 0  # rows whose text stands in an earlier one
        # A pair is a query, a label and a weight.
        self.pairs = {part: (array("i"), array("i"), array("f")) for part in PARTS}


def merging(rows: int) -> str:
    """What is told of rows whose text stands in an earlier one."""
    return f"{rows:,} rows repeat a text; their labels are merged"


def content_fingerprint(keys: Texts, labels: Texts, splits: Mapping[str, Split]) -> str:
    """A sha256 of everything the dataset says, whatever folder or format it came from."""
    parts = [keys.fingerprint(), labels.fingerprint()]
    for name in SPLITS:
        if name in splits:
            split = splits[name]
            parts += [name, *(part.fingerprint() for part in (split.texts, split.relevance, split.filtered))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def open_prepared(folder: Path) -> dict[str, Any]:
    """What a Dataset is made of, by name; texts and pairs are mapped and not read."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    labels = LabelCatalogue(Texts.open(folder, "keys"), Texts.open(folder, "labels"))
    splits = dict.fromkeys(SPLITS) | _open_splits(folder, manifest["splits"], len(labels))
    return {name: manifest[name] for name in ABOUT} | {"told": tuple(manifest["told"]), "labels": labels, **splits}


def _open_splits(folder: Path, bounds: Mapping[str, Sequence[int]], labels: int) -> dict[str, Split]:
    queries, splits = Texts.open(folder, "queries"), {}
    for name, (first, last) in bounds.items():
        pairs = []
        for part in PARTS:
            starts, rows, weights = (np.load(folder / f"{name}.{part}.{array}.npy", mmap_mode="r") for array in ARRAYS)
            pairs.append(Relevance(csr_array((weights, rows, starts), shape=(last - first, labels))))
        splits[name] = Split(queries.take(np.arange(first, last)), *pairs)
    return splits


def _append(writer: TextsWriter, text: str, kind: str, at: Place) -> None:
    if not text.strip():
        raise at.error(f"the {kind}'s text is empty; give it one, or remove the {kind} everywhere it stands")
    try:
        writer.append(text)
    except BadInput as error:
        raise at.error(str(error)) from None


class Format(Protocol):
    """One on-disk format; a module with these functions is one."""

    def recognises(self, folder: Path) -> bool: ...
    def sources(self, folder: Path) -> list[Path]: ...
    def read(self, folder: Path, into: Builder) -> None: ...


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Binary copies that this thread makes meanwhile go into a folder that goes with its data, not the user's cache."""
    before = _OWN_CACHE.set(folder)
    try:
        yield
    finally:
        _OWN_CACHE.reset(before)


def cache_folder(cache: Path | None = None) -> Path:
    """Where binary copies live: as given, else $UMPTEEN_CACHE, $XDG_CACHE_HOME/umpteen, ~/.cache/umpteen."""
    if (given := cache or _OWN_CACHE.get()) is not None:
        return given
    if chosen := os.environ.get("UMPTEEN_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umpteen"


def prepare(folder: Path, form: Format, asked: Mapping[str, str], cache: Path | None, progress: Advance) -> Path:
    """The prepared copy of a folder or file: made now, or found as it was made if no source has changed since."""
    folder = folder.resolve()
    files = [(path.relative_to(folder).as_posix(), path.stat()) for path in form.sources(folder)]
    # A file may be changed and keep its size and time, but not its inode and the time of its last change of any kind.
    stamps = ((name, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns) for name, stat in files)
    state = [PREPARED_VERSION, str(folder), sorted(asked.items()), *stamps]
    key = hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    target = cache_folder(cache) / "datasets" / f"{folder.name}-{key}"
    total = sum(stat.st_size for _, stat in files)

    def make() -> None:
        shutil.rmtree(target, ignore_errors=True)  # one whose manifest is gone
        with atomic_folder(target) as partial, Builder(partial, folder.name, asked, total, progress) as into:
            form.read(folder, into)
            into.finish()
            into.advance(total)

    return cached(target, lambda: target if (target / MANIFEST).is_file() else None, make)


def cached(path: Path, find: Callable[[], Found | None], make: Callable[[], None]) -> Found:
    """What is found at this path of the cache; if nothing is, one process makes it while the others wait."""
    if (found := find()) is not None:
        return found
    try:
        with locked_file(path.with_name(f"{path.name}.lock"), wait=None):
            if find() is None:  # another process may have made it while we waited
                make()
            found = find()
    except (NotSaved, OSError) as error:
        advice = "free space or set UMPTEEN_CACHE to another folder and run again"
        raise NotSaved(f"{path}: could not be made ({error}); {advice}") from error
    if found is None:
        raise NotSaved(f"{path}: was written but cannot be read back; is the disk in order?")
    return found
