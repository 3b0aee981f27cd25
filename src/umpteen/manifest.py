"""The manifest of a model folder: its format version, and the size and SHA-256 of every file that matters.

README.md is for people to edit and is not listed; files nobody listed are fine.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from umpteen.errors import BadFile, DamagedModel
from umpteen.storage import sha256_of
from umpteen.version import __version__

FORMAT_VERSION = 1
MANIFEST = "umpteen.json"
_FOR_PEOPLE = "README.md"
_ARRAYS = {".safetensors", ".npy", ".npz"}


def write_manifest(folder: Path, settings: dict[str, Any]) -> None:
    """Lists what stands in the folder; written last, it vouches for everything before it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, _FOR_PEOPLE))
    content = {
        "format_version": FORMAT_VERSION,
        "umpteen_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings,
        "files": {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in files
        },
    }
    content["checksum"] = _checksum(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, if it is whole and of the format version this umpteen reads."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise BadFile(folder, "there is no such model folder; `umpteen train` makes one")
    if not path.is_file():
        raise DamagedModel(f"{folder}: {MANIFEST} is missing; this is no umpteen model, or it was not copied whole")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedModel(f"{path}: is damaged ({error!r}); copy the model again, or train it again") from error
    if found != FORMAT_VERSION:
        raise DamagedModel(
            f"{path}: format version {found!r} found, {FORMAT_VERSION} expected; "
            f"it was written by umpteen {content.get('umpteen_version', '(unknown)')}, this is {__version__}: "
            "use that version, or save the model again with this one"
        )
    if content.get("checksum") != _checksum(content):
        raise DamagedModel(f"{path}: was altered, its checksum does not match; copy the model again, or train it again")
    return content


def problems(
    folder: Path, manifest: dict[str, Any], *, arrays: bool, progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """What is not as the manifest says, one line for each file; `arrays` are hashed too, or judged by size and header.

    Progress counts bytes.
    """
    found = []
    total = sum(expected["bytes"] for expected in manifest["files"].values())
    done = 0
    for name, expected in manifest["files"].items():
        problem = _problem(folder / name, expected, hashed=arrays or Path(name).suffix not in _ARRAYS)
        if problem is not None:
            found.append(f"{folder / name}: {problem}; copy the model again, or train it again")
        done += expected["bytes"]
        if progress is not None:
            progress(done, total)
    return found


def _problem(path: Path, expected: dict[str, Any], *, hashed: bool) -> str | None:
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != expected["bytes"]:
        return f"has {size:,} bytes instead of {expected['bytes']:,}"
    if hashed:
        return None if sha256_of(path) == expected["sha256"] else "was altered, its SHA-256 does not match"
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                return None
        except SafetensorError as error:
            return f"has a damaged header ({error})"
    return None


def _checksum(content: dict[str, Any]) -> str:
    """Of everything but the checksum itself, however the JSON is laid out."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
