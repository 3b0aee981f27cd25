"""A model folder that is followed while its model is in use: what of it was taken in, and what has come since."""

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from umpteen.catalogue.journal import Journal, stamp_of
from umpteen.model_folder import part_stamps
from umpteen.stamps import NOTHING_THERE, Stamp

UNTIL_NEXT_TRY = 60.0  # seconds, to load a model that took the folder's place and is damaged
UNTIL_NEXT_LOOK = 5.0  # seconds, into a part that could not be read: it may be in use, or on its way here


class _Refused(NamedTuple):
    """A model, or a part of one, that could not be loaded."""

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
        self._refused_parts: dict[str, _Refused] = {}

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

    def missed(self, name: str) -> None:
        """This part was not taken in after all; the next look tries again, and tells why if it fails."""
        self._parts[name] = NOTHING_THERE

    def take_in_parts(
        self, found: dict[str, Stamp], ways: Mapping[str, Callable[[], None]], is_behind: Callable[[], bool]
    ) -> bool:
        """Reads the parts that have come, gone or been made again, each in its way, given their stamps as they are now.

        One that cannot be read is tried again every few seconds, and is an error once. True if others were read.
        """
        changed = False
        for name, read in ways.items():
            if found[name] == self._parts[name] or stamp_of(self.path) == NOTHING_THERE:
                continue
            refused = self._refused_parts.get(name)
            if refused is not None and refused.stamp == found[name] and monotonic() < refused.until:
                continue
            try:
                read()
            except Exception as error:
                if self._journal.is_replaced() or is_behind() or part_stamps(self.path) != found:
                    continue  # what was read belongs to two states of the folder; the next look knows more
                self._refused_parts[name] = _Refused(found[name], error, monotonic() + UNTIL_NEXT_LOOK)
                if refused is None or (refused.stamp, str(refused.error)) != (found[name], str(error)):
                    raise
            else:
                self._refused_parts.pop(name, None)
                self._parts[name] = found[name]
                changed = True
        return changed
