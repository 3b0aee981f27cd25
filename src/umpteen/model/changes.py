"""What can happen to labels: what is asked for (Add, Rename, Retire), and the steps and versions that are recorded."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from umpteen.errors import BadInput

LONGEST_KEY = 512  # characters
LONGEST_TEXT = 10_000
# Ranges for a regular expression: control characters, bidirectional controls, line and paragraph separators.
UNSEEN = r"\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
NO_PART_OF_A_TEXT = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # tabs and line ends are one
_SURROGATES = r"\ud800-\udfff"


@dataclass(frozen=True)
class Add:
    """A label that is not there; one that was retired comes back in its old row."""

    key: str
    text: str


@dataclass(frozen=True)
class Rename:
    """The label with this key has another text from now on."""

    key: str
    text: str


@dataclass(frozen=True)
class Retire:
    """The label with this key is never found again; its row stays its own."""

    key: str


Change = Add | Rename | Retire
Doing = Literal["add", "rename", "retire", "revive"]


class Step(NamedTuple):
    """One recorded change; whatever comes to be there has a text."""

    do: Doing
    key: str
    text: str | None


@dataclass(frozen=True)
class Version:
    """All that happened to the labels at once; `steps` name a key once at most."""

    number: int
    time: str  # UTC
    note: str
    steps: tuple[Step, ...]

    def summary(self) -> "VersionSummary":
        """For a list of versions."""
        done = Counter(step.do for step in self.steps)
        added = done["add"] + done["revive"]
        return VersionSummary(self.number, self.time, added, done["rename"], done["retire"], self.note)


class VersionSummary(NamedTuple):
    """One line of a catalogue's history; labels that came back count as added."""

    version: int
    time: str
    added: int
    renamed: int
    retired: int
    note: str


class Labels(Protocol):
    """What has to be known of the labels there are."""

    def text_of(self, key: str) -> str | None: ...
    def is_retired(self, key: str) -> bool: ...
    def count(self) -> int: ...


def steps_of(changes: Sequence[Change], labels: Labels) -> tuple[Step, ...]:
    """The changes as steps, each checked against the labels there are; those that change nothing are left out."""
    steps: list[Step] = []
    seen: set[str] = set()
    for change in changes:
        _check_key_type(change.key)
        if change.key in seen:
            raise BadInput(f"label key {change.key!r} stands twice among the changes; give each key once")
        seen.add(change.key)
        step = step_of(change, labels)
        if step is not None:
            steps.append(step)
    left = labels.count() + sum({"add": 1, "revive": 1, "retire": -1}.get(step.do, 0) for step in steps)
    if left < 1:
        raise BadInput("this would retire the last label, and a model without labels can answer nothing; add one first")
    return tuple(steps)


def step_of(change: Change, labels: Labels) -> Step | None:
    """The change as a step, checked against the labels there are; None if it changes nothing."""
    there = labels.text_of(change.key)
    if isinstance(change, Add):
        if there is not None:
            raise BadInput(
                f"there is a label with the key {change.key!r} already ({there!r}); rename it, or choose another key"
            )
        retired = labels.is_retired(change.key)
        if not retired:
            check_key(change.key)
            other = unicodedata.normalize("NFD", change.key)
            if other != change.key and (labels.text_of(other) is not None or labels.is_retired(other)):
                raise BadInput(f"there is a label with the key {change.key!r} already, in decomposed form; rename it")
        check_text(change.key, change.text)
        return Step("revive" if retired else "add", change.key, change.text)
    if there is None:
        raise unknown_key(change.key, labels.is_retired(change.key))
    if isinstance(change, Rename):
        check_text(change.key, change.text)
        return None if change.text == there else Step("rename", change.key, change.text)
    return Step("retire", change.key, None)


def unknown_key(key: str, retired: bool) -> BadInput:
    """The error for a key that no active label has."""
    if retired:
        return BadInput(f"the label with the key {key!r} is retired; add it again to bring it back")
    return BadInput(f"there is no label with the key {key!r}")


def check_key(key: str) -> None:
    """Refuses what cannot be the key of a new label: it must fit into a line, a path and an address."""
    _check_key_type(key)
    if not key.strip():
        raise BadInput("a label's key is empty; give it one")
    if key in (".", ".."):
        raise BadInput(f"label key {key!r} would be a way through folders in an address; choose another")
    if key != key.strip():
        raise BadInput(f"label key {key!r} begins or ends with blanks; remove them")
    if len(key) > LONGEST_KEY:
        raise BadInput(f"label key {key[:40]!r}… has {len(key):,} characters; {LONGEST_KEY} are the most")
    if found := re.search(f"[/{UNSEEN}{_SURROGATES}]", key):
        what = "a slash" if found[0] == "/" else f"the character U+{ord(found[0]):04X}"
        raise BadInput(f"label key {key!r} holds {what}; keys have no slashes, line ends or control characters")
    if (composed := unicodedata.normalize("NFC", key)) != key:
        raise BadInput(f"label key {key!a} is not in Unicode's form NFC, so it could stand twice; give {composed!r}")


def check_text(key: str, text: object) -> None:
    """Refuses what cannot be a label's text."""
    if not isinstance(text, str):
        raise BadInput(f"the text of label {key!r} is a {type(text).__name__}, not a string")
    if not text.strip():
        raise BadInput(f"label {key!r} has an empty text; give it one, or leave the label out")
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"the text of label {key!r} has {len(text):,} characters; {LONGEST_TEXT:,} are the most")
    if found := re.search(f"[{NO_PART_OF_A_TEXT}{_SURROGATES}]", text):
        what = "half of a surrogate pair" if found[0] >= "\ud800" else "a control character"
        raise BadInput(f"the text of label {key!r} holds U+{ord(found[0]):04X}, {what}; remove it")


def _check_key_type(key: object) -> None:
    if not isinstance(key, str):
        raise BadInput(f"label key {key!r} is a {type(key).__name__}, not a string")
