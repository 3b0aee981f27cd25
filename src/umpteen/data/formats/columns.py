"""Tables as people have them: which columns hold texts and labels, and how several labels stand in one cell.

What is not said is guessed from the names of the columns and the first rows, and told.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umpteen.data.prepared import Place
from umpteen.errors import BadFile

TEXTS = ("text", "texts", "body", "content", "abstract", "description", "document", "sentence", "query", "question")
TITLES = ("title", "headline", "name")  # come before such a text, or stand in for it
LABELS = ("labels", "label", "tags", "tag", "categories", "category", "topics", "topic", "keywords", "subjects")
MORE_LABELS = ("subject", "classes", "class", "targets", "target", "codes", "code")
SEPARATORS = "|;,"


@dataclass(frozen=True)
class Columns:
    """Where a row has its text and its labels."""

    text: tuple[str, ...]  # joined by blanks
    labels: str
    split: Callable[[str], list[str]]
    told: str = ""  # what was guessed

    def record(self, row: Mapping[str, Any], at: Place) -> dict[str, Any]:
        """The row with `text` and a list of `labels`, whatever it calls them; what it does not have stays away."""
        found = dict(row)
        texts = [row[name].strip() for name in self.text if isinstance(row.get(name), str)]
        if texts:
            found["text"] = " ".join(texts).strip()
        if self.labels in row:
            found["labels"] = self._keys(row[self.labels], at)
        return found

    def _keys(self, cell: Any, at: Place) -> Any:
        if cell is None:
            return []
        if isinstance(cell, bool | float):
            raise at.error(f"{self.labels!r} is {cell!r}, which is no label; put labels in quotes")
        if isinstance(cell, int):
            return [str(cell)]
        if isinstance(cell, str):
            return listed(cell) if cell.lstrip().startswith("[") else self.split(cell)
        if isinstance(cell, list):
            return [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in cell]
        return cell


def listed(cell: str) -> list[str]:
    """The keys of a cell that holds a list as JSON or as Python writes it; the cell itself if it is none."""
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list | tuple):
            return [str(one).strip() for one in found]
    return [cell.strip()]


def columns_of(
    path: Path, rows: Sequence[Mapping[str, Any]], asked: Mapping[str, str], *, separates: str | None = None
) -> Columns:
    """The columns of a file from its first rows; `asked` says some of text, labels and separator.

    `separates` are the marks that may stand between keys, where labels are known; else what does is guessed.
    """
    header = list(dict.fromkeys(name for row in rows for name in row))
    by_name = {name.strip().lower(): name for name in reversed(header)}

    def first(names: Sequence[str]) -> str | None:
        return next((by_name[name] for name in names if name in by_name), None)

    def given(what: str, apart: str | None = None) -> tuple[str, ...]:
        said = asked.get(what, "")
        names = (said,) if said in header or (said and apart is None) else tuple(filter(None, said.split(apart)))
        for name in names:
            if name not in header:
                raise BadFile(path, f"has no column {name!r}; it has {_written(header)}", line=1)
        return names

    labels = "".join(given("labels")) or first(LABELS) or first(MORE_LABELS)
    if labels is None:
        raise BadFile(
            path,
            f"has none of the columns that usually hold labels ({', '.join(LABELS)}); it has {_written(header)}: say "
            "which it is, with --labels COLUMN, or FILE?labels=COLUMN",
            line=1,
        )
    text = given("text", "+") or _text_columns(first, rows, labels)
    if not text:
        raise BadFile(path, f"has no column of texts; it has {_written(header)}: say which, with --text COLUMN", line=1)
    marks, told = separates, ""
    if (text, labels) != (("text",), "labels") and not {"text", "labels"} <= set(asked):
        told = f"texts are in {' and '.join(map(repr, text))}, labels in {labels!r}"
    if asked.get("separator"):
        marks = None
    elif separates is None:
        marks = guessed_separator([row[labels] for row in rows if isinstance(row.get(labels), str)])
        if marks:
            told = f"{told}, separated by {marks!r}" if told else f"labels are separated by {marks!r}"
    return Columns(text, labels, splitter(asked.get("separator"), marks or ""), told)


def _text_columns(
    first: Callable[[Sequence[str]], str | None], rows: Sequence[Mapping[str, Any]], labels: str
) -> tuple[str, ...]:
    of_labels = labels.strip().lower()
    body, title = (first([name for name in names if name != of_labels]) for names in (TEXTS, TITLES))
    if body is not None and body.strip().lower() in ("text", "texts"):
        return (body,)
    if body is not None or title is not None:
        return tuple(name for name in (title, body) if name is not None)
    lengths: Counter[str] = Counter()
    for row in rows:
        lengths.update({name: len(cell) for name, cell in row.items() if isinstance(cell, str) and name != labels})
    return tuple(name for name, _ in lengths.most_common(1))


def guessed_separator(cells: Sequence[str]) -> str | None:
    """The mark that stands between labels, or None if each cell is one label.

    A comma may belong to a label's name: it separates if most of what it would part stands in other cells, too.
    """
    cells = [cell for cell in cells if not cell.lstrip().startswith("[")]
    for mark in SEPARATORS[:2]:
        if any(mark in cell for cell in cells):
            return mark
    parts = Counter(part.strip() for cell in cells for part in cell.split(",") if part.strip())
    if not any("," in cell for cell in cells):
        return None
    shared = sum(count for count in parts.values() if count > 1)
    return "," if 2 * shared >= sum(parts.values()) else None


def parting(cells: Iterable[str], known: Container[str]) -> str | None:
    """The mark at which some cell that is no key falls apart into keys that are known, if there is one."""
    for mark in SEPARATORS:
        split = splitter(mark, "")
        if any(all(part in known for part in split(cell)) for cell in cells if mark in cell and cell not in known):
            return mark
    return None


def splitter(separator: str | None, marks: str) -> Callable[[str], list[str]]:
    """Cuts a cell at the separator, or else at each of the marks."""
    if not separator and not marks:
        return lambda cell: [cell.strip()] if cell.strip() else []
    pattern = re.compile(re.escape(separator) if separator else f"[{re.escape(marks)}]")
    return lambda cell: [part for part in map(str.strip, pattern.split(cell)) if part]


def _written(header: Sequence[str]) -> str:
    return ", ".join(map(repr, header)) or "none"
