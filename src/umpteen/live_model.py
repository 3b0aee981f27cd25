"""A model in use: its labels change, and whatever others do to its folder is taken in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
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
from umpteen.followed_folder import FollowedFolder
from umpteen.index_in_use import IndexInUse
from umpteen.manifest import CALIBRATION, INDEX, read_manifest
from umpteen.model_folder import (
    PARTS,
    Model,
    part_stamps,
    read_calibration,
    read_model,
    require_index_that_comes_along,
    write_model,
)
from umpteen.ranker.ranker import Ranker
from umpteen.retrieval.index import LabelIndex

_TRIES = 5  # to change the labels of a model that others keep replacing


class LiveModel:
    """Encoder, labels, their vectors and whatever was added to them; with a path, all changes are on disk.

    Calls that change or refresh it and calls that search must not run at the same time; `labels` may be read whenever.
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
        self._folder: FollowedFolder | None = None  # that it was loaded from
        self._ranker = ranker  # of the labels as they were at first
        self._current_ranker: tuple[int, Ranker] | None = None  # for which version
        self._catalogue = LiveCatalogue(LiveLabels.of(labels), vectors, journal)
        self._in_use = IndexInUse(self._catalogue)

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
    def index(self) -> LabelIndex:
        """What finds the best labels of a vector."""
        return self._in_use.index

    @property
    def hidden(self) -> NDArray[np.int64]:
        """The rows of retired labels, which no search may return."""
        return np.flatnonzero(~self.labels.active)

    @property
    def has_ranker(self) -> bool:
        return self._ranker is not None

    @property
    def ranker(self) -> Ranker | None:
        """What puts the dual encoder's first labels in order; None: the dual encoder ranks alone."""
        if self._ranker is None:
            return None
        if self._current_ranker is None or self._current_ranker[0] != self.version:
            self._current_ranker = self.version, self._ranker.with_later(len(self.labels), self.labels.changed())
        return self._current_ranker[1]

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
        """Takes in what other processes have done to the folder; a few looks at the disk if there is nothing.

        That is: changed labels, another index or calibration, or a whole new model. What cannot be used is an error,
        and what was in use before stays in use; an index or a calibration is told of once.
        """
        if self._folder is None:
            return False
        parts = part_stamps(self._folder.path)  # before the look for another model, so that they are this one's
        if self._take_in_model():
            return True
        changed = self._take_in_versions()
        ways = {CALIBRATION: self._read_calibration, **({INDEX: self._in_use.open_again} if self._opens_index else {})}
        return self._folder.take_in_parts(parts, ways, self._catalogue.is_behind) or changed

    def history(self) -> list[VersionSummary]:
        """What happened to the labels since the model was written, oldest first."""
        return self._catalogue.history()

    def _changed(self, change: Callable[[], None]) -> int:
        for _ in range(_TRIES):
            self._take_in_model()
            self._take_in_versions()
            with suppress(Replaced):
                try:
                    change()
                finally:  # even if it was refused: other processes' changes may have come in meanwhile
                    self._in_use.tell()
                return self.version
        raise NotSaved(f"{self.path}: is being replaced again and again; nothing was changed, try again later")

    def _encode(self, texts: list[str]) -> Tensor:
        return encode_texts(self.towers.label, texts).float().cpu()

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
        is what the classifier was loaded with. The labels are written as they are now; their history stays behind. Over
        its own folder it is refused if the folder's index would be lost.
        """
        path = Path(path)
        own = self.path is not None and path.resolve() == self.path.resolve()
        with locked(path) if own else nullcontext():
            if own:
                self._take_in_model()
                self._take_in_versions()
                remove = f"remove it (`umpteen index remove {path}`) and build it afterwards"
                require_index_that_comes_along(path, self.version, instead=remove)
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
            parts = PARTS if self._is_whole else (INDEX,)  # without the ranker scores are others
            write_model(model, path, extra_files=extra_files, parts_of=self._catalogue.journal, parts=parts)

    @classmethod
    def load(cls, path: Path | str, *, ranker: bool = True, index: bool = True) -> Self:
        """The classifier of a model folder, its labels as they are now; large files are hashed once after a change.

        Without its ranker, if it has one, the dual encoder ranks alone; without its index it searches exactly.
        """
        while True:
            parts = part_stamps(Path(path))
            model, journal = read_model(Path(path), ranker=ranker)
            try:
                classifier = cls(**vars(model), journal=journal)
                classifier._is_whole, classifier._folder = ranker, FollowedFolder(journal, parts)
                if index:
                    classifier._opens_index = True
                    classifier._in_use.open()
                return classifier
            except DamagedModel:
                if part_stamps(Path(path)) == parts and not journal.is_replaced():
                    raise  # else parts of two models were read, or of two indexes

    def _read_calibration(self) -> None:
        assert self.path is not None
        self.calibration = read_calibration(self.path, read_manifest(self.path), with_ranker=self._is_whole)

    def _take_in_versions(self) -> bool:
        """The labels as other processes have changed them."""
        if not self._catalogue.is_behind():
            return False
        self._catalogue.refresh()
        self._in_use.tell()
        return True

    def _take_in_model(self) -> bool:
        """Another model has taken the folder's place: this object becomes that one."""
        if self._folder is None or not self._folder.has_another_model():
            return False
        try:
            new = type(self).load(self._folder.path, ranker=self._is_whole, index=False)
        except Exception as error:
            self._folder.refuse(error)
            raise
        self._in_use.close()
        new._opens_index = self._opens_index
        self.__dict__.update(vars(new))
        if self._opens_index:
            try:
                self._in_use.open()
            except Exception:  # search is exact until it can be opened; the next `refresh` tells why it cannot
                assert self._folder is not None
                self._folder.missed(INDEX)
        return True
