"""The product: an encoder, a live label catalogue and the labels' vectors, in one folder a person can read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.calibration.calibration import Calibration
from umpteen.catalogue.changes import Add, Change, Rename, Retire, VersionSummary
from umpteen.catalogue.journal import Journal, Replaced
from umpteen.catalogue.live import LiveLabels
from umpteen.catalogue.live_catalogue import LiveCatalogue
from umpteen.catalogue.lock import locked
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.towers import Towers
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.evaluation.report import Report
from umpteen.indexing import open_index
from umpteen.model_folder import RANKER as RANKER
from umpteen.model_folder import Model, read_model, write_model
from umpteen.model_folder import verify as verify
from umpteen.ranker.ranker import Ranker
from umpteen.retrieval.exact import top_k
from umpteen.retrieval.exact_index import ExactIndex
from umpteen.retrieval.index import LabelIndex
from umpteen.retrieval.ranking import NO_LABEL, Ranking

USUAL_K = 5  # labels a text
_TRIES = 5  # to change the labels of a model that others keep replacing

Progress = Callable[[int, int], None]


class Prediction(NamedTuple):
    """One label of one text."""

    key: str
    text: str
    score: float
    probability: float | None = None  # of being right, if the model is calibrated


class Classifier:
    """Finds the best labels of a text among all of the catalogue's, which may change while it is in use.

    Calls that change or refresh a classifier and calls that search must not run at the same time; `labels` may be read
    whenever.
    """

    def __init__(
        self,
        towers: Towers,
        labels: LabelCatalogue | LiveLabels,
        vectors: Tensor,
        *,
        report: Report | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        ranker: Ranker | None = None,
        calibration: Calibration | None = None,
        journal: Journal | None = None,
    ) -> None:
        if tuple(vectors.shape) != (len(labels), towers.dimension):
            raise BadInput(
                f"{len(labels):,} labels in {towers.dimension} dimensions need as many label vectors, "
                f"but these have the shape {tuple(vectors.shape)}"
            )
        if ranker is not None and ranker.labels != len(labels):
            raise BadInput(f"the ranker knows {ranker.labels:,} labels, the model {len(labels):,}; fit it again")
        self.towers = towers
        self.report = report
        self.recipe = recipe
        self.data = data or {}
        self.training = training or {}
        self.calibration = calibration
        self.path = None if journal is None else journal.model
        self._is_whole = True  # False: loaded without its ranker
        self._opens_index = False
        self._ranker = ranker  # of the labels as they were at first
        self._current_ranker: tuple[int, Ranker] | None = None  # for which version
        self._catalogue = LiveCatalogue(LiveLabels.of(labels), vectors, journal)
        self.index: LabelIndex = ExactIndex(vectors, self._catalogue.start.active)
        self._indexed = self._catalogue.start.version  # the version of the labels that the index knows
        self._tell_index()

    @classmethod
    def build(
        cls,
        towers: Towers,
        labels: LabelCatalogue,
        progress: Progress | None = None,
        *,
        rows: NDArray[np.int64] | None = None,
    ) -> "Classifier":
        """A classifier over these labels, whose texts the label tower encodes now.

        Where the tower has a vector for each label it was trained with, `rows` says which of those each label is, -1
        for none; without it all labels are new.
        """
        return cls(towers, labels, encode_texts(towers.label, labels.texts, progress=progress, rows=rows).float())

    @property
    def labels(self) -> LiveLabels:
        """The labels as they are now; a snapshot that later changes leave alone."""
        return self._catalogue.labels

    @property
    def version(self) -> int:
        """Of the labels: 0 as trained, one more with each change."""
        return self._catalogue.labels.version

    @property
    def vectors(self) -> Tensor:
        """The labels' vectors, retired rows included; mapped while no label has changed, else held in memory."""
        return self._catalogue.vectors.all(len(self.labels))  # [rows, d]

    @property
    def hidden(self) -> NDArray[np.int64]:
        """The rows of retired labels, which no search may return."""
        return np.flatnonzero(~self.labels.active)

    @property
    def ranker(self) -> Ranker | None:
        """What puts the dual encoder's first labels in order; None: the dual encoder ranks alone."""
        if self._ranker is None:
            return None
        if self._current_ranker is None or self._current_ranker[0] != self.version:
            self._current_ranker = self.version, self._ranker.with_later(len(self.labels), self.labels.changed())
        return self._current_ranker[1]

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
        progress: Progress | None = None,
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
        self, texts: Sequence[str], k: int, excluding: csr_array | None = None, progress: Progress | None = None
    ) -> Ranking:
        """The k best labels of each text as rows and scores; pairs stored in `excluding` are never returned.

        Where there is a ranker, it puts the dual encoder's first labels in order.
        """
        _check_texts(texts)
        count = self.labels.count()
        if not 1 <= k <= count:
            raise BadInput(f"k is {k:,}, but the model has {count:,} labels; ask for 1 to {count}")
        vectors = encode_texts(self.towers.query, texts, progress=progress)
        ranker = self.ranker
        width = k if ranker is None else min(count, max(k, ranker.settings.candidates))
        if excluding is None:
            dense = replace(self.index.search(vectors, width), labels=len(self.labels))
        else:
            dense = top_k(vectors, self.vectors, width, excluding=excluding, hidden=self.hidden)
        return dense if ranker is None else ranker.rerank(texts, vectors.cpu().numpy(), dense).head(k)

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

    def change_labels(self, changes: Sequence[Change], *, note: str = "") -> int:
        """Several changes at once, all or none of them; returns the new version, or the old one if nothing changes.

        A classifier with a path has it on disk for good when this returns.
        """
        return self._changed(lambda: self._catalogue.change(changes, self._encode, note))

    def undo(self, to_version: int | None = None, *, note: str = "") -> int:
        """A new version in which all labels are as they were in an older one, by default the one before."""
        return self._changed(lambda: self._catalogue.undo(to_version, note))

    def refresh(self) -> bool:
        """Takes in what other processes have written to the folder; a look at the disk if there is nothing."""
        journal = self._catalogue.journal
        if journal is None:
            return False
        if journal.is_replaced():
            self._load_again()
            return True
        if not self._catalogue.is_behind():
            return False
        self._catalogue.refresh()
        self._tell_index()
        return True

    def history(self) -> list[VersionSummary]:
        """What happened to the labels since the model was written, oldest first."""
        return self._catalogue.history()

    def _changed(self, change: Callable[[], None]) -> int:
        for _ in range(_TRIES):
            self.refresh()
            with suppress(Replaced):
                try:
                    change()
                finally:  # even if it was refused: other processes' changes may have come in meanwhile
                    self._tell_index()
                return self.version
        raise NotSaved(f"{self.path}: is being replaced again and again; nothing was changed, try again later")

    def _encode(self, texts: list[str]) -> Tensor:
        return encode_texts(self.towers.label, texts).float().cpu()

    def _tell_index(self) -> None:
        put, gone = self._catalogue.since(self._indexed)
        if len(put):
            self.index.add(put, self._catalogue.vectors.of(put).numpy())
        if len(gone):
            self.index.remove(gone)
        self._indexed = self.version

    def save(
        self,
        path: Path | str,
        *,
        report: Report | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        extra_files: Iterable[Path] = (),
    ) -> None:
        """Writes the model folder, whole or not at all; a model that stood there is replaced.

        `data` (name, fingerprint, licence…) and `training` go into the manifest and the model card. What is not given
        is what the classifier was loaded with. The labels are written as they are now; their history stays behind.
        """
        path = Path(path)
        own = self.path is not None and path.resolve() == self.path.resolve()
        with locked(path) if own else nullcontext():
            if own:
                self.refresh()
            model = Model(
                self.towers,
                self.labels,
                self.vectors,
                report or self.report,
                recipe or self.recipe,
                data or self.data,
                training or self.training,
                self.ranker,
            )
            write_model(model, path, extra_files=extra_files, parts_of=self.path if self._is_whole else None)

    @classmethod
    def load(cls, path: Path | str, *, ranker: bool = True, index: bool = True) -> "Classifier":
        """The classifier of a model folder, its labels as they are now; large files are checked by size and header.

        Without its ranker, if it has one, the dual encoder ranks alone; without its index it searches exactly.
        """
        while True:
            model, journal = read_model(Path(path), ranker=ranker)
            try:
                classifier = cls(**vars(model), journal=journal)
                classifier._is_whole = ranker
                if index:
                    classifier._open_index()
                return classifier
            except DamagedModel:
                if not journal.is_replaced():
                    raise  # else parts of two models were read

    def _open_index(self) -> None:
        """Searches with the folder's index, if it has one; what has changed since it was made, it is told."""
        journal = self._catalogue.journal
        assert journal is not None
        self._opens_index = True
        opened = open_index(journal.model, journal.belongs_to, self._catalogue.vectors.first, lambda: self.labels)
        if opened is not None:
            self.index, self._indexed = opened
            self._tell_index()

    def _load_again(self) -> None:
        """Another model has taken the folder's place: this object becomes that one."""
        assert self.path is not None
        opens_index = self._opens_index
        self.index.close()
        try:
            self.__dict__.update(vars(Classifier.load(self.path, ranker=self._is_whole, index=False)))
            if opens_index:
                self._open_index()
        except BaseException:
            self.index, self._indexed = ExactIndex(self.vectors, self.labels.active), self.version
            raise


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise BadInput(f"texts is a single string, {texts[:40]!r}; pass a list of texts, even for one: [text]")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"texts[{position}] is a {type(text).__name__}, not a string")
        if not text.strip():
            raise BadInput(f"texts[{position}] is empty; leave it out or give it words")
