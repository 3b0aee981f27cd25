"""Freed memory that stays with the process: what every process that computes does first. Needs no torch."""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them (malloc.h)
KEPT = 1 << 30  # bytes that may lie unused at the end of the heap
LARGEST = 1 << 28  # bytes; what is larger, such as a million labels' vectors, is given back as before


def keep_freed_memory() -> bool:
    """Freed memory stays with the process, ready for the next micro-batch, if this is true.

    It is not without glibc, and not where the environment has settings of its own. glibc gives large blocks back at
    once, and the kernel hands them out again page by page, zeroed: a quarter of a static training step went into that,
    and up to a tenth of a transformer's, the more the larger its micro-batches.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc, not Linux
        return False
    larger = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_THRESHOLD, LARGEST >> 3)  # older ones allow 32 MB
    return bool(larger) and bool(mallopt(TRIM_THRESHOLD, KEPT))
