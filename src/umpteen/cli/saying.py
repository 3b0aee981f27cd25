"""What the commands say to people, and what every one of them does first. Light, since all of them load it."""

import ctypes
import os
import re
from typing import Any

import click

from umpteen.model.changes import UNSEEN

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them (malloc.h)
KEPT = 1 << 30  # bytes that may lie unused at the end of the heap
LARGEST = 1 << 28  # bytes; what is larger, such as a million labels' vectors, is given back as before


# Freed memory stays with the process, ready for the next micro-batch.
#
# glibc gives large blocks back at once, and the kernel hands them out again page by page, zeroed: a quarter of a static
# training step went into that, and up to a tenth of a transformer's, the more the larger its micro-batches.
def keep_freed_memory() -> bool:
    """Whether it will be so: not without glibc, and not where the environment has settings of its own."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc, not Linux
        return False
    larger = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_THRESHOLD, LARGEST >> 3)  # older ones allow 32 MB
    return bool(larger) and bool(mallopt(TRIM_THRESHOLD, KEPT))


_UNSEEN = re.compile(rf"[{UNSEEN}\ud800-\udfff]")


def visible(text: object) -> str:
    """The text in one line that a terminal only shows: characters that would steer it stand as escapes."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def say(line: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Prints a line, which may hold anybody's data; JSON for machines needs no such care."""
    click.secho(visible(line), err=err, nl=nl, **style)
