"""One model in use: its labels as they are now, and the parts that count; whatever others change is taken in."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from umpteen.calibration.calibration import Calibration
from umpteen.encoders.encode import encode_texts
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel, UmpteenError
from umpteen.evaluation.report import Report
from umpteen.files.progress import Advance
from umpteen.model.catalogue import LiveCatalogue
from umpteen.model.changes import Change
from umpteen.model.folder import (
    CALIBRATION,
    CARD,
    INDEX,
    MARK,
    RANKER,
    RECIPE,
    REPORT,
    ModelFolder,
    Verified,
    at_one_moment,
    checked_parts,
    refuse_links,
)
from umpteen.model.index import open_index
from umpteen.model.live_labels import LiveLabels
from umpteen.model.store import Part, Replaced
from umpteen.model.stored_labels import LABELS, VECTORS, read_labels, read_vectors
from umpteen.model.writing import Carried, Model, write_model
from umpteen.rerank.ranker import Ranker
from umpteen.search.exact import ExactIndex
from umpteen.search.index import BOUND, LabelIndex, try_out

_UNTIL_NEXT_TRY = 5.0  # seconds, to use a part that could not be used: it may be somebody else's for now
_UNREADABLE = (
    UmpteenError,
    OSError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    RuntimeError,
    SafetensorError,
)


class LiveModel:
    """What is loaded of one model. Calls that change or refresh it and calls that search must not overlap."""

    def __init__(
        self,
        model: Model,
        *,
        catalogue: LiveCatalogue | None = None,
        calibration: Calibration | None = None,
        folder: ModelFolder | None = None,
        follows: Sequence[str] = (),
    ) -> None:
        if tuple(model.vectors.shape) != (len(model.labels), model.towers.dimension):
            raise BadInput(
                f"{len(model.labels):,} labels in {model.towers.dimension} dimensions need as many label vectors, "
                f"but these have the shape {tuple(model.vectors.shape)}"
            )
        if model.ranker is not None and model.ranker.labels != len(model.labels):
            raise BadInput(
                f"the ranker knows {model.ranker.labels:,} labels, the model {len(model.labels):,}; fit it again"
            )
        self.model = model
        self.calibration = calibration
        self.folder = folder
        self.catalogue = catalogue or LiveCatalogue(model.labels, model.vectors)
        self.parts: dict[str, Part] = {}  # in use
        self.follows = tuple(follows)
        self.fitted_ranker = model.ranker
        self._current_ranker: tuple[int, Ranker] | None = None  # for which version
        self._troubles: dict[str, _Trouble] = {}  # by part
        self.index: LabelIndex = ExactIndex.of(self.catalogue.vectors)
        self._index_version = self.catalogue.labels.version

    @classmethod
    def load(cls, path: Path | str, *, ranker: bool = True, index: bool = True) -> "LiveModel":
        """The model of a folder, its labels as they are now; large files are hashed once after a change."""
        follows = [*([RANKER] if ranker else []), CALIBRATION, *([INDEX] if index else [])]

        def read(folder: ModelFolder, connection: Connection) -> tuple[LiveModel, Verified]:
            verified = Verified(connection)
            parts = {name: part for name, part in checked_parts(connection).items() if name in (*follows, RANKER)}
            folder.require_whole(parts.values(), verified)
            try:
                model = _read(folder)
                catalogue = LiveCatalogue(model.labels, model.vectors, folder.store)
                catalogue.take_in(connection)
                live = cls(model, catalogue=catalogue, folder=folder, follows=follows)
                for name in live._wanted(parts):
                    live._use(name, parts.get(name), try_it=False)
            except DamagedModel:
                raise
            except _UNREADABLE as error:
                raise DamagedModel(f"{path}: cannot be loaded although its files are whole: {error}") from error
            return live, verified

        live, verified = at_one_moment(path, read)
        assert live.folder is not None
        verified.keep(live.folder.store)
        return live

    @property
    def labels(self) -> LiveLabels:
        """A snapshot that later changes leave alone."""
        return self.catalogue.labels

    @property
    def ranker(self) -> Ranker | None:
        """For the labels as they are now."""
        if self.fitted_ranker is None:
            return None
        version = self.labels.version
        if self._current_ranker is None or self._current_ranker[0] != version:
            fitted = self.parts[RANKER].labels_version if RANKER in self.parts else self.catalogue.start.version
            changed = self.catalogue.renamed_since(fitted)
            self._current_ranker = version, self.fitted_ranker.with_later(len(self.labels), changed)
        return self._current_ranker[1]

    @property
    def is_whole(self) -> bool:
        """False if it was loaded without its ranker."""
        return self.folder is None or RANKER in self.follows

    @property
    def follows_index(self) -> bool:
        """Whether it searches with the folder's index."""
        return INDEX in self.follows

    def encode(self, texts: list[str]) -> Tensor:
        """Vectors of labels' texts."""
        return encode_texts(self.model.towers.label, texts).float().cpu()

    def take_in(self) -> bool:
        """What others have changed since: labels and parts; `Replaced` if the folder holds another model.

        A part that cannot be used is an error, and the one in use before stays in use.
        """
        assert self.folder is not None
        refuse_links(self.folder.path)
        if not self.folder.is_current():
            raise Replaced
        with self.folder.store.reading() as connection:
            return self._take_in(connection)

    def _take_in(self, connection: Connection) -> bool:
        changed = self.catalogue.take_in(connection)
        self.tell_index()
        changed = self._turn_to(checked_parts(connection), Verified(connection)) or changed
        for trouble in self._troubles.values():
            raise trouble.error
        return changed

    def has_troubles(self) -> bool:
        """Whether a part could not be used when it was last tried."""
        return bool(self._troubles)

    def tell_index(self) -> None:
        """The index hears of the labels that have changed since it last did."""
        self._index_version = self._told(self.index, self._index_version)

    def follow_index(self) -> None:
        """Searches with the folder's index from now on, as soon as that can be opened; `take_in` tells why not."""
        self.follows = (*self.follows, INDEX)
        with suppress(UmpteenError, OSError, Replaced):
            self.take_in()

    def as_written(self, **changed: Any) -> Model:
        """The model with its labels as they are now, and what is given."""
        given = {name: value for name, value in changed.items() if value}
        now = {"labels": LiveLabels.of(self.labels), "vectors": self.catalogue.all_vectors(), "ranker": self.ranker}
        return Model(**{**vars(self.model), **now, **given})

    def carried(self, path: Path, *, drop_index: bool = False) -> list[Carried]:
        """The parts that hold for a model with these very labels and scores, too, to be written to this folder.

        An index of older labels stays behind; over the model itself only if the caller says so.
        """
        if self.folder is None:
            return []
        try:
            with self.folder.store.reading() as connection:
                parts = checked_parts(connection)
        except Replaced:  # and so are its parts
            return []
        is_own = path.resolve() == self.folder.path.resolve()
        found = [parts[CALIBRATION]] if CALIBRATION in parts and self.is_whole else []
        index = parts.get(INDEX)
        if index is not None and index.labels_version == self.labels.version:
            found += [index] if is_own or not index.about.get(BOUND) else []
        elif index is not None and is_own and not drop_index:
            raise BadInput(
                f"the index of {path} was built of older labels and cannot come along; build it again first "
                f"(`umpteen index build {path}`), or remove it (`umpteen index remove {path}`) and build it afterwards"
            )
        return [Carried(part, self.folder.part_path(part)) for part in found]

    def rewrite(
        self, given: Mapping[str, Any] | None = None, *, drop_index: bool = False, card: str | None = None
    ) -> "Compacted":
        """The model takes its own place: with all that others have changed, labels as they are, and no history.

        Parts come along; an index of older labels is only dropped if the caller says so.
        """
        assert self.folder is not None
        made = {LABELS, VECTORS, REPORT, RECIPE, MARK}
        extra = [self.folder.trained / name for name in self.folder.manifest["files"] if "/" not in name]
        with self.folder.changing() as connection:
            self._take_in(connection)
            parts, versions = checked_parts(connection), len(self.catalogue.versions)
            is_old = INDEX in parts and parts[INDEX].labels_version != self.labels.version
            if versions or given is not None:
                carried = self.carried(self.folder.path, drop_index=drop_index)
                files = [file for file in extra if file.name not in made]
                write_model(
                    self.as_written(**(given or {})),
                    self.folder.path,
                    extra_files=files,
                    carried=carried,
                    held=True,
                    card=card,
                )
        ModelFolder(self.folder.path).sweep()
        return Compacted(versions, self.labels.version, self.labels.count(), is_old and versions > 0)

    def _wanted(self, parts: Mapping[str, Part]) -> Iterable[str]:
        """The names of the parts that are followed; a calibration holds for the ranker's scores, if there is one."""
        return (name for name in self.follows if name != CALIBRATION or self.is_whole or RANKER not in parts)

    def _turn_to(self, parts: Mapping[str, Part], verified: Verified) -> bool:
        """Uses these parts in place of those in use; one that cannot be used is tried again later."""
        assert self.folder is not None
        changed = False
        for name in self._wanted(parts):
            part, trouble = parts.get(name), self._troubles.get(name)
            if _place(part) == _place(self.parts.get(name)):
                self._troubles.pop(name, None)
            elif trouble is None or trouble.place != _place(part) or time.monotonic() > trouble.until:
                try:
                    if part is not None:
                        self.folder.require_whole([part], verified, only=(part.folder,))
                    self._use(name, part, try_it=True)
                except Exception as error:
                    self._troubles[name] = _Trouble(_place(part), error, time.monotonic() + _UNTIL_NEXT_TRY)
                else:
                    self._troubles.pop(name, None)
                    changed = True
        return changed

    def _use(self, name: str, part: Part | None, *, try_it: bool) -> None:
        """The part counts from now on; an index that is to be tried has answered a query by then."""
        assert self.folder is not None
        where = None if part is None else self.folder.part_path(part)
        if name == RANKER:
            self.fitted_ranker = None if where is None else Ranker.load(where)
            self._current_ranker = None
        elif name == CALIBRATION:
            self.calibration = None if where is None else Calibration.load(where)
        elif part is not None or self.index.kind != ExactIndex.kind:
            self._use_index(part, try_it=try_it)
        self.parts = (
            {**self.parts, name: part} if part else {key: one for key, one in self.parts.items() if key != name}
        )

    def _use_index(self, part: Part | None, *, try_it: bool) -> None:
        assert self.folder is not None
        old, version = self.index, self.labels.version
        new: LabelIndex = ExactIndex.of(self.catalogue.vectors)
        if part is not None:
            new, version = open_index(self.folder.part_path(part), part, self.catalogue), part.labels_version
            try:
                version = self._told(new, version)
                if try_it:
                    try_out(new, self.model.towers.dimension)
            except BaseException:  # another process may have it to itself
                new.close()
                raise
        self.index, self._index_version = new, version
        old.close()

    def _told(self, index: LabelIndex, version: int) -> int:
        """An index of this version hears what came later; returns the version that it knows then."""
        put, gone = self.catalogue.since(version)
        if len(put):
            index.add(put, self.catalogue.vectors.of(put).numpy())
        if len(gone):
            index.remove(gone)
        return self.labels.version


class _Trouble(NamedTuple):
    """A part that could not be used."""

    place: str
    error: Exception
    until: float  # when it is tried again


def _place(part: Part | None) -> str:
    return "" if part is None else part.folder


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
    return LiveModel.load(path, index=False).rewrite(drop_index=drop_index, card=written)


def _read(folder: ModelFolder) -> Model:
    """What training has made."""
    settings, report, recipe = folder.manifest["settings"], folder.trained / REPORT, folder.trained / RECIPE
    vectors = read_vectors(folder.trained)
    return Model(
        Towers.load(folder.trained / "encoder"),
        read_labels(folder.trained, int(settings["labels_version"]), len(vectors)),
        vectors,
        report=Report.from_dict(json.loads(report.read_text(encoding="utf-8"))) if report.exists() else None,
        recipe=recipe.read_text(encoding="utf-8") if recipe.exists() else None,
        data=settings["data"],
        training=settings["training"],
    )


def open_labels(path: Path) -> LiveCatalogue:
    """The labels of a model folder as they are now, without the rest of the model; only their files are checked."""

    def read(folder: ModelFolder, connection: Connection) -> LiveCatalogue:
        files = tuple(f"{folder.trained.name}/{name}" for name in (LABELS, VECTORS))
        folder.require_whole((), Verified(connection), only=files)
        try:
            version = int(folder.manifest["settings"]["labels_version"])
            vectors = read_vectors(folder.trained)
            labels = LiveCatalogue(read_labels(folder.trained, version, len(vectors)), vectors, folder.store)
            labels.take_in(connection)
        except DamagedModel:
            raise
        except _UNREADABLE as error:
            raise DamagedModel(f"{path}: its labels cannot be read: {error}; copy the model again") from error
        return labels

    return at_one_moment(path, read)


def change_labels(
    path: Path,
    changes: Callable[[LiveLabels], Sequence[Change]],
    *,
    note: str = "",
    progress: Advance | None = None,
) -> LiveCatalogue:
    """Makes the changes that follow from the labels there are, as one version; the encoder is loaded only if needed."""

    def encode(texts: list[str]) -> Tensor:
        def read(folder: ModelFolder, connection: Connection) -> Towers:
            folder.require_whole((), Verified(connection), only=(f"{folder.trained.name}/encoder/",))
            return Towers.load(folder.trained / "encoder")

        return encode_texts(at_one_moment(path, read).label, texts, progress=progress).float().cpu()

    return _changed(path, lambda labels: labels.change(changes(labels.labels), encode, note))


def undo_labels(path: Path, to_version: int | None = None, *, note: str = "") -> LiveCatalogue:
    """Goes back to an older version, by default the one before; the labels afterwards."""
    return _changed(path, lambda labels: labels.undo(to_version, note))


def _changed(path: Path, change: Callable[[LiveCatalogue], None]) -> LiveCatalogue:
    while True:
        labels = open_labels(path)
        with suppress(Replaced):  # the folder holds another model by now: it is that one's labels that change
            change(labels)
            return labels
