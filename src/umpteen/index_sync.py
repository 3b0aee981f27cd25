"""`umpteen index sync`: an index brought up to the labels as they are now."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.catalogue.lock import locked
from umpteen.classifier import Classifier
from umpteen.errors import BadInput
from umpteen.index_building import Progress, build_index, labels_now
from umpteen.index_sample import USUAL, Sample
from umpteen.indexing import MILVUS, certificate_of, settings_of
from umpteen.manifest import INDEX, PART, read_manifest, write_part
from umpteen.retrieval.live_vectors import LiveVectors, Rows
from umpteen.retrieval.milvus_claim import INSIDE, LIVING, claimed, connection_of
from umpteen.retrieval.milvus_collection import HNSW
from umpteen.retrieval.milvus_index import LABELS, MilvusIndex, all_of_length_1
from umpteen.storage import atomic_folder


def sync_index(model: Path | str, *, sample: Sample | int = USUAL, progress: Progress | None = None) -> int:
    """Brings the index up to the labels as they are now; returns how many rows were not yet in it.

    Milvus is told of those rows, and its certificate stays as it was measured. Other kinds are built again for the
    recall that they were built for, and get a new certificate.
    """
    model = Path(model)
    checksum = read_manifest(model)["checksum"]
    settings, certificate = settings_of(model), certificate_of(model)
    if settings is None or certificate is None:
        raise BadInput(f"{model} has no index; `umpteen index build` makes one")
    if settings["kind"] == MILVUS:
        return _sync_milvus(model, checksum, settings)
    _, now = labels_now(model)
    behind = int(differing(LiveVectors.open(model / INDEX / LABELS, now.base), now).sum())
    if behind:
        build_index(
            model, certificate.kind, recall=certificate.target, k=certificate.k, sample=sample, progress=progress
        )
    return behind


def _sync_milvus(model: Path, checksum: str, settings: dict[str, Any]) -> int:
    engine = connection_of(model / INDEX, settings)
    with claimed(engine):
        classifier, now = labels_now(model)
        rows, index = _tell_milvus(model, settings, classifier, now)
        if len(rows):
            with locked(model):
                if read_manifest(model)["checksum"] != checksum or settings_of(model) != settings:
                    raise BadInput(
                        f"{model}: the model or its index was replaced meanwhile; what stands there now is as it was, "
                        "sync it again"
                    )
                if settings["uri"] == INSIDE:
                    engine.rest()
                _remember(model / INDEX, checksum, settings, classifier.version, index)
    return len(rows)


def _tell_milvus(
    model: Path, settings: dict[str, Any], classifier: Classifier, now: LiveVectors
) -> tuple[Rows, MilvusIndex]:
    """Which rows were not yet in Milvus, and the index that holds them now."""
    folder = model / INDEX
    connection = connection_of(folder, settings)
    try:
        connection.connect(attempts=4)
        index = MilvusIndex.open(
            folder, now.base, settings, connection, lambda: classifier.labels, settings["catalogue_version"]
        )
        rows = np.flatnonzero(differing(index.labels, now))
        put, gone = rows[now.active[rows]], rows[~now.active[rows]]
        if index.collection.structure == HNSW and not all_of_length_1(now, put):
            raise BadInput(
                f"{model}: some labels now have vectors of other lengths than 1, for which the graph in Milvus is not "
                "made; nothing was changed, build the index again"
            )
        index.add(put, now.of(put).numpy())
        index.remove(gone)
        index.catch_up(anyway=True)
    finally:
        connection.close()
    return rows, index


def _remember(folder: Path, checksum: str, settings: dict[str, Any], version: int, index: MilvusIndex) -> None:
    """The index folder knows which labels Milvus holds now; the engine's files, if they are in it, come along."""
    with atomic_folder(folder) as fresh:
        shutil.copytree(folder, fresh, dirs_exist_ok=True, copy_function=os.link)  # a database may be large
        for name in (LABELS, PART):
            (fresh / name).unlink()
        index.save(fresh)
        kept = {name: value for name, value in settings.items() if name != "catalogue_version"}
        write_part(fresh, checksum, kept, version, living=LIVING)


def differing(old: LiveVectors, new: LiveVectors) -> NDArray[np.bool_]:
    """Which rows are not as they were: gone, back, new, or with another vector."""
    differs = np.ones(len(new), dtype=np.bool_)  # rows only come, so the new ones are no fewer
    differs[: len(old)] = old.active != new.active[: len(old)]
    both = np.union1d(old.changed, new.changed)
    both = both[both < len(old)]
    both = both[old.active[both] & new.active[both]]
    differs[both] |= (old.of(both) != new.of(both)).any(1).numpy()
    return differs
