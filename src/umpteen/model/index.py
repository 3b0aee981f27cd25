"""A model's index as a part of its folder: opened for a classifier, shown, and removed. index_build.py makes it."""

import json
from pathlib import Path
from sqlite3 import Connection

from safetensors import SafetensorError

from umpteen.errors import DamagedModel
from umpteen.model.catalogue import LiveCatalogue
from umpteen.model.folder import INDEX, ModelFolder, Verified, at_one_moment, checked_parts
from umpteen.model.store import Part
from umpteen.search.certificate import Certificate
from umpteen.search.index import Indexed, LabelIndex
from umpteen.search.kinds import engine_of, forget

CERTIFICATE = "certificate.json"


def indexed(catalogue: LiveCatalogue, version: int, model: str = "") -> Indexed:
    """A model's labels as they were in this version, for an index over them."""
    return Indexed(model, catalogue.vectors_at(version), version, lambda: catalogue.labels)


def open_index(folder: Path, part: Part, catalogue: LiveCatalogue) -> LabelIndex:
    """The index as it was made; the caller tells it what has changed since that version of the labels."""
    engine = engine_of(str(part.about.get("kind")))
    try:
        return engine.open(folder, part.about, indexed(catalogue, part.labels_version))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise DamagedModel(
            f"{folder}: cannot be opened although its files are whole ({error}); "
            "`umpteen index build` makes it again, `umpteen index remove` goes back to exact search"
        ) from error


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
