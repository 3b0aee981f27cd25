"""One model in use: its labels as they are now, and the parts that count; whatever others change is taken in."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from sqlite3 import Connection
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError

from umpteen.calibration.calibration import Calibration
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel
from umpteen.evaluation.report import Report
from umpteen.model.catalogue import LiveCatalogue
from umpteen.model.changes import Part, Replaced
from umpteen.model.folder import (
    CALIBRATION,
    INDEX,
    RANKER,
    RECIPE,
    REPORT,
    ModelFolder,
    Verified,
    at_one_moment,
    checked_parts,
    refuse_links,
)
from umpteen.model.labels import ADDED, LiveLabels
from umpteen.rerank.ranker import Ranker
from umpteen.search.engine import ExactIndex, LabelIndex, try_out
from umpteen.search.kinds import class_of
from umpteen.search.ranking import HeadStart

TEMPERATURES = 2.0  # by how many of them labels that came after training are lifted (docs/how-to/manage-labels.md)
_UNTIL_NEXT_PART = 5.0  # seconds, to use a part that could not be used: it may be somebody else's for now


class _Trouble(NamedTuple):
    """A part that could not be used."""

    place: str
    error: Exception
    until: float  # when it is tried again


class LiveModel:
    """What is loaded of one model; `Classifier` says what its attributes are."""

    def __init__(
        self,
        towers: Towers,
        catalogue: LiveCatalogue,
        *,
        report: dict[str, Any] | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        ranker: Ranker | None = None,
        calibration: Calibration | None = None,
        folder: ModelFolder | None = None,
        follows: Iterable[str] = (),
    ) -> None:
        count, shape = len(catalogue.start), tuple(catalogue.base.shape)
        if shape != (count, towers.dimension):
            raise BadInput(
                f"{count:,} labels in {towers.dimension} dimensions need as many label vectors, "
                f"but these have the shape {shape}"
            )
        if ranker is not None and ranker.labels != count:
            raise BadInput(f"the ranker knows {ranker.labels:,} labels, the model {count:,}; fit it again")
        self.catalogue = catalogue
        self.towers = towers
        self._report = report  # as JSON has it, until somebody asks for it
        self.recipe = recipe
        self.data = data or {}
        self.training = training or {}
        self.calibration = calibration
        self.folder = folder
        self.parts: dict[str, Part] = {}
        self.index: LabelIndex = ExactIndex(catalogue.vectors)
        self._index_version = self.version
        self.follows = tuple(follows)  # the parts that it uses as soon as they are there and can be opened
        self.fitted_ranker = ranker
        self._current_ranker: tuple[int, Ranker] | None = None  # for which version
        self._head_start: tuple[int, HeadStart | None] | None = None  # likewise
        self.troubles: dict[str, _Trouble] = {}  # by part, when it was last tried

    @classmethod
    def load(cls, path: Path | str, *, ranker: bool = True, index: bool = True) -> "LiveModel":
        """What `Classifier.load` opens."""
        follows = [*([RANKER] if ranker else []), CALIBRATION, *([INDEX] if index else [])]

        def read(folder: ModelFolder, connection: Connection) -> tuple[LiveModel, Verified]:
            verified = Verified(connection)
            parts = {name: part for name, part in checked_parts(connection).items() if name in (*follows, RANKER)}
            folder.require_whole(parts.values(), verified)
            report, recipe = folder.trained / REPORT, folder.trained / RECIPE
            loaded = cls(
                Towers.load(folder.trained / "encoder"),
                LiveCatalogue.read(folder, connection),
                report=json.loads(report.read_text(encoding="utf-8")) if report.exists() else None,
                recipe=recipe.read_text(encoding="utf-8") if recipe.exists() else None,
                data=folder.manifest["settings"]["data"],
                training=folder.manifest["settings"]["training"],
                folder=folder,
                follows=follows,
            )
            for name in loaded._wanted(parts):
                loaded._use(name, parts.get(name), try_it=False)
            return loaded, verified

        loaded, verified = at_one_moment(path, read)
        assert loaded.folder is not None
        verified.keep(loaded.folder.store)
        return loaded

    @property
    def report(self) -> Report | None:
        """On validation: as it answers, with its ranker if it has one."""
        ranked = None if self.fitted_ranker is None else self.fitted_ranker.report
        return self.trained_report if ranked is None else Report.from_dict(ranked)

    @property
    def trained_report(self) -> Report | None:
        """On validation, as training ended: of the dual encoder alone."""
        return None if self._report is None else Report.from_dict(self._report)

    @property
    def labels(self) -> LiveLabels:
        return self.catalogue.labels

    @property
    def version(self) -> int:
        return self.catalogue.labels.version

    @property
    def ranker(self) -> Ranker | None:
        if self.fitted_ranker is None:
            return None
        if self._current_ranker is None or self._current_ranker[0] != self.version:
            fitted = self.parts[RANKER].labels_version if RANKER in self.parts else self.catalogue.start.version
            changed = self.catalogue.renamed_since(fitted)
            self._current_ranker = self.version, self.fitted_ranker.with_later(len(self.labels), changed)
        return self._current_ranker[1]

    @property
    def head_start(self) -> HeadStart | None:
        """For labels that were added since training, if there are any; renamed ones had queries pulled towards them."""
        if self._head_start is None or self._head_start[0] != self.version:
            later = (self.labels.origins() == ADDED) & self.labels.active
            bonus = later.astype(np.float32) * np.float32(TEMPERATURES * self._temperature())
            self._head_start = self.version, HeadStart(bonus) if bonus.any() else None
        return self._head_start[1]

    def _temperature(self) -> float:
        """That scores were divided by in training; 0 if nothing tells."""
        return float(tomllib.loads(self.recipe or "").get("objective", {}).get("temperature", 0.0))

    def look(self) -> bool:
        """Takes in what others have done to the folder; raises Replaced if another model has its place by now."""
        assert self.folder is not None
        refuse_links(self.folder.path)
        if not self.folder.is_current():
            raise Replaced
        with self.folder.store.reading() as connection:
            return self.take_in(connection)

    def take_in(self, connection: Connection) -> bool:
        """What others have changed since, labels and parts; a part that cannot be used is tried again later."""
        assert self.folder is not None
        changed = self.catalogue.take_in(connection)
        self.tell_index()
        parts, verified = checked_parts(connection), Verified(connection)
        for name in self._wanted(parts):
            part, trouble = parts.get(name), self.troubles.get(name)
            if _place(part) == _place(self.parts.get(name)):
                self.troubles.pop(name, None)
            elif trouble is None or trouble.place != _place(part) or monotonic() > trouble.until:
                try:
                    if part is not None:
                        self.folder.require_whole([part], verified, only=(part.folder,))
                    self._use(name, part, try_it=True)
                except Exception as error:
                    self.troubles[name] = _Trouble(_place(part), error, monotonic() + _UNTIL_NEXT_PART)
                else:
                    self.troubles.pop(name, None)
                    changed = True
        for trouble in self.troubles.values():
            raise trouble.error
        return changed

    @property
    def is_whole(self) -> bool:
        """False if it was loaded without its ranker."""
        return self.folder is None or RANKER in self.follows

    def tell_index(self) -> None:
        """The index hears of the labels that have changed since it last did."""
        changed = self.catalogue.since(self._index_version)
        if len(changed):
            self.index.tell(self.catalogue.indexed(), changed)
        self._index_version = self.version

    def _wanted(self, parts: Mapping[str, Part]) -> Iterable[str]:
        """The names of the parts that are followed; a calibration holds for the ranker's scores, if there is one."""
        return (name for name in self.follows if name != CALIBRATION or self.is_whole or RANKER not in parts)

    def _use(self, name: str, part: Part | None, *, try_it: bool) -> None:
        """The part counts from now on; an index that is to be tried has answered a query by then."""
        assert self.folder is not None
        where = None if part is None else self.folder.part_path(part)
        if name == RANKER:
            ranker = None if where is None else Ranker.load(where)
            if ranker is not None and ranker.memory is not None:
                ranker.memory.require(self.towers.query.dimension)
            self.fitted_ranker = ranker
            self._current_ranker = None
        elif name == CALIBRATION:
            self.calibration = None if where is None else Calibration.load(where)
        elif part is not None or self.index.kind != ExactIndex.kind:
            self._use_index(part, try_it=try_it)
        others = {key: one for key, one in self.parts.items() if key != name}
        self.parts = others if part is None else {**others, name: part}

    def _use_index(self, part: Part | None, *, try_it: bool) -> None:
        assert self.folder is not None
        old = self.index
        new: LabelIndex = ExactIndex(self.catalogue.vectors)
        if part is not None:
            where = self.folder.part_path(part)
            kind = class_of(str(part.about.get("kind")))
            held = np.flatnonzero(self.catalogue.at(part.labels_version).active)
            changed = self.catalogue.since(part.labels_version)
            try:
                new = kind.open(where, part.about, self.catalogue.indexed(), held, changed)
            except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
                raise DamagedModel(
                    f"{where}: cannot be opened although its files are whole ({error}); "
                    "`umpteen index build` makes it again, `umpteen index remove` goes back to exact search"
                ) from error
            try:
                if try_it:
                    try_out(new, self.catalogue.vectors.dimension)
            except BaseException:  # another process may have it to itself
                new.close()
                raise
        self.index, self._index_version = new, self.version
        old.close()


def _place(part: Part | None) -> str:
    return "" if part is None else part.folder
