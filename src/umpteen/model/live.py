"""One model in use: its labels as they are now, and the parts that count; whatever others change is taken in."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from sqlite3 import Connection
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from umpteen.calibration.calibration import Calibration
from umpteen.encoders.light import LightEncoder
from umpteen.errors import BadInput, DamagedModel
from umpteen.model import folder as layout
from umpteen.model.catalogue import LiveCatalogue
from umpteen.model.changes import Part, Replaced
from umpteen.model.examples import LiveExamples
from umpteen.model.folder import CALIBRATION, RANKER, RUNTIME, ModelFolder, at_one_moment, checked_parts
from umpteen.model.labels import ADDED, LiveLabels
from umpteen.search.index import ExactIndex, LabelIndex, class_of, try_out

if TYPE_CHECKING:
    from umpteen.encoders.encoder import Encoder
    from umpteen.encoders.towers import Towers
    from umpteen.evaluation.report import Report
    from umpteen.rerank.ranker import Ranker

TEMPERATURES = 2.0  # by how many of them labels that came after training are lifted (docs/how-to/manage-labels.md)
_UNTIL_NEXT_PART = 5.0  # seconds, to use a part that could not be used: it may be somebody else's for now


@dataclass(frozen=True)
class Told:
    """What a model says of its training."""

    report: dict[str, Any] | None = None  # of the dual encoder alone, on validation, as JSON has it
    recipe: str | None = None  # as TOML
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)  # steps, seconds and parameters
    temperature: float = field(init=False)  # that the recipe says, else 0

    def __post_init__(self) -> None:
        try:
            settings = tomllib.loads(self.recipe or "")
            settings.get("data", {}).get("validation_fraction")  # as who trains from it does
            temperature = float(settings.get("objective", {}).get("temperature", 0.0))
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as problem:
            raise BadInput(f"what is to be the model's {layout.RECIPE} cannot be read as one: {problem}") from problem
        object.__setattr__(self, "temperature", temperature)


class LiveModel:
    """What is loaded of one model; `Classifier` says what its attributes are."""

    def __init__(
        self,
        towers: Towers | LightEncoder,
        catalogue: LiveCatalogue,
        *,
        told: Told | None = None,
        ranker: Ranker | None = None,
        calibration: Calibration | None = None,
        folder: ModelFolder | None = None,
        follows: Iterable[str] = (),
    ) -> None:
        count, shape = len(catalogue.start), tuple(catalogue.base.shape)
        if shape != (count, towers.dimension):
            needed = f"{count:,} labels in {towers.dimension} dimensions need as many label vectors"
            raise BadInput(f"{needed}, but these have the shape {shape}")
        if ranker is not None and len(ranker.texts) != count:
            raise BadInput(f"the ranker knows {len(ranker.texts):,} labels, the model {count:,}; fit it again")
        self.catalogue = catalogue
        self.examples = LiveExamples(catalogue.store, towers.dimension)
        self.dimension = towers.dimension
        self.light: LightEncoder | None = None  # encodes queries, so that nobody waits for the towers
        if isinstance(towers, LightEncoder):
            self.light = towers
        else:
            self.towers = towers
        self.told: Told = told or Told()
        self.calibration: Calibration | None = calibration
        self.folder: ModelFolder | None = folder
        self.parts: dict[str, Part] = {}
        self.index: LabelIndex = ExactIndex(catalogue.vectors)
        self._index_version = self.version
        self.runtime: Encoder | None = None  # the query tower as something faster than torch computes it
        self.follows = tuple(follows)  # the parts that it uses as soon as they are there and can be opened
        self.fitted_ranker: Ranker | None = ranker
        self._current_ranker: tuple[int, Ranker] | None = None  # for which version
        self._head_start: tuple[int, NDArray[np.float32] | None] | None = None  # likewise
        # By part that could not be used: its place, why, and until when it is not tried again.
        self.troubles: dict[str, tuple[str, Exception, float]] = {}

    @classmethod
    def load(cls, path: Path | str, follows: Sequence[str], *, light: bool = False) -> LiveModel:
        """What `Classifier.load` opens, with the parts that it follows."""

        def read(folder: ModelFolder, connection: Connection) -> tuple[LiveModel, ModelFolder]:
            parts = {name: part for name, part in checked_parts(connection).items() if name in (*follows, RANKER)}
            folder.require_whole(connection, parts.values())
            files = (folder.trained / name for name in (layout.REPORT, layout.RECIPE))
            report, recipe = (file.read_text(encoding="utf-8") if file.exists() else None for file in files)
            settings = folder.manifest["settings"]
            told = Told(None if report is None else json.loads(report), recipe, settings["data"], settings["training"])
            towers = (LightEncoder.read(folder.trained / "encoder") if light else None) or _towers(folder)
            loaded = cls(towers, LiveCatalogue.read(folder, connection), told=told, folder=folder, follows=follows)
            loaded.examples.take_in(connection)
            for name in loaded._wanted(parts):
                loaded._use(name, parts.get(name), try_it=False)
            return loaded, folder

        loaded, folder = at_one_moment(path, read)
        folder.keep_hashes()
        return loaded

    @property
    def home(self) -> ModelFolder:
        """The folder of one that has one."""
        assert self.folder is not None
        return self.folder

    @cached_property
    def towers(self) -> Towers:
        """Loaded here if a light encoder stood in for them until now."""
        return _towers(self.home)

    @property
    def query_tower(self) -> Encoder:
        """What encodes queries; labels, and whatever is trained, are torch's."""
        return self.runtime or self.towers.query

    @property
    def report(self) -> Report | None:
        """On validation: as it answers, with its ranker if it has one; None if nobody has judged it so."""
        from umpteen.evaluation.report import Report

        found = self.told.report if self.fitted_ranker is None else self.fitted_ranker.report
        return None if found is None else Report.from_dict(found)

    @property
    def labels(self) -> LiveLabels:
        return self.catalogue.labels

    @property
    def version(self) -> int:
        return self.catalogue.labels.version

    @property
    def ranker(self) -> Ranker | None:
        ranker, labels, current = self.fitted_ranker, self.labels, self._current_ranker
        if ranker is None:
            return None
        if current is None or current[0] != labels.version:
            fitted = self.parts[RANKER].labels_version if RANKER in self.parts else self.catalogue.start.version
            changed = self.catalogue.renamed_since(fitted)
            current = self._current_ranker = labels.version, ranker.with_later(len(labels), changed)
        return current[1]

    @property
    def last_ranker(self) -> Ranker | None:
        """The ranker as it was last used, whose labels may be fewer than there are by now; any thread may ask."""
        current = self._current_ranker
        return self.fitted_ranker if current is None else current[1]

    @property
    def head_start(self) -> NDArray[np.float32] | None:
        """What labels that were added since training, if there are any, get on top of their scores, 0 for others: no
        query was ever pulled towards them, as some were towards renamed ones."""
        if self._head_start is None or self._head_start[0] != self.version:
            later = (self.labels.origins == ADDED) & self.labels.active
            bonus = later.astype(np.float32) * np.float32(TEMPERATURES * self.told.temperature)
            self._head_start = self.version, bonus if bonus.any() else None
        return self._head_start[1]

    def look(self) -> bool:
        """Takes in what others have done to the folder; raises Replaced if another model has its place by now."""
        layout.refuse_links(self.home.path)
        if not self.home.is_current():
            raise Replaced
        with self.home.store.reading() as connection:
            return self.take_in(connection)

    def take_in(self, connection: Connection) -> bool:
        """What others have changed since: labels, examples, parts; a part that cannot be used is tried again later."""
        changed = self.catalogue.take_in(connection)
        changed = self.examples.take_in(connection) or changed
        self.tell_index()
        parts = checked_parts(connection)
        for name in self._wanted(parts):
            part, (tried, _, until) = parts.get(name), self.troubles.get(name, (None, None, 0.0))
            if _place(part) == _place(self.parts.get(name)):
                self.troubles.pop(name, None)
            elif tried != _place(part) or monotonic() > until:
                try:
                    if part is not None:
                        self.home.require_whole(connection, [part], (part.folder,))
                    self._use(name, part, try_it=True)
                except Exception as error:
                    self.troubles[name] = _place(part), error, monotonic() + _UNTIL_NEXT_PART
                else:
                    self.troubles.pop(name, None)
                    changed = True
        for _, why, _ in self.troubles.values():
            raise why
        return changed

    def tell_index(self) -> None:
        """The index hears of the labels that have changed since it last did."""
        changed = self.catalogue.since(self._index_version)
        if len(changed):
            self.index.tell(self.catalogue.indexed(), changed)
        self._index_version = self.version

    def _wanted(self, parts: Mapping[str, Part]) -> Iterable[str]:
        """The names of the parts that are followed; a calibration holds for the ranker's scores, if there is one."""
        return (name for name in self.follows if name != CALIBRATION or RANKER in self.follows or RANKER not in parts)

    def _use(self, name: str, part: Part | None, *, try_it: bool) -> None:
        """The part counts from now on; an index that is to be tried has answered a query by then."""
        where = None if part is None else self.home.path / part.folder
        if name == RANKER:
            ranker = None
            if where is not None:
                from umpteen.rerank.ranker import Ranker

                ranker = Ranker.load(where)
                if ranker.memory is not None:
                    ranker.memory.require(self.dimension)
            self.fitted_ranker = ranker
            self._current_ranker = None
        elif name == CALIBRATION:
            self.calibration = None if where is None else Calibration.load(where)
        elif name == RUNTIME:
            self.runtime = None if part is None else self._runtime_of(part)
        elif part is not None or self.index.kind != ExactIndex.kind:
            self._use_index(part, try_it=try_it)
        others = {key: one for key, one in self.parts.items() if key != name}
        self.parts = others if part is None else {**others, name: part}

    def _runtime_of(self, part: Part) -> Encoder | None:
        """None where onnxruntime is not installed: the answers are the same, and only take longer."""
        from umpteen.encoders.runtime import on_graphs

        where = self.home.path / part.folder
        if part.about.get("weights") != layout.weights_of(self.home.manifest["files"]):
            again = f"`umpteen export {self.home.path} --to onnx` makes it again, `--to torch` removes it"
            raise DamagedModel(f"{where}: was exported of other weights; {again}")
        try:
            return on_graphs(self.towers.query, where)
        except ModuleNotFoundError as missing:
            advice = "`pip install 'umpteen[onnx]'` is faster"
            logging.getLogger(__name__).warning(f"{where}: {missing.name} is not installed, so torch encodes; {advice}")
            return None

    def _use_index(self, part: Part | None, *, try_it: bool) -> None:
        old = self.index
        new: LabelIndex = ExactIndex(self.catalogue.vectors)
        if part is not None:
            where = self.home.path / part.folder
            kind = class_of(str(part.about.get("kind")))
            held = np.flatnonzero(self.catalogue.at(part.labels_version).active)
            changed = self.catalogue.since(part.labels_version)
            try:
                new = kind.open(where, part.about, self.catalogue.indexed(), held, changed)
            except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
                advice = "`umpteen index build` makes it again, `umpteen index remove` goes back to exact search"
                reason = f"cannot be opened although its files are whole ({error})"
                raise DamagedModel(f"{where}: {reason}; {advice}") from error
            try:
                if try_it:
                    try_out(new, self.catalogue.vectors.dimension)
            except BaseException:  # another process may have it to itself
                new.close()
                raise
        self.index, self._index_version = new, self.version
        old.close()


def _towers(folder: ModelFolder) -> Towers:
    from umpteen.encoders.towers import Towers

    return Towers.load(folder.trained / "encoder")


def _place(part: Part | None) -> str:
    return "" if part is None else part.folder
