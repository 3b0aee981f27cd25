"""Large datasets, made at run time from packages of Debian and npm: not all of it may be copied into the project."""

from importlib import import_module
from pathlib import Path
from typing import Any

from umpteen.data.prepared import cache_folder
from umpteen.errors import BadInput, known
from umpteen.files.progress import Notice
from umpteen.files.storage import can_hold

DATASETS = {
    "reverse-dictionary": "lab.data.reverse_dictionary",
    "npm-dependents": "lab.data.npm_dependents",
}


def make(name: str, output: Path | None, labels: int | None, notice: Notice) -> tuple[Path, dict[str, Any]]:
    """The dataset's folder, in the place of one made before, and its record: sources, licences, counts, fingerprint."""
    from lab.data.made import RECORD, write
    from lab.data.packages import package

    module = import_module(known(DATASETS, name, f"there is no dataset {name} to make", BadInput))
    folder = output or cache_folder() / "made" / (name if labels is None else f"{name}-{labels}")
    if not can_hold(folder, RECORD):
        raise BadInput(f"{folder} holds something else than a dataset made here; give another folder")
    packages = [package(registry, needed, notice) for registry, needed, _ in module.NEEDS]
    licences = [one.licence_of(stated) for one, (_, _, stated) in zip(packages, module.NEEDS, strict=True)]
    for one, licence in zip(packages, licences, strict=True):
        notice(f"{one.name} {one.version} ({one.registry.name}): {licence}")
    return folder, write(module.build(packages, labels), folder.name, packages, licences, folder)
