"""The Milvus behind an index folder: which addresses are believed, and who may have an embedded engine."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from umpteen.errors import BadInput, InUse
from umpteen.retrieval.milvus_collection import MilvusCollection
from umpteen.retrieval.milvus_connection import MilvusAway, MilvusConnection
from umpteen.retrieval.milvus_index import MilvusIndex

ADDRESS = "UMPTEEN_MILVUS_URI"  # where the operator says that Milvus is
LIVING = "milvus"  # the embedded engine's folder in an index, which changes in use
INSIDE = f"{LIVING}/labels.db"  # the address of an engine that lies in the index folder and moves with it


def connection_of(folder: Path, about: dict[str, Any]) -> MilvusConnection:
    """The way to the Milvus of an index folder. An address in it is believed only if the operator gives the same."""
    uri = str(about["uri"])
    if uri == INSIDE:
        return MilvusConnection(str((folder / INSIDE).resolve()))
    if os.environ.get(ADDRESS) == uri:
        return MilvusConnection(uri)
    return MilvusConnection(
        uri,
        refused=f"the model folder says that its labels are there, and is not believed: set {ADDRESS}={uri} if that "
        "is yours; until then search is exact",
    )


def new_collection(model: str, name: str) -> str:
    """What the labels of a model are called in Milvus."""
    return f"umpteen_{model}_{name}"


@contextmanager
def claimed(connection: MilvusConnection) -> Iterator[None]:
    """Keeps other processes from an embedded engine meanwhile; refuses if one has it open."""
    if not connection.embedded:
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


def forget(folder: Path, about: dict[str, Any]) -> str | None:
    """Drops the collection of an index that is gone; says what is left behind if that cannot be done."""
    if about.get("kind") != MilvusIndex.kind or about.get("uri") == INSIDE:
        return None  # it goes with the folder
    name = str(about.get("collection"))
    if not re.fullmatch(new_collection("[0-9a-f]{8}", "[0-9a-f]{8}"), name):
        return f"the collection {name} is left alone: it is not one of umpteen's"
    connection = connection_of(folder, about)
    try:
        MilvusCollection(connection, name, str(about.get("structure", ""))).drop()
    except BadInput as reason:
        return f"the collection {name} may still be there: {reason}"
    finally:
        connection.close()
    return None
