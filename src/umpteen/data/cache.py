"""Where prepared copies of datasets are kept, and how one is found again or made."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from umpteen.data.prepared import MANIFEST, PREPARED_VERSION, Builder
from umpteen.errors import NotSaved
from umpteen.storage import atomic_folder, locked_file


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
    folder: Path, form: Format, *, cache: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> Path:
    """The prepared copy of a folder: made now, or found as it was made if no source file has changed since."""
    folder = folder.resolve()
    files = [(path.relative_to(folder).as_posix(), path.stat()) for path in form.sources(folder)]
    # A file may be changed and keep its size and time, but not its inode and the time of its last change of any kind.
    stamps = ((name, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns) for name, stat in files)
    state = [PREPARED_VERSION, str(folder), *stamps]
    key = hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    target = cache_folder(cache) / "datasets" / f"{folder.name}-{key}"
    if (target / MANIFEST).is_file():
        return target
    total = sum(stat.st_size for _, stat in files)
    try:
        with locked_file(target.with_name(f"{target.name}.lock"), wait=None):
            if (target / MANIFEST).is_file():  # another process has made it while we waited
                return target
            with atomic_folder(target) as partial, Builder(partial, folder.name, _counter(total, progress)) as into:
                form.read(folder, into)
                into.finish()
                into.advance(total)
    except (NotSaved, OSError) as error:
        raise NotSaved(f"{error}; set UMPTEEN_CACHE to a folder that can hold a binary copy of the dataset") from error
    return target


def _counter(total: int, progress: Callable[[int, int], None] | None) -> Callable[[int], None]:
    """Turns bytes read into calls of progress(done, total)."""
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(min(done, total), total)

    return advance
