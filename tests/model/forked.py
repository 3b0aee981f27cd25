"""Functions run in forked processes, which may die, and in file systems of their own: no second start of Python."""

import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_REMOUNT, _READ_ONLY, _RECURSIVE, _PRIVATE = 32, 1, 16384, 1 << 18
NO_MOUNTS = 77


def fork(function: Callable[[], None]) -> int:
    """Starts the function in a process of its own; its number."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        function()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ends_of(*processes: int) -> list[int]:
    """Their exit codes, once all have ended; −signal for those that were killed."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def on_a_small_disk(place: Path, function: Callable[[Callable[[], None]], None]) -> None:
    """Runs the function in a process that has a disk of 1 MB at `place`; it is given what makes it read-only."""
    (code,) = ends_of(fork(lambda: _mounted(place, function)))
    if code == NO_MOUNTS:
        pytest.skip("file systems cannot be mounted here")
    assert code == 0


def _mounted(place: Path, function: Callable[[Callable[[], None]], None]) -> None:
    system = ctypes.CDLL(None, use_errno=True)
    users = 0 if os.geteuid() == 0 else _NEW_USER
    user, group = os.geteuid(), os.getegid()
    if system.unshare(_NEW_MOUNTS | users) != 0:
        raise SystemExit(NO_MOUNTS)
    if users:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")

    def mount(kind: bytes | None, target: bytes, flags: int, options: bytes | None = None) -> None:
        if system.mount(kind, target, kind, flags, options) != 0:
            raise SystemExit(NO_MOUNTS)

    mount(None, b"/", _RECURSIVE | _PRIVATE)
    mount(b"tmpfs", os.fsencode(place), 0, b"size=1m")
    function(lambda: mount(None, os.fsencode(place), _REMOUNT | _READ_ONLY))
