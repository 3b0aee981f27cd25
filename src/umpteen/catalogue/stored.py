"""labels.jsonl, one label a line, and beside it where each line starts and which row a key has.

So a million labels open without being read: a line is parsed when somebody asks for it. Keys are found by sorted 64-bit
hashes. Lines of labels that were not trained, or are retired, say so, and labels.states.npy has the same for all rows.
"""

import json
import mmap
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from umpteen.catalogue.columns import same_texts
from umpteen.catalogue.live import ORIGINS, TRAINED, LiveLabels, Stop, never
from umpteen.data.labels import LabelCatalogue
from umpteen.errors import DamagedModel

LABELS, OFFSETS, KEYS, STATES = "labels.jsonl", "labels.offsets.npy", "labels.keys.npy", "labels.states.npy"
VECTORS = "vectors.safetensors"
VERSION = "catalogue_version"  # the manifest's setting for the version of the labels in labels.jsonl; missing: 0
LABEL_FILES = (LABELS, OFFSETS, KEYS, STATES)
_RETIRED = 4  # added to a state's origin
_LINES_AT_A_TIME = 65_536


def write_labels(folder: Path, labels: LiveLabels) -> None:
    """All rows of the labels, in their order, as the first ones of a new model folder."""
    lengths: list[int] = []
    hashes: list[int] = []
    states = labels.origins().astype(np.uint8) + np.uint8(_RETIRED) * ~labels.active
    write = json.JSONEncoder(ensure_ascii=False).encode
    with (folder / LABELS).open("wb") as file:
        for key, text, state in zip(labels.keys, labels.texts, states.tolist(), strict=True):
            fields: dict[str, Any] = {"key": key, "text": text}
            if state % _RETIRED != TRAINED:
                fields["origin"] = ORIGINS[state % _RETIRED]
            if state >= _RETIRED:
                fields["retired"] = True
            line = write(fields).encode() + b"\n"
            file.write(line)
            lengths.append(len(line))
            hashes.append(_hash(key))
    unsorted = np.array(hashes, dtype=np.uint64)
    order = np.argsort(unsorted, kind="stable")
    np.save(folder / OFFSETS, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    np.save(folder / KEYS, np.stack([unsorted[order], order.astype(np.uint64)]))
    if states.any():
        np.save(folder / STATES, states)


def read_labels(folder: Path, version: int) -> LiveLabels:
    """The labels of a model folder, mapped; those of a folder of format version 1 are read."""
    if not (folder / OFFSETS).is_file():
        return LiveLabels(_read_all(folder / LABELS), version=version)
    first = StoredLabels(folder)
    if not (folder / STATES).is_file():
        return LiveLabels(first, version=version)
    states = np.load(folder / STATES)
    if states.shape != (len(first),):
        raise DamagedModel(f"{folder / STATES}: has {len(states):,} rows but there are {len(first):,} labels")
    return LiveLabels(first, version=version, active=states < _RETIRED, origins=states % np.uint8(_RETIRED))


def read_vectors(folder: Path) -> Tensor:
    """Mapped, not read: a label's vector comes into memory when it is first scored."""
    with safe_open(folder / VECTORS, framework="pt") as file:
        vectors: Tensor = file.get_tensor("vectors")
    return vectors


def version_of(manifest: dict[str, Any]) -> int:
    """The version of the labels that a model folder was written with."""
    return int(manifest["settings"].get(VERSION, 0))


def _read_all(path: Path) -> LabelCatalogue:
    keys, texts = [], []
    with path.open(encoding="utf-8") as file:
        for line in file:
            label = json.loads(line)
            keys.append(label["key"])
            texts.append(label["text"])
    return LabelCatalogue(keys, texts)


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


class StoredLabels:
    """The labels of a folder, mapped and not read."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / LABELS
        self._offsets: NDArray[np.int64] = np.asarray(np.load(folder / OFFSETS, mmap_mode="r"))
        hashes_and_rows = np.asarray(np.load(folder / KEYS, mmap_mode="r"))
        self._hashes, self._rows = hashes_and_rows  # by rising hash
        if not len(self._offsets) - 1 == len(self._hashes) > 0 or self._offsets[-1] != path.stat().st_size:
            raise DamagedModel(f"{path}: is not what {OFFSETS} and {KEYS} say; copy the model again")
        with path.open("rb") as file:
            self._blob = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.keys: Sequence[str] = _Field(self, "key")
        self.texts: Sequence[str] = _Field(self, "text")

    def __len__(self) -> int:
        return len(self._hashes)

    def line(self, row: int) -> dict[str, Any]:
        """What labels.jsonl says of a row."""
        start, end = self._offsets[row : row + 2].tolist()
        try:
            found: dict[str, Any] = json.loads(str(self._blob[start:end], "utf-8"))
        except ValueError as error:  # in a file too large to be checked at every load
            raise DamagedModel(f"{self._path}, line {row + 1:,}: is damaged ({error}); copy the model again") from error
        return found

    def lines(self) -> Iterator[dict[str, Any]]:
        """What labels.jsonl says of all rows."""
        for first in range(0, len(self), _LINES_AT_A_TIME):
            yield from map(json.loads, self._block(first).decode().split("\n")[:-1])

    def find(self, key: str) -> int | None:
        """The label's row, or None if there is no such key."""
        wanted = np.uint64(_hash(key))
        place = int(self._hashes.searchsorted(wanted))
        while place < len(self) and self._hashes[place] == wanted:
            row = int(self._rows[place])
            if self.keys[row] == key:
                return row
            place += 1  # another key with the same hash
        return None

    def matching(self, search: str, stop: Stop = never) -> Iterator[int]:
        """Rows, ascending, whose key or text holds this, whatever the case; no more of them once `stop` says so."""
        wanted = search.casefold()
        needle = json.dumps(search, ensure_ascii=False)[1:-1].casefold()  # as it stands in a line
        for first in range(0, len(self), _LINES_AT_A_TIME):
            if stop():
                return
            block = self._block(first).decode().casefold()
            row, line = first, 0
            place = block.find(needle)
            while place >= 0 and not stop():  # a needle such as "key" is in every line, and in no key
                row += block.count("\n", line, place)
                label = self.line(row)
                if wanted in label["text"].casefold() or wanted in label["key"].casefold():
                    yield row
                line, row = block.index("\n", place) + 1, row + 1
                place = block.find(needle, line)

    def _block(self, first: int) -> bytes:
        last = min(first + _LINES_AT_A_TIME, len(self))
        return self._blob[self._offsets[first] : self._offsets[last]]


class _Field(Sequence[str]):
    """One field of all lines."""

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
        return str(self._labels.line(int(row) % len(self))[self._name])

    def __iter__(self) -> Iterator[str]:
        return (line[self._name] for line in self._labels.lines())

    def __eq__(self, other: object) -> bool:
        return same_texts(self, other)

    __hash__ = None  # type: ignore[assignment]
