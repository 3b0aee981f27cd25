"""Tables as people have them: which columns hold texts and labels, and how several labels stand in one cell.

What is not said is guessed from the names of the columns and the first rows, and told.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from umpteen.data.prepared import Place
from umpteen.errors import BadFile

TEXTS = ("text", "texts", "body", "content", "abstract", "description", "document", "sentence", "query", "question")
TITLES = ("title", "headline", "name")  # come before such a text, or stand in for it
LABELS = ("labels", "label", "tags", "tag", "categories", "category", "topics", "topic", "keywords", "subjects")
MORE_LABELS = ("subject", "classes", "class", "targets", "target", "codes", "code")
CLEAR = "|;"  # marks that hardly stand in a label's name
SEPARATORS = f"{CLEAR},"
_ENTITY = re.compile(r"&#?\w+;")  # of HTML, as in R&amp;D
_BY_NUMPY = re.compile(r"""(['"])\s+['"]""")  # no comma between two strings
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
Rows = Sequence[Mapping[str, Any]]  # the first of a file


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
            keys = listed(cell)
            return self.split(cell) if keys is None else keys
        if isinstance(cell, list):
            return [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in cell]
        return cell


def listed(cell: str) -> list[str] | None:
    """The keys of a cell that holds a list as JSON, Python or numpy writes it, if it does."""
    if cell.lstrip()[:1] not in ("[", "(", "{"):
        return None
    if _BY_NUMPY.search(cell):
        return [one or other for one, other in _QUOTED.findall(cell)]
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list | tuple | set):
            return [str(one).strip() for one in found]
    return None


def columns_of(path: Path, rows: Rows, asked: Mapping[str, str], known: Container[str] | None = None) -> Columns:
    """The columns of a file from its first rows; `asked` says some of text, labels and separator.

    Where labels are known by their keys, these say how a cell falls apart; else what separates labels is guessed.
    """
    header = list(dict.fromkeys(name for row in rows for name in row))

    def given(what: str, apart: str | None = None) -> tuple[str, ...]:
        if not (said := asked.get(what)):
            return ()
        names = (said,) if said in header or apart is None else tuple(filter(None, said.split(apart)))
        for name in names:
            if name not in header:
                raise BadFile(path, f"has no column {name!r}; it has {_written(header)}", line=1)
        return names

    labels = "".join(given("labels")) or _named(header, (*LABELS, *MORE_LABELS))
    if labels is None:
        problem = f"has none of the columns that usually hold labels ({', '.join(LABELS)}); it has {_written(header)}"
        raise BadFile(path, f"{problem}: say which it is, with --labels COLUMN, or FILE?labels=COLUMN", line=1)
    text = given("text", "+") or text_columns(header, labels.strip().lower()) or _longest(rows, labels)
    if not text:
        raise BadFile(path, f"has no column of texts; it has {_written(header)}: say which, with --text COLUMN", line=1)
    if labels in text:
        raise BadFile(path, f"column {labels!r} cannot hold both the texts and the labels; say which others do", line=1)
    mark, told = asked.get("separator"), ""
    if (text, labels) != (("text",), "labels") and not {"text", "labels"} <= set(asked):
        told = f"texts are in {' and '.join(map(repr, text))}, labels in {labels!r}"
    if not mark and known is not None:
        return Columns(text, labels, partial(divided, known=known), told)
    if not mark and (mark := guessed_separator([row[labels] for row in rows if isinstance(row.get(labels), str)])):
        told = f"{told}, separated by {mark!r}" if told else f"labels are separated by {mark!r}"
    return Columns(text, labels, partial(split_at, mark), told)


def text_columns(header: Iterable[str], but: str = "") -> tuple[str, ...]:
    """Those whose names say that they hold texts: a title and a body, one of them, or none."""
    body, title = (_named(header, names, but) for names in (TEXTS, TITLES))
    if body is not None and body.strip().lower() in ("text", "texts"):
        return (body,)
    return tuple(name for name in (title, body) if name is not None)


def _named(header: Iterable[str], names: Sequence[str], but: str = "") -> str | None:
    """The column that has the first of these names, in capitals or not."""
    by_name = {name.strip().lower(): name for name in reversed([*header])}
    return next((by_name[name] for name in names if name in by_name and name != but), None)


def _longest(rows: Rows, but: str) -> tuple[str, ...]:
    lengths: Counter[str] = Counter()
    for row in rows:
        lengths.update({name: len(cell) for name, cell in row.items() if isinstance(cell, str) and name != but})
    return tuple(name for name, _ in lengths.most_common(1))


def guessed_separator(cells: Sequence[str]) -> str | None:
    """The mark that stands between labels, or None if each cell is one label.

    A clear mark in a tenth of the cells does. Any mark may belong to a label's name: it separates if most of what it
    would part stands in other cells, too, the most of all marks. How often a cell is repeated says nothing.
    """
    different = {cell.strip() for cell in cells if listed(cell) is None}
    for mark in CLEAR:
        marked = sum(mark in _ENTITY.sub("", cell) for cell in different)
        if marked and 10 * marked >= len(different):
            return mark
    shares = {mark: _share_elsewhere(mark, different) for mark in SEPARATORS}
    best = max(SEPARATORS, key=shares.__getitem__)
    if shares[best] >= 0.5:
        return best
    return "|" if any("|" in cell for cell in different) else None


def _share_elsewhere(mark: str, different: Collection[str]) -> float:
    """Of what a mark would part, the share that stands in other cells, too."""
    parts = [set(split_at(mark, cell)) for cell in different]
    known = Counter(part for of_cell in parts for part in of_cell)
    parted = [part for of_cell in parts if len(of_cell) > 1 for part in of_cell]
    return sum(known[part] > 1 for part in parted) / max(1, len(parted))


def parting(cells: Iterable[str], known: Container[str]) -> str | None:
    """The mark at which some cell that is no key falls apart into keys that are known, if there is one."""
    return next(filter(None, (_parting(cell, known) for cell in cells if cell not in known)), None)


def divided(cell: str, known: Container[str]) -> list[str]:
    """The keys in a cell: itself, or what it falls apart into; if that is not known, what a clear mark parts."""
    if cell.strip() in known:
        return [cell.strip()]
    return split_at(_parting(cell, known) or next((mark for mark in CLEAR if mark in cell), None), cell)


def split_at(mark: str | None, cell: str) -> list[str]:
    """What stands between the marks of a cell; all of it if there is no mark."""
    return [part for part in map(str.strip, cell.split(mark) if mark else [cell]) if part]


def _parting(cell: str, known: Container[str]) -> str | None:
    """The mark at which a cell falls apart into keys that are known."""
    marks = (mark for mark in SEPARATORS if mark in cell)
    return next((mark for mark in marks if all(part in known for part in split_at(mark, cell))), None)


def _written(header: Sequence[str]) -> str:
    return ", ".join(map(repr, header)) or "none"
