"""The labels of a model as they are now: an immutable snapshot that shares the stored labels and adds what has changed.

A label keeps its row for ever. Adding appends a row, renaming changes a row's text, retiring leaves the row unused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from umpteen.data.labels import LabelCatalogue
from umpteen.model.changes import Version, unknown_key


class Column(Sequence[str]):
    """What `changed` says of a row, else what stands in `first`; `count` rows in all."""

    def __init__(self, first: Sequence[str], changed: Mapping[int, str], count: int) -> None:
        self._first = first
        self._changed = changed
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        row = int(row) % self._count
        changed = self._changed.get(row)
        return self._first[row] if changed is None else changed

    def __iter__(self) -> Iterator[str]:
        for row, text in enumerate(self._first):
            yield self._changed.get(row, text)
        for row in range(len(self._first), self._count):
            yield self._changed[row]

    def __eq__(self, other: object) -> bool:
        return same_texts(self, other)

    __hash__ = None  # type: ignore[assignment]


def same_texts(one: Sequence[str], other: Any) -> bool:
    """Whether two sequences hold the same texts, however they are stored."""
    return (
        isinstance(other, Sequence)
        and not isinstance(other, str)
        and len(one) == len(other)
        and all(a == b for a, b in zip(one, other, strict=True))
    )


Origin = Literal["trained", "added", "renamed"]
ORIGINS: tuple[Origin, ...] = ("trained", "added", "renamed")
TRAINED, ADDED, RENAMED = range(3)  # places in ORIGINS

Stop = Callable[[], bool]  # whether nobody waits for a search any more


def never() -> bool:
    """Of a search that somebody waits for to its end."""
    return False


class LabelEntry(NamedTuple):
    """One label of a list."""

    key: str
    text: str
    row: int
    origin: Origin
    retired: bool


class MappedLabels(Protocol):
    """Labels of which there may be more than memory holds."""

    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def texts(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def find(self, key: str) -> int | None: ...
    def matching(self, search: str, stop: Stop = never) -> Iterator[int]: ...


FirstLabels = MappedLabels | LabelCatalogue  # those a model was written with, which never change


class LiveLabels:
    """Keys, texts and origins by row, retired rows included; versions count up from 0, the labels as trained."""

    def __init__(
        self,
        first: FirstLabels,
        *,
        version: int = 0,
        active: NDArray[np.bool_] | None = None,
        origins: NDArray[np.uint8] | None = None,
    ) -> None:
        self.version = version
        self.first = first
        self.active = np.ones(len(first), dtype=np.bool_) if active is None else active
        self._origins = origins  # of the first labels; None: all trained
        self._keys: dict[int, str] = {}  # of the rows after the first ones
        self._rows: dict[str, int] = {}  # the same, the other way round
        self._texts: dict[int, str] = {}  # of those rows, and of first ones with another text than at first
        self._count = int(self.active.sum())

    @classmethod
    def of(cls, labels: "LabelCatalogue | LiveLabels") -> "LiveLabels":
        """A training's labels, or changed labels as if a model had been written with them."""
        if isinstance(labels, LabelCatalogue):
            return cls(labels)
        if not labels._texts:
            return labels
        return cls(
            labels.catalogue(), version=labels.version, active=labels.active, origins=labels.origins().astype(np.uint8)
        )

    def after(self, versions: Sequence[Version]) -> "LiveLabels":
        """The labels once these versions, the next ones, have happened too."""
        new = LiveLabels(self.first, version=self.version, origins=self._origins)
        new._keys, new._rows, new._texts = self._keys.copy(), self._rows.copy(), self._texts.copy()
        added = sum(step.do == "add" for version in versions for step in version.steps)
        new.active = np.concatenate([self.active, np.zeros(added, dtype=np.bool_)])
        for version in versions:
            new.version = version.number
            for do, key, text in version.steps:
                new._take_in(do, key, text)
        new._count = int(new.active.sum())
        return new

    def _take_in(self, do: str, key: str, text: str | None) -> None:
        row = self.find(key)
        if (row is None) != (do == "add") or (text is None) != (do == "retire"):
            raise ValueError(f"{do} {key!r} does not fit the labels before it")
        if row is None:
            row = len(self.first) + len(self._keys)
            self._keys[row], self._rows[key] = key, row
        self.active[row] = text is not None
        if text is None:
            return
        if self.is_first_text(row, text):
            self._texts.pop(row, None)
        else:
            self._texts[row] = text

    @property
    def keys(self) -> Sequence[str]:
        return Column(self.first.keys, self._keys, len(self)) if self._keys else self.first.keys

    @property
    def texts(self) -> Sequence[str]:
        return Column(self.first.texts, self._texts, len(self)) if self._texts else self.first.texts

    def __len__(self) -> int:
        return len(self.active)

    def count(self) -> int:
        """How many labels there are, retired ones left out."""
        return self._count

    def find(self, key: str) -> int | None:
        """The row of a label, even if it is retired; None for a key nobody ever had."""
        row = self._rows.get(key)
        return self.first.find(key) if row is None else row

    def row(self, key: str) -> int:
        """The position of a label in every matrix."""
        row = self.find(key)
        if row is None or not self.active[row]:
            raise unknown_key(key, retired=row is not None)
        return row

    def __contains__(self, key: object) -> bool:
        row = self.find(key) if isinstance(key, str) else None
        return row is not None and bool(self.active[row])

    def text_of(self, key: str) -> str | None:
        """The text of the label with this key, if there is one and it is not retired."""
        return self.texts[self.row(key)] if key in self else None

    def is_retired(self, key: str) -> bool:
        """Whether this is the key of a label that was there once."""
        return key not in self and self.find(key) is not None

    def is_first_text(self, row: int, text: str) -> bool:
        """Whether this row had this text, and so this text's vector, when the model was written."""
        return row < len(self.first) and self.first.texts[row] == text

    def origin(self, row: int) -> Origin:
        """Where the label's vector comes from: the training, or its text alone since it was added or renamed."""
        if row >= len(self.first):
            return "added"
        stored = TRAINED if self._origins is None else int(self._origins[row])
        return "renamed" if stored == TRAINED and row in self._texts else ORIGINS[stored]

    def origins(self) -> NDArray[np.int64]:
        """Of every row, as places in ORIGINS."""
        found = np.full(len(self), ADDED, dtype=np.int64)
        found[: len(self.first)] = TRAINED if self._origins is None else self._origins
        renamed = [row for row in self._texts if row < len(self.first) and found[row] == TRAINED]
        found[renamed] = RENAMED
        return found

    def changed(self) -> NDArray[np.int64]:
        """Rows of first labels that have another text now."""
        return np.array(sorted(row for row in self._texts if row < len(self.first)), dtype=np.int64)

    def entry(self, row: int) -> LabelEntry:
        """All there is to say about a row."""
        return LabelEntry(self.keys[row], self.texts[row], row, self.origin(row), not self.active[row])

    def find_rows(self, search: str = "", *, retired: bool = False, stop: Stop = never) -> Iterator[int]:
        """Rows, ascending, whose key or text holds `search`, whatever the case; with retired ones if asked for.

        They end early once `stop` says so, which is looked at even while no row is found.
        """
        rows: Iterable[int]
        if search:
            wanted = search.casefold()
            changed = (
                row
                for row in takewhile(lambda _: not stop(), sorted(self._texts))
                if wanted in self._texts[row].casefold() or wanted in self.keys[row].casefold()
            )
            rows = merge((row for row in self.first.matching(search, stop) if row not in self._texts), changed)
        else:
            rows = range(len(self))
        return (row for row in rows if retired or self.active[row])

    def page(self, *, search: str = "", start: int = 0, count: int = 50, retired: bool = False) -> list[LabelEntry]:
        """Some of the labels whose key or text holds `search`, in the order of rows; with retired ones if asked for."""
        if not search:
            rows = np.arange(len(self)) if retired else np.flatnonzero(self.active)
            return [self.entry(int(row)) for row in rows[start : start + count]]
        return [self.entry(row) for row in islice(self.find_rows(search, retired=retired), start, start + count)]

    def catalogue(self) -> LabelCatalogue:
        """Keys and texts of all rows for code that reads them all, retired ones included."""
        if isinstance(self.first, LabelCatalogue) and not self._texts:
            return self.first
        return LabelCatalogue(self.keys, self.texts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LiveLabels)
            and np.array_equal(self.active, other.active)
            and np.array_equal(self.origins(), other.origins())
            and all(a == b for a, b in zip(self.keys, other.keys, strict=True))
            and all(a == b for a, b in zip(self.texts, other.texts, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.count():,} labels, version {self.version}>"
