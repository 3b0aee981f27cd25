"""A model written into its folder, whole or not at all; what stood there is replaced in one step, and never lost.

Over its own folder that folds all versions in: labels as they are, and no history. Its README.md, the card, says what
the model is, what it was trained on, how good it is, and how to use it.
"""

import json
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from sqlite3 import Connection
from types import EllipsisType
from typing import Any, NamedTuple

from umpteen import __version__
from umpteen.encoders.folder import MODULES_FILE, write_tensors
from umpteen.errors import BadInput, DamagedModel, NotSaved, UmpteenError
from umpteen.evaluation.report import Report
from umpteen.files.storage import Workspace, atomic_folder, can_hold, flush_to_disk, hidden_sibling, write_atomically
from umpteen.model import folder as layout
from umpteen.model.catalogue import VECTORS
from umpteen.model.changes import Part, Replaced, Store, read_parts, write_part
from umpteen.model.folder import CALIBRATION, INDEX, RANKER, RUNTIME, ModelFolder, at_one_moment
from umpteen.model.labels import LABELS, write_labels
from umpteen.model.live import LiveModel, Told
from umpteen.search.index import BOUND
from umpteen.search.ranking import require_finite

Hold = AbstractContextManager[Path | None]  # that nobody changes a model, and what is kept of it
_UNHELD: Hold = nullcontext()
Standing = tuple[str, int, int]  # a model, the version of its labels, and how many lessons it has had


class Compacted(NamedTuple):
    """What became of a folder."""

    versions: int  # that were folded in
    version: int  # of the labels, as before
    labels: int
    dropped_index: bool


def save_model(
    live: LiveModel,
    path: Path,
    told: Told,
    *,
    extra_files: Iterable[Path] = (),
    unless_changed: Standing | EllipsisType | None = ...,
    card: str | None = None,
) -> Path | None:
    """Writes the model with what is told of it; one that stood there is replaced, and readers go on with it.

    `unless_changed` says what stood there, None for nothing: if something else does by now, or something damaged, it is
    kept aside, and the folder that it is in is returned. A new folder gets this `card`, brought up to date.
    """
    if live.folder is not None and path.resolve() == live.folder.path.resolve():
        _rewrite(live, told)
        return None
    if not can_hold(path, layout.MANIFEST):
        raise BadInput(f"{path} exists and is not a model folder; nothing was written, choose another path")
    parts: Mapping[str, Part] = {}
    if live.folder is not None:
        with suppress(Replaced), live.folder.store.reading() as connection:  # else its parts are replaced, too
            live.catalogue.versions.unread(connection)  # or its labels were put back, and its parts with them
            parts = layout.checked_parts(connection)
    new = _New(live, told, tuple(extra_files), _carried(live, parts, path))
    kept, aside = None, path.with_name(f"{path.name}.kept-{new.identity}")
    if (path / layout.MANIFEST).exists() and standing_in(path) is None:  # damaged, but who knows what it holds
        kept = path.rename(aside)
    if (path / layout.MANIFEST).exists():
        kept = new.replace(path, hold=_last_change(path, unless_changed, aside))
        ModelFolder(path).sweep()
        return kept
    try:
        with atomic_folder(path) as folder:
            new.write(folder)
            new.write_card(folder, card)
    except BaseException:
        if kept is not None and not path.exists():
            kept.rename(path)
        raise
    return kept


def compact(path: Path, *, drop_index: bool = False) -> Compacted:
    """The versions of a model's labels become its own files, whole or not at all: rows stay, the history ends."""
    card = path / layout.CARD
    written = card.read_text("utf-8", errors="replace") if card.is_file() else None
    return _rewrite(LiveModel.load(path, (RANKER, CALIBRATION)), None, drop_index=drop_index, card=written)


def _rewrite(live: LiveModel, told: Told | None, *, drop_index: bool = False, card: str | None = None) -> Compacted:
    """The model takes its own place: with all that others have changed, its parts, labels as they are, no history."""
    folder, made = live.home, {LABELS, VECTORS, layout.REPORT, layout.RECIPE, layout.MARK}
    path, extra = folder.path, [folder.trained / name for name in folder.manifest["files"] if "/" not in name]
    with folder.changing() as connection:
        live.take_in(connection)
        parts, versions = layout.checked_parts(connection), len(live.catalogue.versions)
        is_old = INDEX in parts and parts[INDEX].labels_version != live.version
        if versions or told is not None:
            carried = _carried(live, parts, path, drop_index=drop_index)
            files = tuple(file for file in extra if file.name not in made)
            _New(live, told or live.told, files, carried).replace(path, card)
    ModelFolder(path).sweep()
    return Compacted(versions, live.version, live.labels.count(), is_old and versions > 0)


def _carried(live: LiveModel, parts: Mapping[str, Part], path: Path, *, drop_index: bool = False) -> list[Part]:
    """Which parts hold for these very labels and scores, too, in this folder; an index of older labels does not."""
    is_own = live.folder is not None and path == live.folder.path
    found = [parts[CALIBRATION]] if CALIBRATION in parts and parts.get(RANKER) == live.parts.get(RANKER) else []
    found += [parts[RUNTIME]] if RUNTIME in parts else []
    index = parts.get(INDEX)
    if index is not None and index.labels_version == live.version:
        found += [index] if is_own or not index.about.get(BOUND) else []
    elif index is not None and is_own and not drop_index:
        build, remove = (f"(`umpteen index {verb} {path}`)" for verb in ("build", "remove"))
        advice = f"build it again first {build}, or remove it {remove} and build it afterwards"
        raise BadInput(f"the index of {path} was built of older labels and cannot come along; {advice}")
    return found


def standing_in(path: Path) -> Standing | None:
    """Which model stands there, with which labels and lessons; None if there is none that can be read."""
    with suppress(DamagedModel, BadInput):
        return at_one_moment(path, lambda folder, connection: (folder.model, *_newest(connection)))
    return None


def stood_in(workspace: Workspace, stands: Standing | None, *, anew: bool = False) -> Standing | None:
    """What stood in the model's place when the work in a workspace was begun, which is now if it is begun anew."""
    remembered = workspace.folder / "stood.json"
    if anew or not workspace.begun:
        write_atomically(remembered, json.dumps(stands))
    found = json.loads(remembered.read_bytes()) if remembered.exists() else None
    return None if found is None else tuple(found)


@contextmanager
def _last_change(path: Path, unless_changed: Standing | EllipsisType | None, aside: Path) -> Iterator[Path | None]:
    """Nobody changes the model that stands there any more; kept aside, if it is not the expected one."""
    old, kept = ModelFolder(path), None
    with old.changing() as connection:
        if unless_changed is not ... and unless_changed != (old.model, *_newest(connection)):
            index = read_parts(connection).get(INDEX)
            whole = None if index is None or index.about.get(BOUND) else index.folder
            # Never the database itself: closing a file that was opened here would end this process's locks on it. Nor
            # an engine: files of one that is in use come and go.
            living = {one.name for one in path.glob(f"{INDEX}-*")} - {whole}
            but = shutil.ignore_patterns(".*", "model-*.db*", *living)
            with atomic_folder(aside) as copy:
                shutil.copytree(path, copy, dirs_exist_ok=True, symlinks=True, ignore=but)
                old.store.copy(copy)
                if index is not None and whole is None:
                    ModelFolder(copy).drop(INDEX)
            kept = aside
        try:
            yield kept
        except BaseException:
            if kept is not None and old.is_current():
                shutil.rmtree(kept, ignore_errors=True)
            raise


def _newest(connection: Connection) -> tuple[int, int]:
    counted = "SELECT (SELECT max(version) FROM versions), (SELECT count(*) FROM lessons)"
    version, lessons = connection.execute(counted).fetchone()
    return int(version), int(lessons)


class _New:
    """A model on its way into a folder: its labels as they are now, and parts of its old folder that hold for it."""

    def __init__(self, live: LiveModel, told: Told, extra_files: Iterable[Path], carried: Iterable[Part]) -> None:
        self.live, self.told, self.extra_files, self.carried = live, told, extra_files, carried
        self.parts: list[Part] = []  # as written
        self.report = None if told.report is None else Report.from_dict(told.report)
        self.identity = secrets.token_hex(4)
        self.name = f"model-{self.identity}"
        labels, towers = live.labels, live.towers
        self.settings: dict[str, Any] = {  # for the manifest and the card
            "labels": len(labels),
            "dimension": towers.dimension,
            "encoder": towers.describe(),
            "shared_towers": towers.shared,
            "data": told.data,
            "training": told.training,
            "labels_version": labels.version,
        }
        if labels.count() != len(labels):
            self.settings["retired_labels"] = len(labels) - labels.count()

    def replace(self, path: Path, card: str | None = None, hold: Hold = _UNHELD) -> Path | None:
        """Takes the place of the model there, which the caller is changing, or this from `hold` on; what that gives."""
        layout.refuse_links(path)
        try:
            kept = self.write(path, hold)
        except BaseException:
            with suppress(UmpteenError, OSError):  # what went wrong first is what is told
                if ModelFolder(path).model != self.identity:  # else it counts already, only the folder is not flushed
                    for leftover in (path / self.name, path / f"{self.name}.db"):
                        layout.remove_if_ours(leftover)
            raise
        try:
            self.write_card(path, card)
        except NotSaved as problem:
            raise NotSaved(f"{path}: the new model is in its place, without its card: {problem}") from problem
        return kept

    def write(self, path: Path, hold: Hold = _UNHELD) -> Path | None:
        """All of it, and then the manifest that makes it count."""
        live, told, vectors = self.live, self.told, self.live.catalogue.vectors.everything
        require_finite("label", vectors)
        with ExitStack() as held:
            with atomic_folder(path / self.name) as folder:
                live.towers.save(folder / "encoder")
                write_labels(folder, live.labels)
                write_tensors(folder / VECTORS, {"vectors": vectors.float().cpu()})
                if told.report is not None:
                    (folder / layout.REPORT).write_text(json.dumps(told.report, indent=2) + "\n", encoding="utf-8")
                if told.recipe is not None:
                    (folder / layout.RECIPE).write_text(told.recipe, encoding="utf-8")
                for file in self.extra_files:
                    shutil.copyfile(file, folder / file.name)
                layout.mark(folder, "model")
                files = layout.listed(folder)
                # From here on there are folders with the names of models and parts, which nobody else may sweep.
                kept = held.enter_context(hold)
            self.parts = self._write_parts(path, layout.weights_of(files))
            self._write_database(path, files)
            layout.write_manifest(path, self.identity, self.settings, files)
        return kept

    def _write_parts(self, path: Path, weights: str) -> list[Part]:
        parts, version, ranker = [], self.live.version, self.live.ranker
        for part in self.carried:
            old = self.live.home
            if part.about.get("weights", weights) != weights:  # a runtime of what the encoder was
                continue
            if old.path.resolve() != path.resolve():
                source, part = old.path / part.folder, part._replace(folder=f"{part.name}-{secrets.token_hex(4)}")
                with atomic_folder(path / part.folder) as folder:
                    shutil.copytree(source, folder, dirs_exist_ok=True)
            parts.append(part._replace(labels_version=version))
        if ranker is not None:
            about, target = ranker.describe(), f"{RANKER}-{secrets.token_hex(4)}"
            with atomic_folder(path / target) as folder:
                ranker.save(folder)
                layout.mark(folder, RANKER, about)
                parts.append(Part(RANKER, target, version, about, layout.listed(folder)))
        return parts

    def _write_database(self, path: Path, files: layout.Files) -> None:
        made = hidden_sibling(path / f"{self.name}.db")  # what a kill leaves of it is told by its name
        try:
            store = Store.create(made, self.identity, self.live.version)
            with store.changing() as connection:
                self.live.examples.copy(connection, store)
                for part in self.parts:
                    write_part(connection, part)
                layout.keep_hashes_of(connection, path / self.name, files)
            flush_to_disk(made)
            made.replace(path / f"{self.name}.db")
        except BaseException:
            made.unlink(missing_ok=True)
            raise

    def write_card(self, path: Path, old: str | None = None) -> None:
        """Says what the model is; of an old card only the lines about its labels are brought up to date."""
        from jinja2 import Environment

        report, modules = self.report, (path / self.name / "encoder").rglob(MODULES_FILE)
        environment = Environment(trim_blocks=True, keep_trailing_newline=True)  # it makes no HTML
        environment.filters["n"] = "{:,}".format
        card = environment.from_string(Path(__file__).with_name("card.md").read_text(encoding="utf-8")).render(
            settings=self.settings,
            retired=self.settings.get("retired_labels", 0),
            version=__version__,
            files=self.name,
            own_modules=any(b'"umpteen.' in file.read_bytes() for file in modules),
            report=report,
            cutoffs=sorted({int(name.partition("@")[2]) for name in report.metrics}) if report else (),
            recipe=self.told.recipe,
        )
        if old:
            for line in (r"^# A text classifier over [\d,]+ labels$", r"^- labels: .*, in labels\.db.*$"):
                new = "".join(re.findall(line, card, re.M)[:1])
                old = re.sub(line, new, old, count=1, flags=re.M)
            card = re.sub(r"\bmodel-[0-9a-f]{8}\b", self.name, old)
        write_atomically(path / layout.CARD, layout.card_with(card, self.parts))
