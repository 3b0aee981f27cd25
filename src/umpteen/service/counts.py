"""What every worker has counted, where all of them read it: a file in memory that is read and written, never mapped.

So neither a full disk nor a full /dev/shm ends a worker, and one that is killed while it writes leaves what it wrote
before.
"""

import json
import os
import struct
import zlib
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import mkstemp
from typing import Any

_HEAD = struct.Struct("<QII")  # turn, length, checksum
_HALF = 2**20  # bytes; nobody pays for those that are never written


class SharedCounts:
    """A place for each worker, which has two halves: the older is overwritten, the newest that is whole is read."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._file = _new_file()

    def __getstate__(self) -> dict[str, Any]:
        return {"workers": self.workers, "file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.workers = state["workers"]
        self._file = state["file"].detach()

    def close(self) -> None:
        os.close(self._file)

    def write(self, worker: int, told: dict[str, Any]) -> None:
        """Puts this in the place of what the worker had told before; only one process may write there at a time."""
        turn = self._newest(worker)[0] + 1
        content = json.dumps(told).encode()
        if len(content) > _HALF - _HEAD.size:
            raise ValueError(f"{len(content):,} bytes of counts; a worker has room for {_HALF - _HEAD.size:,}")
        head = _HEAD.pack(turn, len(content), zlib.crc32(content))
        os.pwrite(self._file, head + content, (2 * worker + turn % 2) * _HALF)

    def read(self, worker: int) -> dict[str, Any]:
        """What the worker told last; empty if that was nothing."""
        content = self._newest(worker)[1]
        told: dict[str, Any] = json.loads(content) if content else {}
        return told

    def _newest(self, worker: int) -> tuple[int, bytes]:
        """Turn and content. Never are both halves torn, but the writer may have gone on to the other meanwhile."""
        while not (whole := [found for half in (0, 1) if (found := self._half(worker, half))]):
            pass
        return max(whole)

    def _half(self, worker: int, half: int) -> tuple[int, bytes] | None:
        """None if it is being written, or was not written to its end."""
        start = (2 * worker + half) * _HALF
        head = os.pread(self._file, _HEAD.size, start)
        turn, length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0)
        content = os.pread(self._file, length, start + _HEAD.size)
        return (turn, content) if zlib.crc32(content) == checksum else None


def _new_file() -> int:
    """A descriptor of a file that has no name; in memory, where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("umpteen-counts")
    file, name = mkstemp()
    Path(name).unlink()
    return file
