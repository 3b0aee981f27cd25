"""What one client was promised of a model's labels, held against what is found after a crash."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from umpteen.model.changes import Change, Retire


class Judgement(NamedTuple):
    """Of one crash; `lost` and `half_done` are the keys that are not as they should be."""

    lost: list[str]
    half_done: list[str]
    unacknowledged: bool  # the change under way is there, although nobody was told


class Ledger:
    """Changes are intended one at a time, and acknowledged or not; what was acknowledged must be found."""

    def __init__(self, texts: Mapping[str, str], version: int) -> None:
        self.texts = dict(texts)
        self.version = version
        self.acknowledged = 0
        self._under_way: Sequence[Change] = ()

    def intend(self, changes: Sequence[Change]) -> None:
        """The client is about to ask for these."""
        self._under_way = changes

    def acknowledge(self, version: int) -> None:
        """The client was told that its change is done."""
        self.texts = after(self.texts, self._under_way)
        self.version = version
        self.acknowledged += 1
        self._under_way = ()

    def judge(self, texts: Mapping[str, str], version: int) -> Judgement:
        """What became of the promises; from here on the ledger goes on with what was found."""
        wanted, under_way = self.texts, after(self.texts, self._under_way)
        touched = {change.key for change in self._under_way}
        keys = dict.fromkeys([*wanted, *texts])
        lost = [key for key in keys if key not in touched and wanted.get(key) != texts.get(key)]
        done = bool(touched) and dict(texts) == under_way and version == self.version + 1
        not_done = version == self.version and all(wanted.get(key) == texts.get(key) for key in touched)
        if version < self.version:
            lost = lost or [f"version {self.version}"]
        self.texts, self.version, self._under_way = dict(texts), version, ()
        return Judgement(lost, [] if lost or done or not_done else sorted(touched), done)


def after(texts: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    """The texts by key once these changes have happened."""
    found = dict(texts)
    for change in changes:
        if isinstance(change, Retire):
            found.pop(change.key, None)
        else:
            found[change.key] = change.text
    return found
