"""A model folder that is followed while its model is in use: what of it was taken in, and what has come since."""

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from umpteen.catalogue.journal import Journal, stamp_of
from umpteen.model_folder import part_stamps
from umpteen.stamps import NOTHING_THERE, Stamp

UNTIL_NEXT_TRY = 60.0  # seconds, to load a model that took the folder's place and is damaged


class _Refused(NamedTuple):
    """A model that could not be loaded."""

    stamp: Stamp
    error: Exception
    until: float  # when it may have been mended


class FollowedFolder:
    """The folder of a journal; `parts` are the stamps that its calibration and index had when they were read."""

    def __init__(self, journal: Journal, parts: dict[str, Stamp]) -> None:
        self.path: Path = journal.model
        self._journal = journal
        self._parts = dict(parts)
        self._tried: Stamp = NOTHING_THERE  # of the model that took this one's place when it was last looked
        self._refused: _Refused | None = None

    def is_there(self) -> bool:
        """Whether the model that was taken in is still in its place."""
        return stamp_of(self.path) != NOTHING_THERE and not self._journal.is_replaced()

    def has_another_model(self) -> bool:
        """Whether there is a model to load; one that could not be is an error until it is another, or for a while."""
        if not self._journal.is_replaced():
            return False
        self._tried, refused = stamp_of(self.path), self._refused
        if refused is not None and refused.stamp == self._tried and monotonic() < refused.until:
            raise refused.error.with_traceback(None)
        return True

    def refuse(self, error: Exception) -> None:
        """The model that took the place of this one cannot be loaded."""
        self._refused = _Refused(self._tried, error, monotonic() + UNTIL_NEXT_TRY)

    def take_in_parts(
        self, found: dict[str, Stamp], ways: Mapping[str, Callable[[], None]], is_behind: Callable[[], bool]
    ) -> bool:
        """Reads the parts that have come, gone or been made again, each in its way, given their stamps as they are now.

        One that cannot be read is an error once. True if there were any.
        """
        changed = False
        for name, read in ways.items():
            if found[name] == self._parts[name] or stamp_of(self.path) == NOTHING_THERE:
                continue
            try:
                read()
            except Exception:
                if self._journal.is_replaced() or is_behind() or part_stamps(self.path) != found:
                    continue  # what was read belongs to two states of the folder; the next look knows more
                self._parts[name] = found[name]
                raise
            self._parts[name] = found[name]
            changed = True
        return changed
