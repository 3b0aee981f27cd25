"""How far long work is: whoever does it calls these, whoever shows it gives them."""

from collections.abc import Callable

Advance = Callable[[int, int], None]  # done so far, of how many
Progress = Callable[[str, int, int], None]  # the same, and which work it is
Notice = Callable[[str], None]  # a sentence for people


def silent(*_: object) -> None:
    """Nobody wants to hear of it."""
