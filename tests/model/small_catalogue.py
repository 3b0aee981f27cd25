"""The labels of the small model in conftest.py, and its database as others may find or leave it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from umpteen.model.folder import MANIFEST, ModelFolder
from umpteen.model.labels import LabelEntry, LiveLabels

LABELS = {"f": "fish", "t": "tax law", "l": "library", "ключ": "図書館 — book", "d": "dog and tree"}


def entries(labels: LiveLabels, search: str = "", *, retired: bool = True) -> list[LabelEntry]:
    """All there is to say about the labels."""
    return [labels.entry(row) for row in labels.find_rows(search, retired=retired)]


def database(model: Path) -> Path:
    """What changes in a model folder."""
    path = ModelFolder(model).store.path
    assert path is not None
    return path


def alter(path: Path, *statements: str) -> None:
    """Somebody with another program does this to a database."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def ask(path: Path, question: str) -> list[tuple[object, ...]]:
    """What somebody with another program reads in a database."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.execute(question))


def without_database(files: dict[str, bytes]) -> dict[str, bytes]:
    """Of a folder's files: those that are never altered."""
    assert MANIFEST in files
    return {name: content for name, content in files.items() if not name.endswith(".db") or "/" in name}
