"""The index of a saved model: built, tuned and certified before it takes its place, brought up to date, removed."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from umpteen.data.formats.reading import BadRow, InputRows
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.folder import write_json
from umpteen.errors import BadFile, BadInput, NotSaved
from umpteen.files.progress import Progress, silent
from umpteen.model.catalogue import open_labels
from umpteen.model.changes import Part, read_parts, write_part
from umpteen.model.classifier import Classifier
from umpteen.model.folder import INDEX, ModelFolder, at_one_moment, checked_parts
from umpteen.model.labels import LiveLabels
from umpteen.search import KINDS
from umpteen.search.certificate import Certificate, interval, queries_per_second, tune
from umpteen.search.index import ExactIndex, Indexed, Rows, class_of

CERTIFICATE = "certificate.json"
USUAL = 1000  # queries
USUAL_K = 10


class Sample(NamedTuple):
    """Texts, and where they come from."""

    texts: list[str]
    origin: str


def sample_of(texts: Sequence[str], origin: str, count: int = USUAL, rows: Rows | None = None) -> Sample:
    """Some of the texts, or of those in these rows."""
    rows = np.arange(len(texts)) if rows is None else rows
    chosen = np.random.default_rng(0).choice(rows, min(count, len(rows)), replace=False)
    return Sample([texts[row] for row in np.sort(chosen).tolist()], origin)


def of_label_texts(labels: LiveLabels, count: int = USUAL) -> Sample:
    """Texts of some labels: all there is where nothing is known of the queries to come."""
    return sample_of(labels.texts, "the labels' own texts, encoded as queries", count, np.flatnonzero(labels.active))


def of_file(path: Path, count: int = USUAL) -> Sample:
    """Some texts of a file: one a line, or the field `text` of JSON lines or a table."""
    texts = []
    for row in InputRows(path):
        if isinstance(row, BadRow):
            raise BadFile(path, f"{row.problem}: {row.content!r}", line=row.line)
        texts.append(row.text)
    if len(texts) < 2:
        raise BadFile(path, f"holds {len(texts)} texts; an index is tuned on some and certified on others")
    return sample_of(texts, f"texts of {path.name}", count)


def build_index(
    model: Path | str,
    kind: str,
    *,
    recall: float = 0.99,
    k: int | None = None,
    sample: Sample | int = USUAL,
    uri: str | None = None,
    progress: Progress = silent,
) -> Certificate:
    """Builds an index over the labels as they are now, tunes it, certifies it and puts it into the model folder.

    If the recall cannot be reached, nothing is changed. Where the sample of queries is a number, so many of the labels'
    own texts are the queries; `k` is 10, or as many as the ranker looks at; `uri` says where Milvus is.
    """
    chosen = class_of(kind)
    if uri is not None and not chosen.has_address:
        others = [name for name in KINDS if class_of(name).has_address]
        raise BadInput(f"an address ({uri}) is for {', '.join(others)}; {kind} keeps its files in the model folder")
    chosen.check(uri)
    classifier = Classifier.load(model, index=False)
    folder, labels = classifier.home, classifier.index.labels
    over = Indexed(folder.model, classifier.version, classifier.labels.keys, labels)
    if isinstance(sample, int):
        sample = of_label_texts(classifier.labels, sample)
    queries = encode_texts(classifier.towers.query, sample.texts).float().cpu()
    usual_k = USUAL_K if classifier.ranker is None else max(USUAL_K, classifier.ranker.settings.candidates)
    k = min(k or usual_k, labels.count())
    with ExitStack() as made, folder.adding(INDEX) as part:
        begun = time.perf_counter()
        index, about = made.enter_context(chosen.build(kind, part.folder, over, uri, partial(progress, "building")))
        seconds = time.perf_counter() - begun
        tuned = tune(index, queries, k, recall)
        speeds = [queries_per_second(side, queries, k) for side in (index, ExactIndex(labels))]
        if index.stood_in is not None:  # then some of this was measured of exact search
            raise BadInput(index.stood_in)
        part.labels_version, part.living = classifier.version, chosen.living
        part.about = {**index.save(part.folder), **about}
        index.close()  # an engine in the folder is still when the folder is moved to its place
        certificate = Certificate(
            kind=kind,
            k=k,
            target=recall,
            recall=float(tuned.recalls.mean()),
            recall_interval=list(interval(tuned.recalls)),
            effort=tuned.effort._asdict(),
            queries=len(tuned.recalls),
            queries_tuned_on=tuned.tuned_on,
            sample=sample.origin,
            labels=labels.count(),
            dimension=labels.dimension,
            catalogue_version=classifier.version,
            queries_per_second={"index": speeds[0], "exact": speeds[1]},
            bytes={"index": chosen.size(part.folder, part.about), "exact": labels.count() * labels.dimension * 4},
            build_seconds=seconds,
            attempts=tuned.attempts,
        )
        save_certificate(certificate, part.folder)
    if part.replaced is not None:
        _forget(folder, part.replaced)
    return certificate


def sync_index(model: Path | str, *, sample: Sample | int = USUAL, progress: Progress = silent) -> int:
    """Brings the index up to the labels as they are now; returns how many rows were not yet in it.

    Milvus is told of those rows, and its certificate stays as it was measured. Other kinds are built again for the
    recall that they were built for, and get a new certificate.
    """
    model = Path(model)
    found = index_of(model)
    if found is None:
        raise BadInput(f"{model} has no index; `umpteen index build` makes one")
    part, built = found
    catalogue = open_labels(model)
    changed = catalogue.since(part.labels_version)
    chosen = class_of(str(part.about.get("kind")))
    if chosen.updates:
        folder = ModelFolder(model)
        chosen.update(folder.path / part.folder, part.about, catalogue.indexed(), changed)
        with folder.changing() as connection:
            current = read_parts(connection).get(INDEX)
            if current is None or current.folder != part.folder:
                raise NotSaved(f"{folder.path}: its index was replaced meanwhile; what stands there now is as it was")
            write_part(connection, part._replace(labels_version=catalogue.labels.version))
    elif len(changed):
        build_index(model, built.kind, recall=built.target, k=built.k, sample=sample, progress=progress)
    return len(changed)


def index_of(model: Path) -> tuple[Part, Certificate] | None:
    """The index of a model folder, if it has one and its files are whole, and what was measured when it was built."""

    def read(folder: ModelFolder, connection: Connection) -> tuple[Part, Certificate] | None:
        part = checked_parts(connection).get(INDEX)
        if part is None:
            return None
        folder.require_whole(connection, [part], (part.folder,))
        return part, Certificate(**json.loads((folder.path / part.folder / CERTIFICATE).read_text(encoding="utf-8")))

    return at_one_moment(model, read)


def certificate_of(model: Path) -> Certificate | None:
    """What was measured when the index was built; None: the model searches exactly."""
    found = index_of(model)
    return None if found is None else found[1]


def remove_index(model: Path) -> str | None:
    """The model searches exactly from now on; returns what was left behind elsewhere, if something was."""
    folder = ModelFolder(model)
    return _forget(folder, folder.drop(INDEX))


def _forget(folder: ModelFolder, part: Part) -> str | None:
    """Removes what lies elsewhere of an index that is gone; of a kind that nobody knows here, nothing does."""
    kind = str(part.about.get("kind"))
    return class_of(kind).forget(folder.path / part.folder, part.about) if kind in KINDS else None


def save_certificate(certificate: Certificate, folder: Path) -> None:
    write_json(folder / CERTIFICATE, vars(certificate))
