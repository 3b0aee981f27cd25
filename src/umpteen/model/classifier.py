"""The product: texts in, the right few labels out, of a model whose labels may change while it is in use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, time_ns
from types import EllipsisType
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, UmpteenError
from umpteen.evaluation.report import Report
from umpteen.files.progress import Advance
from umpteen.model.catalogue import VECTORS, Encoded, LiveCatalogue, encode_new
from umpteen.model.changes import PATIENCE, Add, Change, Part, Rename, Replaced, Retire, VersionSummary
from umpteen.model.folder import (
    CALIBRATION,
    CARD,
    INDEX,
    MARK,
    RECIPE,
    REPORT,
    ModelFolder,
    Stamp,
    checked_parts,
    read_plainly,
)
from umpteen.model.folder import RANKER as RANKER
from umpteen.model.folder import verify as verify
from umpteen.model.labels import LABELS, LiveLabels
from umpteen.model.live import LiveModel
from umpteen.model.writing import Carried, Model, Standing, write_model
from umpteen.search.engine import BOUND
from umpteen.search.ranking import NO_LABEL, SPARE, Ranking, top_k

USUAL_K = 5  # labels a text
LIMITS = ("k", "min_probability", "precision", "rule")  # what `Classifier.predict` can be told
_UNTIL_NEXT_MODEL = 60.0  # seconds, to load a model that took this one's place and is damaged
_SETTLED = 100_000_000  # nanoseconds, more than the steps in which file systems count time

Value = TypeVar("Value")


class Prediction(NamedTuple):
    """One label of one text."""

    key: str
    text: str
    score: float
    probability: float | None = None  # of being right, if the model is calibrated


def answer(about: dict[str, Any], labels: Iterable[Prediction]) -> dict[str, Any]:
    """An answer for machines: what it is about, and its labels, with probabilities where there are any."""
    found = [{name: value for name, value in one._asdict().items() if value is not None} for one in labels]
    return {**about, "labels": found}


class _OfModel(Generic[Value]):
    """An attribute of the model that a classifier uses, whichever that is by now."""

    def __init__(self, read: Callable[[LiveModel], Value]) -> None:
        self._read = read

    def __get__(self, classifier: "Classifier | None", _: type | None = None) -> Value:
        if classifier is None:
            return self  # type: ignore[return-value]  # asked of the class, as a property answers
        return self._read(classifier._live)


class Classifier:
    """Finds the best labels of a text among all of the model's, which may change while it is in use.

    Calls that change or refresh it and calls that search must not run at the same time; `labels` may be read whenever.
    `umpteen.train` gives one, `load` opens a saved one; `build` makes one of two encoders and a catalogue of labels.

    >>> from umpteen import Classifier
    >>> classifier = Classifier.load("runs/tiny")
    >>> best = classifier.predict(["a small dog with a curly tail"], k=1)[0][0]
    >>> best.key in classifier.labels.keys
    True
    >>> classifier.add_labels({"spitz": "a dog whose tail curls over its back"})
    1
    """

    def __init__(self, towers: Towers, labels: LabelCatalogue, vectors: Tensor, **about: Any) -> None:
        self._live = LiveModel(towers, LiveCatalogue(LiveLabels(labels), vectors), **about)
        self._seen: Stamp | None = None  # of the folder, when it was last looked into
        self._damaged: tuple[Stamp, Exception, float] | None = None  # a model that cannot be loaded, and until when

    @classmethod
    def load(cls, path: Path | str, *, ranker: bool = True, index: bool = True) -> Self:
        """The classifier of a model folder, its labels as they are now; large files are hashed once after a change.

        Without its ranker, if it has one, the dual encoder ranks alone; without its index it searches exactly.
        """
        loaded = cls.__new__(cls)
        loaded._live, loaded._seen, loaded._damaged = LiveModel.load(path, ranker=ranker, index=index), None, None
        return loaded

    @classmethod
    def build(
        cls,
        towers: Towers,
        labels: LabelCatalogue,
        progress: Advance | None = None,
        *,
        rows: NDArray[np.int64] | None = None,
    ) -> Self:
        """A classifier over these labels, whose texts the label tower encodes now.

        Where the tower has a vector for each label it was trained with, `rows` says which of those each label is, -1
        for none; without it all labels are new.
        """
        return cls(towers, labels, encode_texts(towers.label, labels.texts, progress=progress, rows=rows).float())

    towers = _OfModel(lambda model: model.towers)
    labels = _OfModel(lambda model: model.labels)
    """The labels as they are now; a snapshot that later changes leave alone."""
    version = _OfModel(lambda model: model.version)
    """Of the labels: 0 as trained, one more with each change."""
    vectors = _OfModel(lambda model: model.catalogue.vectors.everything)
    """The labels' vectors, retired rows included; mapped while no label has changed, else held in memory."""
    hidden = _OfModel(lambda model: np.flatnonzero(~model.labels.active))
    """The rows of retired labels, which no search may return."""
    index = _OfModel(lambda model: model.index)
    """What finds the best labels of a vector."""
    ranker = _OfModel(lambda model: model.ranker)
    """What puts the dual encoder's first labels in order, as they are now; None: the dual encoder ranks alone."""
    head_start = _OfModel(lambda model: model.head_start)
    """What labels that came after training get on top of their scores; None if there are none."""
    has_ranker = _OfModel(lambda model: model.fitted_ranker is not None)
    calibration = _OfModel(lambda model: model.calibration)
    """What makes probabilities of scores, if the model is calibrated."""
    report = _OfModel(lambda model: model.report)
    """On validation, as training ended."""
    recipe = _OfModel(lambda model: model.recipe)
    """What the model was trained by, as TOML."""
    data = _OfModel(lambda model: model.data)
    """What it was trained on."""
    training = _OfModel(lambda model: model.training)
    """Steps, seconds and parameters."""
    folder = _OfModel(lambda model: model.folder)
    """The folder it was loaded from, and the model in it."""
    path = _OfModel(lambda model: None if model.folder is None else model.folder.path)
    """Where it was loaded from; changes of its labels are on disk then."""
    parts = _OfModel(lambda model: model.parts)
    """What was added to the trained model and is in use, by name."""

    def part_file(self, name: str, file: str) -> bytes | None:
        """A file of a part in use, as it was written; None if the part has no such file, or is gone by now."""
        part, folder = self.parts.get(name), self.folder
        if part is not None and folder is not None and file in part.files:
            with suppress(OSError):
                return read_plainly(folder.part_path(part) / file)
        return None

    def history(self) -> list[VersionSummary]:
        """What happened to the labels since the model was written, oldest first."""
        return self._live.catalogue.history()

    def predict(
        self,
        texts: Sequence[str],
        k: int | None = None,
        *,
        min_probability: float | None = None,
        precision: float | None = None,
        rule: str | None = None,
    ) -> list[list[Prediction]]:
        """The k best labels of each text, best first; fewer, or none, if some are less probable than asked for.

        `precision` asks for as many labels as can be given so that this share of them is right, `rule` ("f1" or
        "coverage") for as many as was found best on held-out texts. k is 5 if left out, or the most the rule gives.
        """
        labels = self.labels
        ranking, probable = self.select(texts, k, min_probability=min_probability, precision=precision, rule=rule)
        answers: list[list[Prediction]] = []
        for query, (rows, scores) in enumerate(zip(ranking.rows.tolist(), ranking.scores.tolist(), strict=True)):
            probabilities = [None] * len(rows) if probable is None else probable[query].tolist()
            answers.append(
                [
                    Prediction(labels.keys[row], labels.texts[row], score, probability)
                    for row, score, probability in zip(rows, scores, probabilities, strict=True)
                    if row != NO_LABEL
                ]
            )
        return answers

    def select(
        self,
        texts: Sequence[str],
        k: int | None = None,
        *,
        min_probability: float | None = None,
        precision: float | None = None,
        rule: str | None = None,
        progress: Advance | None = None,
    ) -> tuple[Ranking, NDArray[np.float32] | None]:
        """What `predict` gives as label rows and scores, and their probabilities if the model is calibrated."""
        if self.calibration is None:
            if (min_probability, precision, rule) != (None, None, None):
                raise BadInput("the model gives no probabilities yet; `umpteen calibrate` fits them")
            return self.rank(texts, min(USUAL_K, self.labels.count()) if k is None else k, progress=progress), None
        line = self.calibration.line(min_probability=min_probability, precision=precision, rule=rule)
        most = min(line.at_most or USUAL_K, self.labels.count())
        ranking = self.rank(texts, most if k is None else k, progress=progress)
        probabilities = self.calibration.probabilities(ranking.scores)
        given = line.given(probabilities)
        rows = np.where(given, ranking.rows, np.int32(NO_LABEL))
        return Ranking(rows, np.where(given, ranking.scores, np.float32(-np.inf)), ranking.labels), probabilities

    def rank(
        self, texts: Sequence[str], k: int, excluding: csr_array | None = None, progress: Advance | None = None
    ) -> Ranking:
        """The k best labels of each text as rows and scores; pairs stored in `excluding` are never returned.

        Where there is a ranker, it puts the dual encoder's first labels in order.
        """
        _check_texts(texts)
        count = self.labels.count()
        if not 1 <= k <= count:
            raise BadInput(f"k is {k:,}, but the model has {count:,} labels; ask for 1 to {count}")
        vectors = encode_new(self.towers.query, texts, progress=progress)
        ranker, head_start = self.ranker, self.head_start
        width = k if ranker is None else min(count, max(k, ranker.settings.candidates))
        wider = width if head_start is None else min(count, max(width, SPARE) + SPARE)
        if excluding is None:
            dense = replace(self.index.search(vectors, wider), labels=len(self.labels))
        else:
            dense = top_k(vectors, self.vectors, wider, excluding=excluding, hidden=self.hidden)
        dense = dense if head_start is None else head_start.lift(dense, width)
        return dense if ranker is None else ranker.rerank(texts, vectors, dense).head(k)

    def add_labels(self, labels: Mapping[str, str] | Iterable[tuple[str, str]], *, note: str = "") -> int:
        """New labels by key and text, found from now on; returns the new version."""
        pairs = labels.items() if isinstance(labels, Mapping) else labels
        return self.change_labels([Add(key, text) for key, text in pairs], note=note)

    def rename_labels(self, texts: Mapping[str, str], *, note: str = "") -> int:
        """New texts for the labels with these keys; returns the new version."""
        return self.change_labels([Rename(key, text) for key, text in texts.items()], note=note)

    def retire_labels(self, keys: Iterable[str], *, note: str = "") -> int:
        """The labels with these keys are found no more; returns the new version."""
        if isinstance(keys, str):
            raise BadInput(f"keys is a single string, {keys[:40]!r}; pass a list of keys, even for one: [key]")
        return self.change_labels([Retire(key) for key in keys], note=note)

    def change_labels(
        self,
        changes: Sequence[Change],
        *,
        note: str = "",
        patience: float = PATIENCE,
        encoded: Encoded | None = None,
    ) -> int:
        """Several changes at once, all or none of them; returns the new version, or the old one if nothing changes.

        A classifier with a path has it on disk for good when this returns. It waits for other processes' changes for
        `patience` seconds at most; who may try again gives `encoded`, so that no text is encoded twice.
        """

        def encode(texts: list[str]) -> Tensor:
            return encode_new(self.towers.label, texts).float().cpu()

        return self._changed(lambda labels: labels.change(changes, encode, note, patience=patience, encoded=encoded))

    def undo(self, to_version: int | None = None, *, note: str = "", patience: float = PATIENCE) -> int:
        """A new version in which all labels are as they were in an older one, by default the one before."""
        return self._changed(lambda labels: labels.undo(to_version, note, patience=patience))

    def refresh(self) -> bool:
        """Takes in what other processes have done to the folder; a few looks at the disk if there is nothing.

        That is: changed labels, another ranker, index or calibration, or a whole new model. What cannot be used is an
        error, and what was in use before stays in use.
        """
        if self.folder is None:
            return False
        seen = self.folder.stamp()
        is_settled = max(changed for _, changed, _ in seen) < time_ns() - _SETTLED  # a later change has another time
        if seen == self._seen and is_settled and not self._live.troubles and self._damaged is None:
            return False
        try:
            changed = self._live.look()
        except Replaced:
            self._turn_to_the_current(seen)
            changed = True
        self._seen, self._damaged = seen, None
        return changed

    def _turn_to_the_current(self, seen: Stamp) -> None:
        """Another model has taken the place of this one; one that is damaged is not tried again and again."""
        if self._damaged is not None and self._damaged[0] == seen and monotonic() < self._damaged[2]:
            raise self._damaged[1].with_traceback(None)
        assert self.folder is not None
        try:
            new = LiveModel.load(self.folder.path, ranker=self._live.is_whole, index=False)
        except Exception as error:
            self._damaged = seen, error, monotonic() + _UNTIL_NEXT_MODEL
            raise
        old, self._live, self._damaged = self._live, new, None
        old.index.close()
        if INDEX in old.follows:
            new.follows += (INDEX,)
            with suppress(UmpteenError, OSError, Replaced):  # the next `refresh` tells why it cannot be used
                new.look()

    def save(
        self,
        path: Path | str,
        *,
        report: Report | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        extra_files: Iterable[Path] = (),
        unless_changed: Standing | EllipsisType | None = ...,
    ) -> Path | None:
        """Writes the model folder, whole or not at all; a model that stood there is replaced.

        `data` (name, fingerprint, licence…) and `training` go into the manifest and the model card. What is not given
        is what the classifier was loaded with. The labels are written as they are now; their history stays behind. Over
        its own folder it is refused if the folder's index would be lost. `unless_changed`: as `write_model` has it.
        """
        path, given = Path(path), {"report": report, "recipe": recipe, "data": data, "training": training}
        if self.folder is not None and path.resolve() == self.folder.path.resolve():
            self._rewrite(given)
            return None
        parts: Mapping[str, Part] = {}
        if self.folder is not None:
            with suppress(Replaced), self.folder.store.reading() as connection:  # else its parts are replaced, too
                parts = checked_parts(connection)
        model, carried = self._as_written(given), self._carried(parts, path)
        return write_model(model, path, extra_files=extra_files, carried=carried, unless_changed=unless_changed)

    def _as_written(self, given: Mapping[str, Any]) -> Model:
        """The model with its labels as they are now, and what is given."""
        told = {name: given.get(name) or getattr(self, name) for name in ("recipe", "data", "training")}
        told["report"] = given.get("report") or self._live.trained_report
        return Model(self.towers, self.labels, self.vectors, ranker=self.ranker, **told)

    def _carried(self, parts: Mapping[str, Part], path: Path, *, drop_index: bool = False) -> list[Carried]:
        """Which of its folder's parts hold for a model with these very labels and scores, too, in this folder.

        An index of older labels stays behind; over the model itself only if the caller says so.
        """
        is_own = path == self.path
        found = [parts[CALIBRATION]] if CALIBRATION in parts and self._live.is_whole else []
        index = parts.get(INDEX)
        if index is not None and index.labels_version == self.version:
            found += [index] if is_own or not index.about.get(BOUND) else []
        elif index is not None and is_own and not drop_index:
            raise BadInput(
                f"the index of {path} was built of older labels and cannot come along; build it again first "
                f"(`umpteen index build {path}`), or remove it (`umpteen index remove {path}`) and build it afterwards"
            )
        return [(part, self.folder.part_path(part)) for part in found if self.folder is not None]

    def _rewrite(
        self, given: Mapping[str, Any] | None = None, *, drop_index: bool = False, card: str | None = None
    ) -> "Compacted":
        """The model takes its own place: with all that others have changed, labels as they are, and no history.

        Parts come along; an index of older labels is only dropped if the caller says so.
        """
        assert self.folder is not None
        path, made = self.folder.path, {LABELS, VECTORS, REPORT, RECIPE, MARK}
        extra = [self.folder.trained / name for name in self.folder.manifest["files"] if "/" not in name]
        with self.folder.changing() as connection:
            self._live.take_in(connection)
            parts, versions = checked_parts(connection), len(self._live.catalogue.versions)
            is_old = INDEX in parts and parts[INDEX].labels_version != self.version
            if versions or given is not None:
                write_model(
                    self._as_written(given or {}),
                    path,
                    extra_files=[file for file in extra if file.name not in made],
                    carried=self._carried(parts, path, drop_index=drop_index),
                    held=True,
                    card=card,
                )
        ModelFolder(path).sweep()
        return Compacted(versions, self.version, self.labels.count(), is_old and versions > 0)

    def _changed(self, change: Callable[[LiveCatalogue], None]) -> int:
        while True:
            try:
                change(self._live.catalogue)
            except Replaced:
                assert self.folder is not None
                self._turn_to_the_current(self.folder.stamp())
                continue
            finally:  # even if it was refused: other processes' changes may have come in meanwhile
                self._live.tell_index()
            return self.version


class Compacted(NamedTuple):
    """What became of a folder."""

    versions: int  # that were folded in
    version: int  # of the labels, as before
    labels: int
    dropped_index: bool


def compact(path: Path, *, drop_index: bool = False) -> Compacted:
    """The versions of a model's labels become its own files, whole or not at all: rows stay, the history ends."""
    card = path / CARD
    written = card.read_text("utf-8", errors="replace") if card.is_file() else None
    return Classifier.load(path, index=False)._rewrite(drop_index=drop_index, card=written)


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise BadInput(f"texts is a single string, {texts[:40]!r}; pass a list of texts, even for one: [text]")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"texts[{position}] is a {type(text).__name__}, not a string")
        if not text.strip():
            raise BadInput(f"texts[{position}] is empty; leave it out or give it words")
