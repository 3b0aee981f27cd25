"""The versions of a model's labels folded into its own files: rows stay, the history ends, loading is fast again."""

from pathlib import Path
from typing import NamedTuple

from umpteen.catalogue.live_catalogue import LiveCatalogue
from umpteen.catalogue.lock import locked
from umpteen.manifest import write_manifest
from umpteen.model_card import with_labels
from umpteen.model_folder import (
    CARD,
    Model,
    carry_parts,
    copied_without_labels,
    has_older_index,
    read_model,
    require_index_that_comes_along,
    require_no_milvus,
    write_labels_and_vectors,
)
from umpteen.storage import atomic_folder


class Compacted(NamedTuple):
    """What became of a folder."""

    versions: int  # that were folded in
    version: int  # of the labels, as before
    labels: int
    dropped_index: bool


def compact(path: Path, *, drop_index: bool = False) -> Compacted:
    """Rewrites the folder with its labels as they are, whole or not at all; a calibration comes along.

    An index comes along if it was built of these very labels; an older one is only dropped if the caller says so.
    """
    with locked(path):
        model, journal = read_model(path)
        catalogue = LiveCatalogue(model.labels, model.vectors, journal)
        labels = catalogue.labels
        versions = len(catalogue.versions)
        if versions == 0:
            return Compacted(0, labels.version, labels.count(), False)
        if drop_index:
            require_no_milvus(path)
        else:
            require_index_that_comes_along(path, labels.version, instead="give --drop-index and build it afterwards")
        is_old = has_older_index(path, labels.version)
        ranker = model.ranker and model.ranker.with_later(len(labels), labels.changed())
        new = Model(
            model.towers,
            labels,
            catalogue.vectors.all(len(labels)),
            data=model.data,
            training=model.training,
            ranker=ranker,
        )
        with atomic_folder(path) as folder:
            copied_without_labels(path, folder)
            write_labels_and_vectors(new, folder)
            settings = new.settings()
            card = folder / CARD
            if card.is_file():
                card.write_text(with_labels(card.read_text(encoding="utf-8"), settings), encoding="utf-8")
            carry_parts(journal, folder, write_manifest(folder, settings), labels.version)
    return Compacted(versions, labels.version, labels.count(), is_old)
