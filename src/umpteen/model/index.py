"""A model's index as a part of its folder: opened for a classifier, shown, and removed. index_building.py makes it."""

import json
from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection

from safetensors import SafetensorError

from umpteen.errors import BadInput, DamagedModel
from umpteen.model.catalogue import LiveCatalogue
from umpteen.model.folder import INDEX, ModelFolder, Verified, at_one_moment, checked_parts
from umpteen.model.store import Part
from umpteen.search.certificate import Certificate
from umpteen.search.exact_index import ExactIndex
from umpteen.search.faiss import KINDS as FAISS_KINDS
from umpteen.search.faiss import FaissIndex
from umpteen.search.index import LabelIndex
from umpteen.search.milvus import MilvusIndex
from umpteen.search.milvus_places import FallbackIndex, connection_of, forget

EXACT, MILVUS = ExactIndex.kind, MilvusIndex.kind
CERTIFICATE = "certificate.json"
BOUND = "bound_to_folder"  # in what is told of a part: a copy of its files would be of no use elsewhere


def open_index(folder: Path, part: Part, catalogue: LiveCatalogue) -> LabelIndex:
    """The index as it was made; the caller tells it what has changed since that version of the labels."""
    kind = part.about.get("kind")
    if kind not in _OPENED:
        raise BadInput(f"{folder}: {kind!r} is no kind of index that this version knows; there are {', '.join(KINDS)}")
    try:
        return _OPENED[kind](folder, part, catalogue)
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise DamagedModel(
            f"{folder}: cannot be opened although its files are whole ({error}); "
            "`umpteen index build` makes it again, `umpteen index remove` goes back to exact search"
        ) from error


def _open_exact(folder: Path, part: Part, catalogue: LiveCatalogue) -> LabelIndex:
    return ExactIndex.of(catalogue.vectors_at(part.labels_version))


def _open_faiss(folder: Path, part: Part, catalogue: LiveCatalogue) -> LabelIndex:
    return FaissIndex.open(folder, catalogue.vectors_at(part.labels_version), part.about)


def _open_milvus(folder: Path, part: Part, catalogue: LiveCatalogue) -> LabelIndex:
    return FallbackIndex(open_milvus(folder, part, catalogue))


def open_milvus(folder: Path, part: Part, catalogue: LiveCatalogue) -> MilvusIndex:
    """The labels in Milvus; nobody is asked before something is searched for."""
    labels, connection = catalogue.vectors_at(part.labels_version), connection_of(folder, part.about)
    return MilvusIndex.open(labels, part.about, connection, lambda: catalogue.labels, part.labels_version)


_OPENED: dict[str, Callable[[Path, Part, LiveCatalogue], LabelIndex]] = {
    EXACT: _open_exact,
    **dict.fromkeys(FAISS_KINDS, _open_faiss),
    MILVUS: _open_milvus,
}
KINDS = tuple(_OPENED)


def index_of(model: Path) -> tuple[Part, Certificate] | None:
    """The index of a model folder, if it has one and its files are whole, and what was measured when it was built."""

    def read(folder: ModelFolder, connection: Connection) -> tuple[Part, Certificate] | None:
        part = checked_parts(connection).get(INDEX)
        if part is None:
            return None
        folder.require_whole([part], Verified(connection), only=(part.folder,))
        path = folder.part_path(part) / CERTIFICATE
        try:
            return part, Certificate.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedModel(f"{path}: is damaged ({error}); build the index again") from error

    return at_one_moment(model, read)


def certificate_of(model: Path) -> Certificate | None:
    """What was measured when the index was built; None: the model searches exactly."""
    found = index_of(model)
    return None if found is None else found[1]


def remove_index(model: Path) -> str | None:
    """The model searches exactly from now on; returns what was left behind elsewhere, if something was."""
    folder = ModelFolder(model)
    part = folder.drop(INDEX)
    return forget(folder.part_path(part), part.about)


def save_certificate(certificate: Certificate, folder: Path) -> None:
    text = json.dumps(certificate.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (folder / CERTIFICATE).write_text(text, encoding="utf-8")


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
