"""Texts by row, some of them changed since: a sequence that copies neither."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload


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
