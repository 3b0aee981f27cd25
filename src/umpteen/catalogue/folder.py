"""The labels of a model folder without the rest of the model: the encoder is loaded only if texts are to be encoded.

So the command line changes labels beside a running service, and opens neither ranker nor index.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from umpteen.catalogue.changes import Change
from umpteen.catalogue.journal import Journal, Replaced, stamp_of
from umpteen.catalogue.live import LiveLabels
from umpteen.catalogue.live_catalogue import LiveCatalogue
from umpteen.catalogue.stored import LABEL_FILES, VECTORS, read_labels, read_vectors, version_of
from umpteen.encoders.towers import Towers
from umpteen.encoding import Progress, encode_texts
from umpteen.errors import DamagedModel, NotSaved
from umpteen.manifest import problems, read_manifest

_TRIES = 5


def open_catalogue(path: Path) -> LiveCatalogue:
    """The labels as they are now, with their history; of the files, only the labels' are checked."""
    while True:
        stamp = stamp_of(path)
        try:
            manifest = _whole(path, lambda name: name in (*LABEL_FILES, VECTORS))
            journal = Journal(path, manifest["checksum"], stamp)
            found = LiveCatalogue(read_labels(path, version_of(manifest)), read_vectors(path), journal)
            if stamp_of(path) == stamp:
                return found  # else the model was replaced while it was read, even if all fits together
        except (DamagedModel, OSError, ValueError, KeyError, SafetensorError) as error:
            if stamp_of(path) != stamp:
                continue  # the model was replaced while it was read
            if isinstance(error, DamagedModel):
                raise
            raise DamagedModel(f"{path}: its labels cannot be read: {error}; copy the model again") from error


def change_labels(
    path: Path,
    changes: Callable[[LiveLabels], Sequence[Change]],
    *,
    note: str = "",
    progress: Progress | None = None,
) -> LiveCatalogue:
    """Makes the changes that follow from the labels there are, as one version; the labels afterwards."""

    def encode(texts: list[str]) -> Tensor:
        _whole(path, lambda name: name.startswith("encoder/"))
        return encode_texts(Towers.load(path / "encoder").label, texts, progress=progress).float().cpu()

    return _changed(path, lambda labels: labels.change(changes(labels.labels), encode, note))


def undo_labels(path: Path, to_version: int | None = None, *, note: str = "") -> LiveCatalogue:
    """Goes back to an older version, by default the one before; the labels afterwards."""
    return _changed(path, lambda labels: labels.undo(to_version, note))


def _changed(path: Path, change: Callable[[LiveCatalogue], None]) -> LiveCatalogue:
    for _ in range(_TRIES):
        labels = open_catalogue(path)
        try:
            change(labels)
        except Replaced:
            continue
        return labels
    raise NotSaved(f"{path}: is being replaced again and again; nothing was changed, try again later")


def _whole(path: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """The manifest, if the wanted files are as it says."""
    manifest = read_manifest(path)
    files = {name: file for name, file in manifest["files"].items() if wanted(name)}
    damage = problems(path, {"files": files}, arrays=False)
    if damage:
        raise DamagedModel(damage[0])
    return manifest
