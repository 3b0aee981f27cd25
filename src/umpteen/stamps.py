"""Files known by inode, time of change and size: one that was found whole needs no second look until these change.

Which large files of a folder were compared with their SHA-256 stands in .verified.json beside them. No manifest lists
it; without it, or where it cannot be written, nothing is lost but time.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from umpteen.errors import NotSaved
from umpteen.storage import write_atomically

VERIFIED = ".verified.json"


class Stamp(NamedTuple):
    """Changes whenever a file is replaced or written to; a copy has another."""

    inode: int
    changed: int  # nanoseconds
    size: int


NOTHING_THERE = Stamp(0, 0, 0)


def file_stamp(path: Path) -> Stamp:
    """One look at the disk; NOTHING_THERE if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return NOTHING_THERE
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


class Verified:
    """The files of a folder that were compared with their SHA-256, and have not changed since."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = _read(folder / VERIFIED)
        self._new: dict[str, Any] = {}

    @property
    def can_be_kept(self) -> bool:
        """False on a disk that is read-only, or in somebody else's folder."""
        return os.access(self._folder, os.W_OK)

    def knows(self, name: str, sha256: str) -> bool:
        """Whether this very file was found to have this SHA-256."""
        return bool(self._known.get(name) == _entry(file_stamp(self._folder / name), sha256))

    def add(self, name: str, stamp: Stamp, sha256: str) -> None:
        """The file had this SHA-256, and this stamp before it was read."""
        self._new[name] = _entry(stamp, sha256)

    def keep(self) -> None:
        """Writes down what was added, if that is possible."""
        if self._new:
            path = self._folder / VERIFIED
            with suppress(NotSaved):
                write_atomically(path, json.dumps(_read(path) | self._new, indent=1) + "\n")
            self._known |= self._new
            self._new = {}


def _entry(stamp: Stamp, sha256: str) -> dict[str, Any]:
    return {"stamp": list(stamp), "sha256": sha256}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
