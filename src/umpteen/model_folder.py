"""A classifier's folder: what is written into it, read from it and checked in it (docs/model-folder.md)."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from umpteen.calibration.calibration import Calibration
from umpteen.catalogue.journal import Journal, stamp_of
from umpteen.catalogue.live import LiveLabels
from umpteen.catalogue.stored import VECTORS, VERSION, read_labels, read_vectors, version_of, write_labels
from umpteen.encoders.layout import write_tensors
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel, UmpteenError
from umpteen.evaluation.report import Report
from umpteen.manifest import (
    ADDED_LATER,
    CALIBRATION,
    INDEX,
    MANIFEST,
    PART,
    problems,
    read_manifest,
    read_part,
    tie_part,
    write_manifest,
)
from umpteen.model_card import model_card
from umpteen.ranker.ranker import Ranker
from umpteen.retrieval.exact import require_finite
from umpteen.stamps import NOTHING_THERE, VERIFIED, Stamp, file_stamp
from umpteen.storage import atomic_folder, can_hold, is_unfinished

RANKER = "ranker"  # its folder in a model folder, and its entry in the manifest
MILVUS = "milvus"  # the kind of index that keeps nothing but its address in the folder, or a living engine
REPORT, RECIPE, CARD = "report.json", "recipe.toml", "README.md"
PARTS = (CALIBRATION, INDEX)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Model:
    """What a model folder holds."""

    towers: Towers
    labels: LiveLabels
    vectors: Tensor  # [rows, d]
    report: Report | None = None
    recipe: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    ranker: Ranker | None = None
    calibration: Calibration | None = None

    def settings(self) -> dict[str, Any]:
        """For the manifest and the model card."""
        settings = {
            "labels": len(self.labels),
            "dimension": self.towers.dimension,
            "encoder": self.towers.describe(),
            "shared_towers": self.towers.shared,
            "data": self.data,
            "training": self.training,
        }
        if self.labels.version:
            settings[VERSION] = self.labels.version
        if self.labels.count() != len(self.labels):
            settings["retired_labels"] = len(self.labels) - self.labels.count()
        if self.ranker is not None:
            settings[RANKER] = self.ranker.describe()
        return settings


def write_model(
    model: Model,
    path: Path,
    *,
    extra_files: Iterable[Path] = (),
    parts_of: Journal | None = None,
    parts: Iterable[str] = PARTS,
) -> None:
    """Writes the folder, whole or not at all; a model that stood there is replaced.

    Calibration and index, or the given ones of them, come along from the model `parts_of`, if it is still in its place.
    """
    if not can_hold(path, MANIFEST):
        raise BadInput(f"{path} exists and is not a model folder; nothing was written, choose another path")
    settings = model.settings()
    with atomic_folder(path) as folder:
        model.towers.save(folder / "encoder")
        write_labels_and_vectors(model, folder)
        if model.report is not None:
            text = json.dumps(model.report.to_dict(), indent=2) + "\n"
            (folder / REPORT).write_text(text, encoding="utf-8")
        if model.recipe is not None:
            (folder / RECIPE).write_text(model.recipe, encoding="utf-8")
        for file in extra_files:
            shutil.copyfile(file, folder / file.name)
        (folder / CARD).write_text(model_card(settings, model.report, model.recipe), encoding="utf-8")
        checksum = write_manifest(folder, settings)
        if parts_of is not None:
            carry_parts(parts_of, folder, checksum, model.labels.version, parts)


def write_labels_and_vectors(model: Model, folder: Path) -> None:
    """The files that depend on the labels, with the ranker's."""
    require_finite("label", model.vectors)
    write_labels(folder, model.labels)
    write_tensors(folder / VECTORS, {"vectors": model.vectors.float().cpu()})
    if model.ranker is not None:
        model.ranker.save(folder / RANKER)


def carry_parts(source: Journal, folder: Path, checksum: str, version: int, parts: Iterable[str] = PARTS) -> None:
    """Copies parts to a model for which they hold, too: calibration and index to one that gives the same scores.

    An index of other labels stays behind, and one in Milvus, which two folders cannot share. So do all parts if another
    model has taken the source's place meanwhile.
    """
    for name in parts:
        try:
            _carry(source, folder, checksum, version, name)
        except (DamagedModel, OSError):
            if _is_in_place(source):
                raise
            shutil.rmtree(folder / name, ignore_errors=True)


def _carry(source: Journal, folder: Path, checksum: str, version: int, name: str) -> None:
    origin, copy = source.model / name, folder / name
    if origin.is_dir() and _is_in_place(source):
        part = read_part(origin, source.belongs_to)
        if name != INDEX or (part["catalogue_version"] == version and part["settings"].get("kind") != MILVUS):
            shutil.copytree(origin, copy, ignore=shutil.ignore_patterns(VERIFIED))
            read_part(copy, source.belongs_to)  # still the one it was
            tie_part(copy, checksum)


def _is_in_place(source: Journal) -> bool:
    return stamp_of(source.model) != NOTHING_THERE and not source.is_replaced()


def require_no_milvus(path: Path) -> None:
    """Refuses to rewrite a folder whose index lives outside of its files."""
    if (path / INDEX).is_dir() and _index_part(path)["settings"].get("kind") == MILVUS:
        raise BadInput(
            f"the index of {path} is kept by Milvus and belongs to the files as they are; "
            f"`umpteen index remove {path}` first, and build it again afterwards"
        )


def require_index_that_comes_along(path: Path, version: int, *, instead: str) -> None:
    """Refuses to rewrite a folder with this version of the labels if its index would be lost; `instead` is advice."""
    require_no_milvus(path)
    if has_older_index(path, version):
        raise BadInput(
            f"{path / INDEX} was built of older labels and cannot come along; build it again first "
            f"(`umpteen index build {path}`), or {instead}"
        )


def has_older_index(path: Path, version: int) -> bool:
    """Whether there is an index that was built of other labels than this version's."""
    return (path / INDEX).is_dir() and _index_part(path)["catalogue_version"] != version


def _index_part(path: Path) -> dict[str, Any]:
    return read_part(path / INDEX, read_manifest(path)["checksum"])


def read_model(path: Path, *, ranker: bool = True) -> tuple[Model, Journal]:
    """The model of a folder, and the journal of its labels; files are checked, large ones in full after a change."""
    while True:
        stamp, parts = stamp_of(path), part_stamps(path)
        try:
            manifest = read_manifest(path)
            damage = problems(path, manifest, arrays=False)
            if damage:
                raise DamagedModel(damage[0])
            model = _read(path, manifest, ranker)
        except (DamagedModel, OSError):
            if (stamp_of(path), part_stamps(path)) == (stamp, parts):
                raise
        else:
            if (stamp_of(path), part_stamps(path)) == (stamp, parts):
                return model, Journal(path, manifest["checksum"], stamp)
        # Replaced while it was read: what was found belongs to two models, even if it fits together.


def _read(path: Path, manifest: dict[str, Any], with_ranker: bool) -> Model:
    settings = manifest["settings"]
    report, recipe = path / REPORT, path / RECIPE
    try:
        return Model(
            Towers.load(path / "encoder"),
            read_labels(path, version_of(manifest)),
            read_vectors(path),
            report=Report.from_dict(json.loads(report.read_text(encoding="utf-8"))) if report.exists() else None,
            recipe=recipe.read_text(encoding="utf-8") if recipe.exists() else None,
            data=settings["data"],
            training=settings["training"],
            ranker=Ranker.load(path / RANKER) if with_ranker and RANKER in settings else None,
            calibration=read_calibration(path, manifest, with_ranker=with_ranker),
        )
    except DamagedModel:
        raise
    except (UmpteenError, OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DamagedModel(f"{path}: cannot be loaded although its files are whole: {error}") from error


def read_calibration(path: Path, manifest: dict[str, Any], *, with_ranker: bool) -> Calibration | None:
    """None if there is none, or if the scores it was fitted on are the ranker's, which is left out."""
    folder = path / CALIBRATION
    if not folder.is_dir() or (RANKER in manifest["settings"] and not with_ranker):
        return None
    read_part(folder, manifest["checksum"])
    return Calibration.load(folder)


def part_stamps(path: Path) -> dict[str, Stamp]:
    """Change whenever a part is made again or removed: one look at the disk for each."""
    return {name: file_stamp(path / name / PART) for name in PARTS}


def has_changed_labels(path: Path) -> bool:
    """Whether labels have changed since the folder was written."""
    manifest = read_manifest(path)
    return Journal(path, manifest["checksum"]).has(version_of(manifest) + 1)


def verify(path: Path | str, progress: Progress | None = None) -> list[str]:
    """Every byte of a model folder against its manifests, label versions included: one line for each problem."""
    path = Path(path)
    manifest = read_manifest(path)
    found = problems(path, manifest, arrays=True, progress=progress)
    for name in PARTS:
        if (path / name).is_dir():
            try:
                read_part(path / name, manifest["checksum"], arrays=True)
            except DamagedModel as damage:
                found.append(str(damage))
    try:
        for _ in Journal(path, manifest["checksum"]).read(version_of(manifest), None):
            pass
    except DamagedModel as damage:
        found.append(str(damage))
    return found


def copied_without_labels(path: Path, folder: Path) -> None:
    """All of a model folder but what depends on its labels, into another one."""
    labels = {file.name for file in path.glob("labels.*")}
    copied_without({*ADDED_LATER, MANIFEST, VECTORS, RANKER, *labels}, path, folder)


def copied_without(left_out: set[str], path: Path, folder: Path) -> None:
    """A model folder into another one, without these files and folders of its own and others' unfinished work."""

    def ignored(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(directory) == path and (name in left_out or is_unfinished(name))}

    shutil.copytree(path, folder, dirs_exist_ok=True, ignore=ignored)
