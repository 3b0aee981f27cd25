"""`umpteen index build`: an index over a model's labels, tuned and certified before it takes its place."""

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
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
from umpteen.indexing import EXACT, KINDS, MILVUS, save_certificate, size_of
from umpteen.manifest import INDEX, read_manifest, write_part
from umpteen.retrieval.certificate import Certificate, interval, queries_per_second
from umpteen.retrieval.effort import Effort
from umpteen.retrieval.exact_index import ExactIndex
from umpteen.retrieval.faiss_index import FaissIndex
from umpteen.retrieval.live_vectors import LiveVectors
from umpteen.retrieval.milvus_claim import INSIDE, LIVING, connection_of, forget, replacing
from umpteen.retrieval.milvus_engine import is_embedded
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

    If the recall cannot be reached, or another process has an embedded Milvus open that is written to or goes, nothing
    is changed. Where the sample of queries is a number, so many of the labels' own texts are the queries; `k` is 10, or
    as many as the ranker looks at; `uri` says where Milvus is.
    """
    model = Path(model)
    _check(kind, recall, k, uri)
    tell = progress or (lambda name, done, total: None)
    checksum = read_manifest(model)["checksum"]
    where = INSIDE if uri is None else str(Path(uri).resolve()) if is_embedded(uri) else uri
    with replacing(model / INDEX, checksum, where) as old, ExitStack() as undo:
        classifier, labels = labels_now(model)
        if isinstance(sample, int):
            sample = of_label_texts(classifier.labels, sample)
        queries = encode_texts(classifier.towers.query, sample.texts).float().cpu()
        k = min(k or usual_k(classifier), labels.count())
        with ExitStack() as held, atomic_folder(model / INDEX) as folder, ExitStack() as opened:
            begun = time.perf_counter()
            index: Kind
            about: dict[str, Any] = {}
            if kind == MILVUS:
                (folder / LIVING).mkdir()  # before the engine that may lie in it
                connection = connection_of(folder, {"uri": where})
                opened.callback(connection.close)
                connection.connect(attempts=4)
                name = f"umpteen_{checksum[:16]}_{secrets.token_hex(4)}"
                undo.callback(forget, folder, {"uri": where, "collection": name, "structure": ""})
                index = MilvusIndex.build(connection, name, labels, classifier.labels, partial(tell, "building"))
                about = {"uri": where}
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
            held.enter_context(locked(model))  # until the index is in its place
            if read_manifest(model)["checksum"] != checksum or not old.is_still_there():
                raise BadInput(
                    f"{model}: the model, or its index in Milvus, was replaced while this index was built; nothing was "
                    "changed, build it again"
                )
            old.make_way()
        undo.pop_all()
    return certificate  # an unreachable Milvus keeps what nobody asks for any more


def labels_now(model: Path) -> tuple[Classifier, LiveVectors]:
    """The classifier without its index, and its labels' vectors as they are now."""
    classifier = Classifier.load(model, index=False)
    assert isinstance(classifier.index, ExactIndex)
    return classifier, classifier.index.labels


def usual_k(classifier: Classifier) -> int:
    """How many labels a search is usually asked for."""
    ranker = classifier.ranker
    return USUAL_K if ranker is None else max(USUAL_K, ranker.settings.candidates)


def _in_files(kind: str, labels: LiveVectors, progress: Callable[[int, int], None]) -> ExactIndex | FaissIndex:
    return ExactIndex.of(labels) if kind == EXACT else FaissIndex.build(kind, labels, Effort(1, 1, 1), progress)


def _tuned(index: Kind, queries: Tensor, k: int, recall: float) -> Tuned:
    if isinstance(index, ExactIndex):
        return Tuned(Effort(k, 0, 0), np.ones(len(queries)), 0, 1)
    return tune(index, queries, k, recall)


def _bytes(folder: Path, settings: dict[str, Any]) -> int | None:
    """What the index itself takes; None if it is elsewhere."""
    if settings["kind"] != MILVUS or settings["uri"] == INSIDE:
        return size_of(folder)
    return size_of(Path(settings["uri"])) if is_embedded(settings["uri"]) else None


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
    if uri is not None and is_embedded(uri) and not Path(uri).resolve().parent.is_dir():
        raise BadInput(f"{uri}: there is no folder {Path(uri).resolve().parent}; make it, or give another --uri")
