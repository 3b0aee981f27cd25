"""One look at one thing: how it went, in a line."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from umpteen.errors import UmpteenError


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
    except Skipped as reason:
        status, detail = "skipped", str(reason)
    except (Failed, UmpteenError) as problem:
        status, detail = "failed", str(problem)
    except Exception as problem:  # a doctor is for what nobody has foreseen
        status, detail = "failed", f"{type(problem).__name__}: {problem}"
    return Check(name, status, detail, round(time.monotonic() - began, 2))
