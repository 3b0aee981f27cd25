"""The binary copy of a dataset: readers stream rows into a Builder once, later opens only map its files.

Every rule about a row (ranges, weights, empty texts, repeated keys) is checked here, for all formats alike.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from array import array
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_array, csr_array

from umpteen.data.labels import LabelCatalogue, Relevance, Split, UniqueKeys
from umpteen.data.texts import Texts, TextsWriter
from umpteen.errors import BadFile, BadInput, NotSaved
from umpteen.files.progress import Advance
from umpteen.files.storage import atomic_folder, locked_file

PREPARED_VERSION = 2
SPLITS = ("train", "validation", "test")
MANIFEST = "prepared.json"
GREATEST_WEIGHT = float(np.finfo(np.float32).max)
KEYS_CHEAP_TO_COMPARE = 10_000


class Place(NamedTuple):
    """Where a row was read: what an error must name."""

    path: Path
    line: int

    def error(self, problem: str) -> BadFile:
        return BadFile(self.path, problem, line=self.line)


class Builder:
    """Takes labels first, then each split's queries one by one, and writes them as they come.

    In memory stay the label keys, and one split's label rows: 8 bytes for each relevant pair.
    """

    def __init__(self, folder: Path, name: str, size: int = 0, progress: Advance | None = None) -> None:
        self.name = name
        self._folder = folder
        self._read, self._size, self._progress = 0, size, progress  # bytes of the sources
        self._files = ExitStack()
        self._keys = self._files.enter_context(TextsWriter(folder, "keys"))
        self._labels = self._files.enter_context(TextsWriter(folder, "labels"))
        self._queries = self._files.enter_context(TextsWriter(folder, "queries"))
        self._unique = UniqueKeys()
        self.row_of = self._unique.rows
        self._label_lines = array("q")
        self._labels_path = folder
        self._splits: dict[str, tuple[int, int]] = {}  # first and last + 1 row among the queries
        self._open: _OpenSplit | None = None
        self._told: list[str] = []
        self.labels_are_named = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._files.__exit__(*raised)

    def advance(self, size: int) -> None:
        """So many more bytes have been read."""
        self._read += size
        if self._progress is not None:
            self._progress(min(self._read, self._size), self._size)

    @property
    def labels(self) -> int:
        return len(self.row_of)

    def begin_labels(self, path: Path) -> None:
        """Labels follow; the path is named if none do."""
        self._labels_path = path

    def add_label(self, key: str, text: str, at: Place) -> None:
        if not key.strip():
            raise at.error("the label's key is empty; give it one")
        known = key in self.row_of
        first = self._unique.add(key)
        if first < len(self._label_lines):
            same = "" if known else " (in another Unicode form)"
            raise at.error(
                f"label key {key!r} stands here for the second time, the first is line {self._label_lines[first]:,}"
                f"{same}; keys must be unique: rename or remove one"
            )
        self._label_lines.append(at.line)
        _append(self._keys, key, "label", at)
        _append(self._labels, text, "label", at)

    def tell(self, guessed: str) -> None:
        """What was guessed of the files, for people; each thing is told once."""
        if guessed and guessed not in self._told:
            self._told.append(guessed)

    def name_labels(self) -> None:
        """The labels are those that queries have, not those of a catalogue."""
        self.labels_are_named = True

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
        self._end_split()
        if self.labels == 0:
            raise BadFile(self._labels_path, "holds no labels; add some")
        self._open = _OpenSplit(split, path, len(self._queries))

    def add_query(self, text: str, labels: Sequence[int], weights: Sequence[float] | None, at: Place) -> None:
        """A query of the split that was begun, and its label rows; without weights each pair weighs 1."""
        split = self._open
        assert split is not None
        if weights is not None and len(weights) != len(labels):
            raise at.error(f"{len(labels):,} labels but {len(weights):,} weights; give each label one weight")
        merged: dict[int, float] = {}
        for label, weight in zip(labels, weights or [1.0] * len(labels), strict=True):
            self._check_label(label, at)
            if not 0 <= weight <= GREATEST_WEIGHT:  # NaN fails every comparison
                raise at.error(f"weight {weight} of label row {label:,} must be a finite number, 0 or greater")
            merged[label] = max(weight, merged.get(label, 0.0))
        for label in sorted(merged):
            split.labels.append(label)
            split.weights.append(merged[label])
        split.starts.append(len(split.labels))
        _append(self._queries, text, "query", at)

    def ignore(self, query: int, label: int, at: Place) -> None:
        """A pair of this split, by rows, that neither training nor scoring may see; its query was added before."""
        split = self._open
        assert split is not None
        if not 0 <= query < split.queries:
            raise at.error(
                f"query row {query:,} is out of range: {split.name} has {split.queries:,} queries, "
                f"rows 0 to {split.queries - 1:,}"
            )
        self._check_label(label, at)
        split.filtered_queries.append(query)
        split.filtered_labels.append(label)

    def finish(self) -> None:
        """Close the files and write the manifest, which makes the folder a prepared one."""
        self._end_split()
        self._files.close()
        splits = _open_splits(self._folder, self._splits, self.labels)
        fingerprint = content_fingerprint(Texts.open(self._folder, "keys"), Texts.open(self._folder, "labels"), splits)
        about = About(self.name, fingerprint, self.labels_are_named, tuple(self._told))
        manifest = {"version": PREPARED_VERSION, **about._asdict(), "splits": self._splits}
        (self._folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    def _end_split(self) -> None:
        split, self._open = self._open, None
        if split is None:
            return
        if split.queries == 0:
            raise BadFile(split.path, f"holds no queries for {split.name}; add some, or remove the file")
        self._splits[split.name] = (split.first, split.first + split.queries)
        filtered = split.filtered(self.labels)
        _save(self._folder, f"{split.name}.relevant", split.starts, split.labels, split.weights)
        _save(self._folder, f"{split.name}.filtered", filtered.indptr, filtered.indices, filtered.data)

    def _check_label(self, label: int, at: Place) -> None:
        if not 0 <= label < self.labels:
            raise at.error(
                f"label row {label:,} is out of range: there are {self.labels:,} labels, rows 0 to {self.labels - 1:,}"
            )


@dataclass
class _OpenSplit:
    """One split while its queries arrive."""

    name: str
    path: Path
    first: int
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    labels: array[int] = field(default_factory=lambda: array("i"))
    weights: array[float] = field(default_factory=lambda: array("f"))
    filtered_queries: array[int] = field(default_factory=lambda: array("i"))
    filtered_labels: array[int] = field(default_factory=lambda: array("i"))

    @property
    def queries(self) -> int:
        return len(self.starts) - 1

    def filtered(self, labels: int) -> csr_array:
        """The pairs to ignore, each once, whatever the order in which they came."""
        pairs = (np.asarray(self.filtered_queries), np.asarray(self.filtered_labels))
        ones = np.ones(len(self.filtered_labels), dtype=np.float32)
        matrix = coo_array((ones, pairs), shape=(self.queries, labels)).tocsr()
        matrix.data[:] = 1  # a pair given twice was summed
        return matrix


def content_fingerprint(keys: Texts, labels: Texts, splits: Mapping[str, Split]) -> str:
    """A sha256 of everything the dataset says, whatever folder or format it came from."""
    parts = [keys.fingerprint(), labels.fingerprint()]
    for name in SPLITS:
        if name in splits:
            split = splits[name]
            parts += [name, *(part.fingerprint() for part in (split.texts, split.relevance, split.filtered))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class About(NamedTuple):
    """What is known of a dataset besides its content."""

    name: str
    fingerprint: str
    labels_are_named: bool = False  # by the queries, not by a catalogue of their own
    told: tuple[str, ...] = ()  # what was guessed of its files


def open_prepared(folder: Path) -> tuple[About, LabelCatalogue, dict[str, Split]]:
    """A prepared dataset's parts; texts and pairs are mapped and not read."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    about = About(*(manifest[name] for name in About._fields))
    labels = LabelCatalogue(Texts.open(folder, "keys"), Texts.open(folder, "labels"))
    return about, labels, _open_splits(folder, manifest["splits"], len(labels))


def _open_splits(folder: Path, bounds: Mapping[str, Sequence[int]], labels: int) -> dict[str, Split]:
    queries = Texts.open(folder, "queries")
    return {
        name: Split(
            queries.take(np.arange(first, last)),
            _open_relevance(folder, f"{name}.relevant", labels),
            _open_relevance(folder, f"{name}.filtered", labels),
        )
        for name, (first, last) in bounds.items()
    }


def _save(folder: Path, name: str, starts: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> None:
    np.save(folder / f"{name}.starts.npy", np.asarray(starts, dtype=np.int64))
    np.save(folder / f"{name}.labels.npy", np.asarray(labels, dtype=np.int32))
    np.save(folder / f"{name}.weights.npy", np.asarray(weights, dtype=np.float32))


def _open_relevance(folder: Path, name: str, labels: int) -> Relevance:
    starts, rows, weights = (
        np.load(folder / f"{name}.{part}.npy", mmap_mode="r") for part in ("starts", "labels", "weights")
    )
    return Relevance.from_arrays(starts, rows, weights, labels)


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


def cache_folder(cache: Path | None = None) -> Path:
    """Where binary copies live: as given, else $UMPTEEN_CACHE, $XDG_CACHE_HOME/umpteen, ~/.cache/umpteen."""
    if cache is not None:
        return cache
    if chosen := os.environ.get("UMPTEEN_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umpteen"


def prepare(
    folder: Path, form: Format, *, asked: object = None, cache: Path | None = None, progress: Advance | None = None
) -> Path:
    """The prepared copy of a folder or file: made now, or found as it was made if no source has changed since.

    `asked` is what the format was told besides.
    """
    folder = folder.resolve()
    files = [(path.relative_to(folder).as_posix(), path.stat()) for path in form.sources(folder)]
    # A file may be changed and keep its size and time, but not its inode and the time of its last change of any kind.
    stamps = ((name, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns) for name, stat in files)
    state = [PREPARED_VERSION, str(folder), asked, *stamps]
    key = hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    target = cache_folder(cache) / "datasets" / f"{folder.name}-{key}"
    if (target / MANIFEST).is_file():
        return target
    total = sum(stat.st_size for _, stat in files)
    try:
        with locked_file(target.with_name(f"{target.name}.lock"), wait=None):
            if (target / MANIFEST).is_file():  # another process has made it while we waited
                return target
            with atomic_folder(target) as partial, Builder(partial, folder.name, total, progress) as into:
                form.read(folder, into)
                into.finish()
                into.advance(total)
    except (NotSaved, OSError) as error:
        raise NotSaved(f"{error}; set UMPTEEN_CACHE to a folder that can hold a binary copy of the dataset") from error
    return target
