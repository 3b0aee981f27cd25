"""A model folder's index/: opened for a classifier, shown, and removed. index_building.py makes it."""

import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.manifest import CATALOGUE, INDEX, PART, read_manifest, read_part
from umpteen.retrieval.certificate import Certificate
from umpteen.retrieval.exact_index import ExactIndex
from umpteen.retrieval.faiss_index import FaissIndex
from umpteen.retrieval.faiss_structures import KINDS as FAISS_KINDS
from umpteen.retrieval.fallback_index import FallbackIndex
from umpteen.retrieval.index import LabelIndex
from umpteen.retrieval.milvus_collection import MilvusCollection, NamedRows
from umpteen.retrieval.milvus_connection import MilvusAway, MilvusConnection, is_embedded
from umpteen.retrieval.milvus_index import MilvusIndex

EXACT, MILVUS = ExactIndex.kind, MilvusIndex.kind
KINDS = (EXACT, *FAISS_KINDS, MILVUS)
CERTIFICATE = "certificate.json"
LIVING = "milvus"  # the embedded engine's folder in index/, which changes in use
EMBEDDED = f"{LIVING}/labels.db"


def open_index(
    model: Path, checksum: str, base: Tensor, catalogue: Callable[[], NamedRows]
) -> tuple[LabelIndex, int] | None:
    """The index of a model folder and the version of the labels that it knows; None if it has none.

    `base` holds the vectors that the model was written with, `checksum` is of its manifest, `catalogue` gives its
    labels as they are now. What has changed since that version the caller tells the index.
    """
    folder = Path(model) / INDEX
    if not folder.is_dir():
        return None
    part = read_part(folder, checksum)
    settings = part["settings"]
    if part["catalogue_version"] > catalogue().version:
        raise DamagedModel(
            f"{folder}: was made with version {part['catalogue_version']} of the labels, but they are at version "
            f"{catalogue().version}; was {CATALOGUE}/ not copied? Build the index again, or remove it"
        )
    try:
        return _opened(folder, settings, base, catalogue), int(part["catalogue_version"])
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise DamagedModel(
            f"{folder}: cannot be opened although its files are whole ({error}); "
            "`umpteen index build` makes it again, `umpteen index remove` goes back to exact search"
        ) from error


def _opened(folder: Path, settings: dict[str, Any], base: Tensor, catalogue: Callable[[], NamedRows]) -> LabelIndex:
    kind = settings["kind"]
    if kind == EXACT:
        return ExactIndex.open(folder, base)
    if kind in FAISS_KINDS:
        return FaissIndex.open(folder, base, settings)
    if kind == MILVUS:
        return FallbackIndex(MilvusIndex.open(folder, base, settings, connection_of(folder, settings), catalogue))
    raise BadInput(f"{folder}: {kind!r} is no kind of index that this version knows; there are {', '.join(KINDS)}")


def connection_of(folder: Path, settings: dict[str, Any]) -> MilvusConnection:
    """The way to the Milvus of an index folder; an embedded engine moves with it."""
    uri = settings["uri"]
    return MilvusConnection(str((folder / uri).resolve()) if is_embedded(uri) else uri)


def settings_of(model: Path) -> dict[str, Any] | None:
    """How the index of a model folder was made; None if there is none."""
    folder = Path(model) / INDEX
    checksum = read_manifest(Path(model))["checksum"]
    if not folder.is_dir():
        return None
    part = read_part(folder, checksum)
    return {**part["settings"], "catalogue_version": part["catalogue_version"]}


def certificate_of(model: Path) -> Certificate | None:
    """What was measured when the index was built; None: the model searches exactly."""
    if settings_of(model) is None:
        return None
    path = Path(model) / INDEX / CERTIFICATE
    try:
        return Certificate.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DamagedModel(f"{path}: is damaged ({error}); build the index again") from error


def remove_index(model: Path) -> str | None:
    """The model searches exactly from now on; returns what was left behind elsewhere, if something was.

    A damaged index is removed, too.
    """
    folder = Path(model) / INDEX
    read_manifest(Path(model))
    if not folder.is_dir():
        raise BadInput(f"{model} has no index to remove; it searches exactly")
    left_behind = _drop_collection(folder)
    aside = folder.with_name(f".{INDEX}.removed.{secrets.token_hex(4)}")
    try:
        folder.replace(aside)
    except OSError as error:
        raise NotSaved(f"{folder}: could not be removed: {error.strerror}; it is as it was") from error
    shutil.rmtree(aside, ignore_errors=True)
    return left_behind


def _drop_collection(folder: Path) -> str | None:
    """Milvus forgets the index; refused while another process has an embedded engine open."""
    try:
        settings = json.loads((folder / PART).read_text(encoding="utf-8"))["settings"]
        if settings["kind"] != MILVUS:
            return None
        connection = connection_of(folder, settings)
        collection = MilvusCollection(connection, settings["collection"], settings["structure"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return forget(collection)


def forget(collection: MilvusCollection) -> str | None:
    """Drops a collection, and says what is left behind if Milvus cannot be reached."""
    try:
        collection.drop()
    except MilvusAway as away:
        return f"the collection {collection.name} may still be there: {away}"
    finally:
        collection.connection.close()
    return None


def save_certificate(certificate: Certificate, folder: Path) -> None:
    text = json.dumps(certificate.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (folder / CERTIFICATE).write_text(text, encoding="utf-8")


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
