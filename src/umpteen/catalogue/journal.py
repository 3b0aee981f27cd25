"""The versions of a model's labels on disk: catalogue/NNNNNNNN.json, and its labels' vectors in NNNNNNNN.safetensors.

Versions are appended and never altered. The .json comes last, by one rename: what has it is whole, what has not never
happened. Each names the model it belongs to and the SHA-256 of the version before it.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from umpteen.catalogue.changes import Step, Version
from umpteen.catalogue.lock import LOCK, locked
from umpteen.errors import DamagedModel, NotSaved
from umpteen.manifest import CATALOGUE, MANIFEST, checksum_of, read_manifest
from umpteen.stamps import NOTHING_THERE, Stamp, file_stamp
from umpteen.storage import write_atomically

_ADVICE = "copy the model folder again; without the catalogue folder it is the model as it was written"


class Replaced(Exception):
    """Another model has taken the place of the one that was loaded; nothing was written."""


class Recorded(NamedTuple):
    """A version as it was read."""

    version: Version
    vectors: Tensor | None  # of the steps that brought a new text, in their order
    digest: str  # SHA-256 of its file


class Journal:
    """The versions of the labels of the model with the checksum `belongs_to`, which had this stamp when it was read."""

    def __init__(self, model: Path, belongs_to: str, stamp: Stamp | None = None) -> None:
        self.model = model
        self.folder = model / CATALOGUE
        self.belongs_to = belongs_to
        self.stamp = stamp_of(model) if stamp is None else stamp

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else appends meanwhile, and the model is still the one that was loaded."""
        with locked(self.model):
            if self.is_replaced():
                raise Replaced
            yield

    def is_replaced(self) -> bool:
        """Whether another model stands in the folder's place: one look at the disk."""
        stamp = stamp_of(self.model)
        if stamp in (self.stamp, NOTHING_THERE):
            return False
        if read_manifest(self.model)["checksum"] != self.belongs_to:
            return True
        self.stamp = stamp
        return False

    def has(self, number: int) -> bool:
        """Whether there is such a version: one look at the disk."""
        return self._file(number).exists()

    def read(self, after: int, previous: str | None) -> Iterator[Recorded]:
        """All versions after this one, oldest first, each checked to the last byte."""
        number = after + 1
        while self._is_there(number):
            found = self._read(number, previous)
            previous = found.digest
            yield found
            number += 1

    def append(self, version: Version, vectors: Tensor | None, previous: str | None) -> str:
        """On disk for good when this returns (the SHA-256 of its file); never half. Call it while locked."""
        self.clean(version.number)
        arrays, listed = None, None
        if vectors is not None:
            arrays = save({"vectors": vectors.contiguous()})
            name = self._file(version.number, ".safetensors").name
            listed = {"file": name, "bytes": len(arrays), "sha256": hashlib.sha256(arrays).hexdigest()}
        content: dict[str, Any] = {
            "version": version.number,
            "time": version.time,
            "note": version.note,
            "belongs_to": self.belongs_to,
            "previous": previous,
            "vectors": listed,
            "changes": [_written(step) for step in version.steps],
        }
        content["checksum"] = checksum_of(content)
        data = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
        try:
            if arrays is not None:
                write_atomically(self._file(version.number, ".safetensors"), arrays)
            write_atomically(self._file(version.number), data)
        except BaseException as error:
            self._take_back(version.number)
            if isinstance(error, NotSaved):
                raise NotSaved(f"{error}. The labels are as they were, version {version.number - 1}") from error
            raise
        return hashlib.sha256(data).hexdigest()

    def clean(self, number: int) -> None:
        """Removes what killed processes left of versions that never happened, this one being the next."""
        for path in self.folder.iterdir():
            unfinished = path.name.startswith(".") or (path.suffix == ".safetensors" and path.stem >= f"{number:08d}")
            if unfinished and path.name != LOCK:
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.unlink()

    def _take_back(self, number: int) -> None:
        """A version whose way to the disk failed at its last step must not appear at the next start."""
        for suffix in (".json", ".safetensors"):
            with suppress(OSError):
                self._file(number, suffix).unlink(missing_ok=True)

    def _read(self, number: int, previous: str | None) -> Recorded:
        path = self._file(number)
        try:
            data = path.read_bytes()
            content = json.loads(data)
            whole = content.get("checksum") == checksum_of(content)
        except (OSError, ValueError, AttributeError) as error:
            raise DamagedModel(f"{path}: is damaged ({error}); {_ADVICE}") from error
        if not whole:
            raise DamagedModel(f"{path}: was altered, its checksum does not match; {_ADVICE}")
        if content["belongs_to"] != self.belongs_to:
            raise DamagedModel(f"{path}: belongs to another model than the one beside it; {_ADVICE}")
        if content["version"] != number or content["previous"] != previous:
            raise DamagedModel(f"{path}: does not follow the version before it; {_ADVICE}")
        steps = tuple(Step(change["do"], change["key"], change.get("text")) for change in content["changes"])
        version = Version(number, content["time"], content["note"], steps)
        return Recorded(version, self._read_vectors(content["vectors"]), hashlib.sha256(data).hexdigest())

    def _read_vectors(self, listed: dict[str, Any] | None) -> Tensor | None:
        if listed is None:
            return None
        path = self.folder / listed["file"]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DamagedModel(f"{path}: cannot be read ({error.strerror}); {_ADVICE}") from error
        if len(data) != listed["bytes"]:
            raise DamagedModel(f"{path}: has {len(data):,} bytes instead of {listed['bytes']:,}; {_ADVICE}")
        if hashlib.sha256(data).hexdigest() != listed["sha256"]:
            raise DamagedModel(f"{path}: was altered, its SHA-256 does not match; {_ADVICE}")
        try:
            return load(data)["vectors"]
        except (SafetensorError, KeyError) as error:
            raise DamagedModel(f"{path}: is damaged ({error}); {_ADVICE}") from error

    def _is_there(self, number: int) -> bool:
        """Whether there is such a version; refuses a later one without it."""
        if self.has(number):
            return True
        later = sorted(path.name for path in self.folder.glob("*.json") if path.name > self._file(number).name)
        if not later:
            return False
        if self.has(number):  # others may have written several meanwhile
            return True
        raise DamagedModel(f"{self._file(number)}: is missing, but {later[0]} is there; {_ADVICE}")

    def _file(self, number: int, suffix: str = ".json") -> Path:
        return self.folder / f"{number:08d}{suffix}"


def stamp_of(model: Path) -> Stamp:
    """Changes whenever the model folder, or its manifest, is replaced."""
    return file_stamp(model / MANIFEST)


def _written(step: Step) -> dict[str, str]:
    written = {"do": step.do, "key": step.key}
    return written if step.text is None else {**written, "text": step.text}
