"""A model written into its folder, whole or not at all; what stood there is replaced in one step, and never lost.

Its README.md, the card, says what the model is, what it was trained on, how good it is, and how to use it.
"""

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from string import Template
from types import EllipsisType
from typing import Any

from torch import Tensor

from umpteen.encoders.folder import write_tensors
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel, UmpteenError
from umpteen.evaluation.report import Report
from umpteen.files.storage import atomic_folder, can_hold, flush_to_disk, hidden_sibling, write_atomically
from umpteen.model.catalogue import VECTORS
from umpteen.model.changes import Part, Store, write_part
from umpteen.model.folder import (
    CARD,
    FORMAT,
    MANIFEST,
    RANKER,
    RECIPE,
    REPORT,
    Files,
    ModelFolder,
    Verified,
    at_one_moment,
    checksum_of,
    listed,
    mark,
    refuse_links,
    remove_if_ours,
)
from umpteen.model.labels import LiveLabels, write_labels
from umpteen.rerank.ranker import Ranker
from umpteen.search.ranking import require_finite
from umpteen.version import __version__

_METRICS = ("P", "nDCG", "R", "PSP", "PSnDCG")
_RANKER_SECTION = """
## Ranker

Linear weights a label on the words of a text (tf-idf of n-grams) put the encoder's first labels in order; a score is
(1 − weight) · inner product + weight · the ranker's score. `Classifier.load(folder, ranker=False)` leaves it out.
"""

Standing = tuple[str, int]  # a model, and the version of its labels
Carried = tuple[Part, Path]  # a part of another model that holds for a new one, too, and the folder it lies in


@dataclass(frozen=True)
class Model:
    """What training makes, and a ranker if there is one."""

    towers: Towers
    labels: LiveLabels
    vectors: Tensor  # [rows, d]
    report: Report | None = None
    recipe: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    ranker: Ranker | None = None

    def settings(self) -> dict[str, Any]:
        """For the manifest and the model card."""
        settings = {
            "labels": len(self.labels),
            "dimension": self.towers.dimension,
            "encoder": self.towers.describe(),
            "shared_towers": self.towers.shared,
            "data": self.data,
            "training": self.training,
            "labels_version": self.labels.version,
        }
        if self.labels.count() != len(self.labels):
            settings["retired_labels"] = len(self.labels) - self.labels.count()
        return settings


def write_model(
    model: Model,
    path: Path,
    *,
    extra_files: Iterable[Path] = (),
    carried: Iterable[Carried] = (),
    unless_changed: Standing | EllipsisType | None = ...,
    held: bool = False,
    card: str | None = None,
) -> Path | None:
    """Writes the model, whole or not at all; one that stood there is replaced in one step, and readers go on with it.

    `unless_changed` says what stood there, None for nothing: if something else does by now, or something damaged, it is
    kept aside, and the folder that it is in is returned. `held` says that the caller is changing the model that stands
    there. A `card` that people may have edited is kept, but for its lines about the labels.
    """
    if not can_hold(path, MANIFEST):
        raise BadInput(f"{path} exists and is not a model folder; nothing was written, choose another path")
    identity, kept = secrets.token_hex(4), None
    if (path / MANIFEST).exists() and not held and standing_in(path) is None:  # damaged, but who knows what it holds
        kept = path.rename(path.with_name(f"{path.name}.kept-{identity}"))
    if not (path / MANIFEST).exists():
        try:
            with atomic_folder(path, replace=False) as folder:
                _write_files(model, folder, identity, extra_files, carried)
                _write_card(folder, identity, model, card)
        except BaseException:
            if kept is not None and not path.exists():
                kept.rename(path)
            raise
        return kept
    refuse_links(path)
    try:
        with ExitStack() as holding:

            def hold() -> None:
                nonlocal kept
                kept = None if held else holding.enter_context(_last_change(path, unless_changed))

            _write_files(model, path, identity, extra_files, carried, hold)
    except BaseException:
        with suppress(UmpteenError, OSError):  # what went wrong first is what is told
            if ModelFolder(path).model != identity:  # else it counts already, and only the folder could not be flushed
                for leftover in (path / f"model-{identity}", path / f"model-{identity}.db"):
                    remove_if_ours(leftover)
        raise
    _write_card(path, identity, model, card)
    if not held:
        ModelFolder(path).sweep()
    return kept


def standing_in(path: Path) -> Standing | None:
    """Which model stands there, with which version of its labels; None if there is none that can be read."""
    with suppress(DamagedModel, BadInput):
        return at_one_moment(path, lambda folder, connection: (folder.model, _newest(connection)))
    return None


@contextmanager
def _last_change(path: Path, unless_changed: Standing | EllipsisType | None) -> Iterator[Path | None]:
    """Nobody changes the model that stands there any more; kept aside, if it is not the expected one."""
    old = ModelFolder(path)
    with old.changing() as connection:
        kept = None
        if unless_changed is not ... and unless_changed != (old.model, _newest(connection)):
            kept = path.with_name(f"{path.name}.kept-{old.model}")
            # Never the database itself: closing a file that was opened here would end this process's locks on it.
            but = shutil.ignore_patterns(".*", f"{old.trained.name}.db*")
            with atomic_folder(kept) as copy:
                shutil.copytree(path, copy, dirs_exist_ok=True, symlinks=True, ignore=but)
                old.store.copy(copy)
        yield kept


def _newest(connection: Connection) -> int:
    return int(connection.execute("SELECT max(version) FROM versions").fetchone()[0])


def _write_files(
    model: Model,
    path: Path,
    identity: str,
    extra_files: Iterable[Path],
    carried: Iterable[Carried],
    hold: Callable[[], None] = lambda: None,
) -> None:
    """All of a model, and then the manifest that makes it count.

    `hold` is called before anything has the name of a model or a part: nobody else may sweep from then on.
    """
    name = f"model-{identity}"
    require_finite("label", model.vectors)
    with atomic_folder(path / name) as folder:
        model.towers.save(folder / "encoder")
        write_labels(folder, model.labels)
        write_tensors(folder / VECTORS, {"vectors": model.vectors.float().cpu()})
        if model.report is not None:
            (folder / REPORT).write_text(json.dumps(model.report.to_dict(), indent=2) + "\n", encoding="utf-8")
        if model.recipe is not None:
            (folder / RECIPE).write_text(model.recipe, encoding="utf-8")
        for file in extra_files:
            shutil.copyfile(file, folder / file.name)
        mark(folder, "model")
        files = listed(folder)
        hold()
    parts = [_carry(part, source, path, model.labels.version) for part, source in carried]
    if model.ranker is not None:
        about, target = model.ranker.describe(), f"{RANKER}-{secrets.token_hex(4)}"
        with atomic_folder(path / target) as folder:
            model.ranker.save(folder)
            mark(folder, RANKER, about)
            parts.append(Part(RANKER, target, model.labels.version, about, listed(folder)))
    _write_database(path / f"{name}.db", identity, model.labels.version, parts, files)
    manifest = {
        "format": FORMAT,
        "umpteen": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": identity,
        "settings": model.settings(),
        "files": files,
    }
    sealed = {**manifest, "checksum": checksum_of(manifest)}
    write_atomically(path / MANIFEST, json.dumps(sealed, indent=2, ensure_ascii=False) + "\n")


def _write_database(path: Path, identity: str, version: int, parts: Iterable[Part], files: Files) -> None:
    made = hidden_sibling(path)  # what a kill leaves of it is told by its name
    try:
        store = Store.create(made, identity, version)
        with store.changing() as connection:
            for part in parts:
                write_part(connection, part)
            verified = Verified(connection)
            verified.add_new(path.with_suffix(""), files)  # so that the first load need not hash them
            verified.write(connection)
        flush_to_disk(made)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _carry(part: Part, source: Path, path: Path, version: int) -> Part:
    if source.parent.resolve() == path.resolve():
        return part._replace(labels_version=version)
    name = f"{part.name}-{secrets.token_hex(4)}"
    with atomic_folder(path / name) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    return part._replace(folder=name, labels_version=version)


def _write_card(path: Path, identity: str, model: Model, card: str | None) -> None:
    ranker = None if model.ranker is None else model.ranker.describe()
    files, settings = f"model-{identity}", model.settings()
    made = with_labels(card, files, settings) if card else model_card(files, settings, model.report, model.recipe)
    write_atomically(path / CARD, with_ranker(made, ranker))


def model_card(files: str, settings: dict[str, Any], report: Report | None, recipe: str | None) -> str:
    """Markdown for the settings of a manifest, the report and the recipe of the model whose files are in a folder."""
    data = {"licence": "not stated; it follows from the data's and from the encoder this one started from"}
    data |= settings.get("data", {})
    facts = [f"- encoder: {settings['encoder']}", _line_about_labels(settings)]
    facts += [f"- data {name.replace('_', ' ')}: {value}" for name, value in data.items() if name != "licence"]
    for name, value in settings.get("training", {}).items():
        said = ", ".join(f"{key} {n:,}" for key, n in value.items()) if isinstance(value, dict) else value
        facts += [] if value is None else [f"- training {name.replace('_', ' ')}: {said}"]
    card = Template(Path(__file__).with_name("card.md").read_text(encoding="utf-8")).substitute(
        title=_title(settings),
        version=__version__,
        dimension=settings["dimension"],
        facts="\n".join([*facts, f"- licence: {data['licence']}"]),
        files=files,
        encode="encode" if settings["shared_towers"] else "encode_query",
        # sentence-transformers takes a module of ours only when told so.
        trust=", trust_remote_code=True" if "bigrams" in settings["encoder"] else "",
    )
    card += "" if report is None else "\n" + _table_of_metrics(report)
    return card if recipe is None else f"{card}\n## Recipe\n\n```toml\n{recipe.strip()}\n```\n"


def with_ranker(card: str, ranker: dict[str, Any] | None) -> str:
    """The card with its last section saying what the ranker is, or without that section; the rest stays as it is."""
    rest = card.partition(_RANKER_SECTION)[0].rstrip() + "\n"
    if ranker is None:
        return rest
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in ranker.items()]
    return "\n".join([rest + _RANKER_SECTION, *lines, ""])


def with_labels(card: str, files: str, settings: dict[str, Any]) -> str:
    """The card with its lines about the labels and where they are brought up to date, where they still stand."""
    card = re.sub(r"\bmodel-[0-9a-f]{8}\b", files, card)
    card = re.sub(r"^# A text classifier over [\d,]+ labels$", _title(settings), card, count=1, flags=re.M)
    return re.sub(r"^- labels: .*, in labels\.db.*$", _line_about_labels(settings), card, count=1, flags=re.M)


def _title(settings: dict[str, Any]) -> str:
    return f"# A text classifier over {settings['labels'] - settings.get('retired_labels', 0):,} labels"


def _line_about_labels(settings: dict[str, Any]) -> str:
    retired, version = settings.get("retired_labels", 0), settings["labels_version"]
    line = f"- labels: {settings['labels'] - retired:,}, in labels.db"
    line += f", and {retired:,} retired ones" if retired else ""
    return line + (f"; version {version} of the labels, which were changed after training" if version else "")


def _table_of_metrics(report: Report) -> str:
    lines = [
        "## Metrics\n",
        f"In percent, 95 % bootstrap intervals in brackets; {report.queries:,} queries"
        f" ({report.queries_left_out:,} without positives left out);"
        f" propensity A = {report.propensity['A']}, B = {report.propensity['B']}.\n",
        "| k | " + " | ".join(_METRICS) + " |",
        "|---" * (len(_METRICS) + 1) + "|",
    ]
    for k in sorted({int(name.partition("@")[2]) for name in report.metrics}):
        cells = []
        for name in (f"{metric}@{k}" for metric in _METRICS):
            cell = f"{report.metrics[name]:.2f}" if name in report.metrics else ""
            low, high = report.intervals.get(name, (None, None))
            cells.append(f"{cell} [{low:.2f}, {high:.2f}]" if cell and low is not None else cell)
        lines.append(f"| {k} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])
