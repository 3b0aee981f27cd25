"""A model folder's index/: opened for a classifier, shown, and removed. index_building.py makes it."""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from umpteen.catalogue.lock import locked
from umpteen.errors import BadInput, DamagedModel, NotSaved, UmpteenError
from umpteen.manifest import CATALOGUE, INDEX, PART, read_manifest, read_part
from umpteen.retrieval.certificate import Certificate
from umpteen.retrieval.exact_index import ExactIndex
from umpteen.retrieval.faiss_index import FaissIndex
from umpteen.retrieval.faiss_structures import KINDS as FAISS_KINDS
from umpteen.retrieval.fallback_index import FallbackIndex
from umpteen.retrieval.index import LabelIndex
from umpteen.retrieval.milvus_claim import connection_of, replacing
from umpteen.retrieval.milvus_collection import NamedRows
from umpteen.retrieval.milvus_index import MilvusIndex
from umpteen.stamps import file_stamp
from umpteen.storage import hidden_sibling

EXACT, MILVUS = ExactIndex.kind, MilvusIndex.kind
KINDS = (EXACT, *FAISS_KINDS, MILVUS)
CERTIFICATE = "certificate.json"


def open_index(
    model: Path, checksum: str, base: Tensor, catalogue: Callable[[], NamedRows]
) -> tuple[LabelIndex, int] | None:
    """The index of a model folder and the version of the labels that it knows; None if it has none.

    `base` holds the vectors that the model was written with, `checksum` is of its manifest, `catalogue` gives its
    labels as they are now. What has changed since that version the caller tells the index.

    Another process may replace or remove the index at any moment: it is read whole, as it was or as it is.
    """
    folder = Path(model) / INDEX
    while True:
        stamp = file_stamp(folder / PART)
        if not folder.is_dir():
            return None
        try:
            opened = _open(folder, checksum, base, catalogue)
        except (UmpteenError, OSError):
            if file_stamp(folder / PART) == stamp:
                raise
            continue  # parts of two indexes were read, or of one that is gone
        if file_stamp(folder / PART) == stamp:
            return opened
        opened[0].close()


def _open(folder: Path, checksum: str, base: Tensor, catalogue: Callable[[], NamedRows]) -> tuple[LabelIndex, int]:
    part = read_part(folder, checksum)
    version, now = int(part["catalogue_version"]), catalogue().version
    if version > now:
        raise DamagedModel(
            f"{folder}: was made with version {version} of the labels, but they are at version {now}; "
            f"was {CATALOGUE}/ not copied? Build the index again, or remove it"
        )
    try:
        return _opened(folder, part["settings"], base, catalogue, version), version
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise DamagedModel(
            f"{folder}: cannot be opened although its files are whole ({error}); "
            "`umpteen index build` makes it again, `umpteen index remove` goes back to exact search"
        ) from error


def _opened(
    folder: Path, settings: dict[str, Any], base: Tensor, catalogue: Callable[[], NamedRows], version: int
) -> LabelIndex:
    kind = settings["kind"]
    if kind == EXACT:
        return ExactIndex.open(folder, base)
    if kind in FAISS_KINDS:
        return FaissIndex.open(folder, base, settings)
    if kind == MILVUS:
        connection = connection_of(folder, settings)
        return FallbackIndex(MilvusIndex.open(folder, base, settings, connection, catalogue, version))
    raise BadInput(f"{folder}: {kind!r} is no kind of index that this version knows; there are {', '.join(KINDS)}")


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

    A damaged index is removed, too. Who has its embedded Milvus open keeps it from being removed.
    """
    model = Path(model)
    folder = model / INDEX
    _require_index(model)
    with ExitStack() as held:
        with locked(model):
            _require_index(model)  # nobody else has removed it while we waited
            old = held.enter_context(replacing(folder, read_manifest(model)["checksum"]))
            old.make_way()
            try:
                aside = hidden_sibling(folder)
                folder.replace(aside)
            except OSError as error:
                raise NotSaved(f"{folder}: could not be removed: {error.strerror}; it is as it was") from error
        # The index is gone; what follows tidies up, and nobody has to wait for it.
        shutil.rmtree(aside, ignore_errors=True)
    return old.left_behind


def _require_index(model: Path) -> None:
    read_manifest(model)
    if not (model / INDEX).is_dir():
        raise BadInput(f"{model} has no index to remove; it searches exactly")


def save_certificate(certificate: Certificate, folder: Path) -> None:
    text = json.dumps(certificate.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (folder / CERTIFICATE).write_text(text, encoding="utf-8")


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
