"""The label catalogue: each label's public key, its text, and its row in every matrix."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator

from umpteen.data.texts import Texts
from umpteen.errors import BadInput


class LabelCatalogue:
    """Keys are unique and texts are not empty; two labels may share a text, never a key."""

    def __init__(self, keys: Iterable[str], texts: Iterable[str]) -> None:
        self.keys: list[str] = list(keys)
        self.texts = texts if isinstance(texts, Texts) else Texts.of(texts)
        if len(self.keys) != len(self.texts):
            raise BadInput(f"{len(self.keys):,} label keys but {len(self.texts):,} label texts; each label needs both")
        self._rows: dict[str, int] = {}
        decomposed: dict[str, int] = {}  # rows of keys that are not in NFC, by their NFC
        for row, (key, text) in enumerate(zip(self.keys, self.texts, strict=True)):
            form = unicodedata.normalize("NFC", key)
            first = self._rows.get(key, self._rows.get(form, decomposed.get(form)))
            if first is not None:
                same = "" if self.keys[first] == key else ", in two Unicode forms"
                raise BadInput(
                    f"label key {key!r} stands twice, in rows {first:,} and {row:,}{same}; keys must be unique"
                )
            self._rows[key] = row
            if form != key:
                decomposed[form] = row
            if not key.strip():
                raise BadInput(f"the label in row {row:,} (text {text!r}) has an empty key; give it one")
            if not text.strip():
                raise BadInput(f"label {key!r} in row {row:,} has an empty text; give it one or leave the label out")

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelCatalogue) and self.keys == other.keys and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return f"<{len(self):,} labels>"

    def row(self, key: str) -> int:
        """The label's position in every matrix."""
        try:
            return self._rows[key]
        except KeyError:
            raise BadInput(f"there is no label with the key {key!r}") from None

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def find(self, key: str) -> int | None:
        """The label's row, or None if there is no such key."""
        return self._rows.get(key)

    def matching(self, search: str, stop: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Rows, ascending, whose key or text holds this, whatever the case; no more of them once `stop` says so."""
        wanted = search.casefold()
        for row, (key, text) in enumerate(zip(self.keys, self.texts, strict=True)):
            if stop():
                return
            if wanted in text.casefold() or wanted in key.casefold():
                yield row
