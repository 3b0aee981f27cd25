"""How far long work is: whoever does it calls these, whoever shows it gives them."""

from collections.abc import Callable
from functools import partial

Advance = Callable[[int, int], None]  # done so far, of how many
Progress = Callable[[str, int, int], None]  # the same, and which work it is
Notice = Callable[[str], None]  # a sentence for people


def named(progress: Progress | None, work: str) -> Advance | None:
    """The progress of one kind of work."""
    return None if progress is None else partial(progress, work)
