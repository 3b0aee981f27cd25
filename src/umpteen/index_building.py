"""`umpteen index build`: an index over a model's labels, tuned and certified before it takes its place."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from umpteen.catalogue.lock import locked
from umpteen.classifier import Classifier
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput
from umpteen.index_sample import USUAL, Sample, of_label_texts
from umpteen.indexing import (
    EMBEDDED,
    EXACT,
    KINDS,
    LIVING,
    MILVUS,
    connection_of,
    forget,
    save_certificate,
    settings_of,
    size_of,
)
from umpteen.manifest import INDEX, read_manifest, write_part
from umpteen.retrieval.certificate import Certificate, interval, queries_per_second
from umpteen.retrieval.effort import Effort
from umpteen.retrieval.exact_index import ExactIndex
from umpteen.retrieval.faiss_index import FaissIndex
from umpteen.retrieval.live_vectors import LiveVectors
from umpteen.retrieval.milvus_collection import MilvusCollection
from umpteen.retrieval.milvus_connection import is_embedded
from umpteen.retrieval.milvus_index import MilvusIndex
from umpteen.retrieval.tuned_effort import Tuned, tune
from umpteen.storage import atomic_folder

USUAL_K = 10

Progress = Callable[[str, int, int], None]
Kind = ExactIndex | FaissIndex | MilvusIndex


def build_index(
    model: Path | str,
    kind: str,
    *,
    recall: float = 0.99,
    k: int | None = None,
    sample: Sample | int = USUAL,
    uri: str | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Builds an index over the labels as they are now, tunes it, certifies it and puts it into the model folder.

    If the recall cannot be reached, nothing is changed. Where the sample of queries is a number, so many of the labels'
    own texts are the queries; `k` is 10, or as many as the ranker looks at; `uri` says where Milvus is.
    """
    model = Path(model)
    _check(kind, recall, k, uri)
    tell = progress or (lambda name, done, total: None)
    checksum, before = read_manifest(model)["checksum"], settings_of(model)
    classifier, labels = labels_now(model)
    if isinstance(sample, int):
        sample = of_label_texts(classifier.labels, sample)
    queries = encode_texts(classifier.towers.query, sample.texts).float().cpu()
    k = min(k or usual_k(classifier), labels.count())
    with _not_in_use(model, before), ExitStack() as held, atomic_folder(model / INDEX) as folder, ExitStack() as undo:
        begun = time.perf_counter()
        index: Kind
        about: dict[str, Any] = {}
        if kind == MILVUS:
            index, about = _in_milvus(folder, checksum, classifier, labels, uri, undo, partial(tell, "building"))
        else:
            index = _in_files(kind, labels, partial(tell, "building"))
        seconds = time.perf_counter() - begun
        tuned = _tuned(index, queries, k, recall)
        speeds = [queries_per_second(side, queries, k) for side in (index, ExactIndex.of(labels))]
        settings = {**index.save(folder), **about}
        index.close()
        certificate = Certificate(
            kind=kind,
            k=k,
            target=recall,
            recall=float(tuned.recalls.mean()),
            recall_interval=interval(tuned.recalls),
            effort=tuned.effort.to_dict(),
            queries=len(tuned.recalls),
            queries_tuned_on=tuned.tuned_on,
            sample=sample.origin,
            labels=labels.count(),
            dimension=labels.dimension,
            catalogue_version=classifier.version,
            queries_per_second={"index": speeds[0], "exact": speeds[1]},
            bytes={"index": _bytes(folder, settings), "exact": labels.count() * labels.dimension * 4},
            build_seconds=seconds,
            attempts=tuned.attempts,
        )
        save_certificate(certificate, folder)
        write_part(folder, checksum, settings, classifier.version, living=LIVING)
        held.enter_context(locked(model))  # until the index is in its place: the model must not be replaced meanwhile
        if read_manifest(model)["checksum"] != checksum:
            raise BadInput(f"{model}: was replaced while its index was built; nothing was changed, build it again")
        undo.pop_all()
    if before is not None and before["kind"] == MILVUS and before["uri"] != EMBEDDED:
        forget(collection_of(model, before))  # an unreachable Milvus keeps what nobody asks for any more
    return certificate


def labels_now(model: Path) -> tuple[Classifier, LiveVectors]:
    """The classifier without its index, and its labels' vectors as they are now."""
    classifier = Classifier.load(model, index=False)
    assert isinstance(classifier.index, ExactIndex)
    return classifier, classifier.index.labels


def usual_k(classifier: Classifier) -> int:
    """How many labels a search is usually asked for."""
    ranker = classifier.ranker
    return USUAL_K if ranker is None else max(USUAL_K, ranker.settings.candidates)


def collection_of(model: Path, settings: dict[str, Any]) -> MilvusCollection:
    """The collection of a Milvus index."""
    return MilvusCollection(connection_of(model / INDEX, settings), settings["collection"], settings["structure"])


def _in_files(kind: str, labels: LiveVectors, progress: Callable[[int, int], None]) -> ExactIndex | FaissIndex:
    return ExactIndex.of(labels) if kind == EXACT else FaissIndex.build(kind, labels, Effort(1, 1, 1), progress)


def _in_milvus(
    folder: Path,
    checksum: str,
    classifier: Classifier,
    labels: LiveVectors,
    uri: str | None,
    undo: ExitStack,
    progress: Callable[[int, int], None],
) -> tuple[MilvusIndex, dict[str, Any]]:
    """A new collection, which goes again if anything goes wrong, and where it is."""
    (folder / LIVING).mkdir()
    where = EMBEDDED if uri is None else str(Path(uri).resolve()) if is_embedded(uri) else uri
    connection = connection_of(folder, {"uri": where})
    connection.connect(attempts=4)
    name = f"umpteen_{checksum[:16]}_{secrets.token_hex(4)}"
    undo.callback(lambda: forget(MilvusCollection(connection, name, "")))
    return MilvusIndex.build(connection, name, labels, classifier.labels, progress), {"uri": where}


def _tuned(index: Kind, queries: Tensor, k: int, recall: float) -> Tuned:
    if isinstance(index, ExactIndex):
        return Tuned(Effort(k, 0, 0), np.ones(len(queries)), 0, 1)
    return tune(index, queries, k, recall)


def _bytes(folder: Path, settings: dict[str, Any]) -> int | None:
    """What the index itself takes; None if it is elsewhere."""
    if settings["kind"] != MILVUS or settings["uri"] == EMBEDDED:
        return size_of(folder)
    return size_of(Path(settings["uri"])) if is_embedded(settings["uri"]) else None


@contextmanager
def _not_in_use(model: Path, settings: dict[str, Any] | None) -> Iterator[None]:
    """Refuses if another process has the embedded engine of the index that is to be replaced open."""
    if settings is None or settings["kind"] != MILVUS or settings["uri"] != EMBEDDED:
        yield
        return
    connection = connection_of(model / INDEX, settings)
    try:
        connection.own()
        yield
    finally:
        connection.close()


def _check(kind: str, recall: float, k: int | None, uri: str | None) -> None:
    if kind not in KINDS:
        raise BadInput(f"{kind!r} is no kind of index; there are {', '.join(KINDS)}")
    if not 0 < recall <= 1:
        raise BadInput(f"a recall of {recall:g} is asked for; it must lie above 0 and not above 1")
    if k is not None and k < 1:
        raise BadInput(f"k is {k}; ask for at least 1 label")
    if uri is not None and kind != MILVUS:
        raise BadInput(f"an address ({uri}) is for the kind milvus; {kind} keeps its files in the model folder")
    if uri is not None and is_embedded(uri) and not uri.endswith(".db"):
        raise BadInput(
            f"{uri}: the embedded Milvus keeps its files in a folder whose name ends in .db; a cluster has "
            "an address that starts with http:// or https://"
        )
