"""The Milvus behind an index folder: kept from other processes before anything is changed, and told to forget after."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from umpteen.errors import BadInput, InUse
from umpteen.manifest import PART
from umpteen.retrieval.milvus_collection import MilvusCollection
from umpteen.retrieval.milvus_connection import MilvusAway, MilvusConnection
from umpteen.retrieval.milvus_engine import is_embedded
from umpteen.retrieval.milvus_index import MilvusIndex

LIVING = "milvus"  # the embedded engine's folder in index/, which changes in use
INSIDE = f"{LIVING}/labels.db"  # the address of an engine that lies in the index folder and moves with it


def connection_of(folder: Path, settings: dict[str, Any]) -> MilvusConnection:
    """The way to the Milvus of an index folder."""
    uri = settings["uri"]
    return MilvusConnection(str((folder / uri).resolve()) if is_embedded(uri) else uri)


def milvus_of(folder: Path, checksum: str) -> dict[str, Any] | None:
    """The settings of an index that Milvus keeps for the model with this checksum, damaged or not; None: it keeps none.

    In a folder that was copied from another model, a collection elsewhere is that model's.
    """
    try:
        part = json.loads((folder / PART).read_text(encoding="utf-8"))
        settings: dict[str, Any] = part["settings"]
        is_milvus = settings["kind"] == MilvusIndex.kind and bool(settings["collection"] and settings["structure"])
        return settings if is_milvus and (settings["uri"] == INSIDE or part["belongs_to"] == checksum) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Predecessor:
    """The index of a folder that another one, or none, takes the place of, as far as Milvus keeps it."""

    def __init__(self, folder: Path, checksum: str) -> None:
        self.left_behind: str | None = None  # what Milvus, out of reach, could not be told to forget
        self.settings = milvus_of(folder, checksum)
        self.connection = None if self.settings is None else connection_of(folder, self.settings)
        self._folder, self._checksum = folder, checksum

    def is_still_there(self) -> bool:
        """Whether nobody has put another one in its place meanwhile."""
        return milvus_of(self._folder, self._checksum) == self.settings

    def make_way(self) -> None:
        """An engine in the folder stops, so that its files can go."""
        if self.connection is not None and self.settings is not None and self.settings["uri"] == INSIDE:
            self.connection.rest()


@contextmanager
def replacing(folder: Path, checksum: str, where: str = INSIDE) -> Iterator[Predecessor]:
    """Refuses, before anything is changed, if another process has an engine open that is written to or goes.

    That is the one of the index that stands there, and the one at the address `where`. When all went well, Milvus
    forgets the old collection.
    """
    old = Predecessor(folder, checksum)
    with claimed(old.connection), claimed(None if where == INSIDE else MilvusConnection(where)):
        yield old
        if old.settings is not None:
            old.left_behind = forget(folder, old.settings)


@contextmanager
def claimed(connection: MilvusConnection | None) -> Iterator[None]:
    """Keeps other processes from an embedded engine meanwhile; refuses if one has it open."""
    if connection is None or not connection.embedded:
        yield
        return
    try:
        with suppress(MilvusAway):  # an engine whose folder is gone is nobody's
            connection.own()
    except InUse as error:
        raise InUse(f"{error}. Nothing was changed") from None
    try:
        yield
    finally:
        connection.close()


def forget(folder: Path, settings: dict[str, Any]) -> str | None:
    """Drops the collection of an index that is gone; says what is left behind if Milvus cannot be reached."""
    if settings["uri"] == INSIDE:
        return None  # it went with the folder
    connection = connection_of(folder, settings)
    try:
        MilvusCollection(connection, settings["collection"], settings["structure"]).drop()
    except BadInput as reason:
        return f"the collection {settings['collection']} may still be there: {reason}"
    finally:
        connection.close()
    return None
