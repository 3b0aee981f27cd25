"""A dataset as Hugging Face's `datasets` saves it: state.json, dataset_info.json and Arrow files, a folder a split."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from umpteen.data.formats.native import read_queries
from umpteen.data.formats.reading import Heard, Placed, rows_of_arrow
from umpteen.data.prepared import Builder
from umpteen.data.texts import class_called, class_names
from umpteen.errors import BadFile

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
CALLED = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def is_split(folder: Path) -> bool:
    """Whether it holds rows itself."""
    return (folder / STATE).is_file()


def recognises(folder: Path) -> bool:
    return is_split(folder) or (folder / SPLITS).is_file()


def sources(folder: Path) -> list[Path]:
    splits = _splits(folder).values()
    about = [folder / SPLITS, *(split / name for split in splits for name in (STATE, INFO))]
    return [path for path in about if path.is_file()] + [file for split in splits for file in _files(split)]


def read(folder: Path, into: Builder) -> None:
    read_queries(_splits(folder), into, records=_rows)


def _splits(folder: Path) -> dict[str, Path]:
    if is_split(folder):
        return {"train": folder}
    there = _content(folder / SPLITS).get("splits", [])
    found = {split: folder / name for split, names in CALLED.items() for name in names[::-1] if name in there}
    if "train" not in found:
        raise BadFile(folder / SPLITS, f"has no split called train; it has {', '.join(map(repr, there)) or 'none'}")
    return found


def _content(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadFile(path, f"cannot be read ({error}); save the dataset again") from None
    return found if isinstance(found, dict) else {}


def _files(split: Path) -> list[Path]:
    state = _content(split / STATE)
    if state.get("_indices_data_files"):
        raise BadFile(split / STATE, "is of a selection of rows; save it with flatten_indices() first")
    given, found = state.get("_data_files", []), []
    for one in given if isinstance(given, list) else [given]:
        name = one.get("filename") if isinstance(one, dict) else one
        if not isinstance(name, str) or Path(name).name != name or not (split / name).is_file():
            raise BadFile(split / STATE, f"names {name!r}, which is no file beside it; save the dataset again")
        found.append(split / name)
    return found


def _rows(split: Path, advance: Heard) -> Iterator[Placed]:
    """The rows of a split; numbers of classes that have names become their names."""
    names = {column: class_names(feature) for column, feature in _content(split / INFO).get("features", {}).items()}
    for path in _files(split):
        for at, row in rows_of_arrow(path, advance):
            yield at, row | {column: class_called(row.get(column), own) for column, own in names.items() if own}
