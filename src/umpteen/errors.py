"""Every error a user can cause, as one tree; the command line prints the message and exits with 2."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

Entry = TypeVar("Entry")


class UmpteenError(Exception):
    """Something the user can understand and mend; its message says how."""

    told_elsewhere = False  # by another process of the same run; telling it once is enough


class BadInput(UmpteenError):
    """What was given cannot be used; for programs, why as a code, and which of several it was."""

    def __init__(self, message: str = "", *, code: str = "bad_input", place: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.place = place


class BadFile(BadInput):
    """A file is missing, empty, or holds something it must not; the message leads to the very line."""

    def __init__(self, path: Path | str, problem: str, *, line: int | None = None) -> None:
        where = f"{path}" if line is None else f"{path}, line {line:,}"
        super().__init__(f"{where}: {problem}")
        self.problem = problem


class BadConfig(BadInput):
    """A setting is unknown or out of range."""


class InUse(BadInput):
    """Another process is at work where only one can be; nothing was changed."""


class DamagedModel(UmpteenError):
    """A model folder is incomplete, altered, or of another format version."""


class DamagedCheckpoint(UmpteenError):
    """A checkpoint is cut short, altered, or belongs to another run."""


class NotSaved(UmpteenError):
    """Nothing was written; what stood there before still stands."""


class Diverged(UmpteenError):
    """The loss turned into NaN or infinity."""


class LostProcess(UmpteenError):
    """Another process of the run ended or cannot be reached; the last checkpoint is whole."""


class Stopped(UmpteenError):
    """SIGINT or SIGTERM arrived; the run saved itself first (exit code 128 + signal)."""

    def __init__(self, message: str, *, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def installed(module: str, otherwise: str) -> Any:
    """A module of a package that not everybody has; `otherwise` says how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise BadInput(otherwise) from None


def known(table: Mapping[str, Entry], name: str, otherwise: str, error: type[BadInput] = BadConfig) -> Entry:
    """The entry of this name; `otherwise` says what there is not, and the nearest name, or all there are, follow."""
    if name not in table:
        from difflib import get_close_matches

        nearest = get_close_matches(name, table, n=1, cutoff=0.5)
        raise error(f"{otherwise}; " + (f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(table)}"))
    return table[name]
