"""What `umpteen doctor` looks at: the installation, this machine, and whether a recipe computes what it should."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from umpteen.errors import BadInput, UmpteenError
from umpteen.parallel.meter import Meter


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "failed", "skipped"]
    detail: str
    seconds: float


class Failed(Exception):
    """Something is not as it should be; the message says what, and what to do."""


class Skipped(Exception):
    """The check cannot be made here; the message says why."""


def look(name: str, check: Callable[[], str]) -> Check:
    """Makes the check, which returns what it saw or raises; whatever it raises is part of the finding."""
    began = time.monotonic()
    status: Literal["ok", "failed", "skipped"] = "ok"
    try:
        detail = check()
    except Exception as problem:  # a doctor is for what nobody has foreseen
        status = "skipped" if isinstance(problem, Skipped) else "failed"
        foreseen = isinstance(problem, Skipped | Failed | UmpteenError)
        detail = str(problem) if foreseen else f"{type(problem).__name__}: {problem}"
    return Check(name, status, detail, round(time.monotonic() - began, 2))


def available_memory() -> int | None:
    """Bytes that this process could come to hold, where the system says so."""
    try:
        return Meter(torch.device("cpu")).available()
    except BadInput:
        return None
