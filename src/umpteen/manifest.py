"""The manifest of a model folder: its format version, and the size and SHA-256 of every file that matters.

README.md is for people to edit and is not listed; files nobody listed are fine. What is added after training stands in
folders of its own, the parts, each with a small manifest that says which model it belongs to.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from umpteen.errors import BadFile, DamagedModel
from umpteen.stamps import VERIFIED, Verified, file_stamp
from umpteen.storage import is_unfinished, sha256_of
from umpteen.version import __version__

FORMAT_VERSION = 2
_READABLE = (1, FORMAT_VERSION)  # version 1 has no labels.offsets.npy and labels.keys.npy
MANIFEST = "umpteen.json"
PART = "part.json"
PART_FORMAT_VERSION = 1
CATALOGUE, CALIBRATION, INDEX = "catalogue", "calibration", "index"
ADDED_LATER = (CATALOGUE, CALIBRATION, INDEX)  # folders that come and go while the trained files stay as they are
_FOR_PEOPLE = "README.md"
_ALWAYS_HASHED = 8 * 2**20  # bytes; larger files are hashed once after a change, else judged by size and header


def write_manifest(folder: Path, settings: dict[str, Any]) -> str:
    """Lists what stands in the folder, and returns its checksum; written last, it vouches for all before it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, _FOR_PEOPLE))
    content = {
        "format_version": FORMAT_VERSION,
        "umpteen_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings,
        "files": _listed(folder, [path for path in files if _is_of_the_base(path.relative_to(folder))]),
    }
    return _write_sealed(folder / MANIFEST, content)


def _is_of_the_base(path: Path) -> bool:
    """Neither a part nor the unfinished work of somebody else."""
    return path.parts[0] not in ADDED_LATER and not is_unfinished(path.parts[0])


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
    if found not in _READABLE:
        raise DamagedModel(
            f"{path}: format version {found!r} found, {FORMAT_VERSION} expected; "
            f"it was written by umpteen {content.get('umpteen_version', '(unknown)')}, this is {__version__}: "
            "use that version, or save the model again with this one"
        )
    if content.get("checksum") != checksum_of(content):
        raise DamagedModel(f"{path}: was altered, its checksum does not match; copy the model again, or train it again")
    return content


def write_part(
    folder: Path, base_checksum: str, settings: dict[str, Any], catalogue_version: int, *, living: str | None = None
) -> None:
    """The small manifest of a part of the model with this checksum; written last, inside storage.atomic_folder.

    `catalogue_version` is the version of the labels that the part was made with. The subfolder `living` changes in use
    (a database), so nothing in it is listed.
    """
    unlisted = (folder / PART, folder / VERIFIED)
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path not in unlisted and (living is None or not path.is_relative_to(folder / living))
    )
    content = {
        "format_version": PART_FORMAT_VERSION,
        "belongs_to": base_checksum,
        "catalogue_version": catalogue_version,
        "settings": settings,
        "files": _listed(folder, files),
    }
    _write_sealed(folder / PART, content)


def read_part(folder: Path, base_checksum: str, *, arrays: bool = False) -> dict[str, Any]:
    """A part's manifest, if its files are whole and it belongs to the model with this checksum.

    Large files are hashed once after a change, unless `arrays` asks for every byte now.
    """
    content = _read_part(folder)
    if content["belongs_to"] != base_checksum:
        raise DamagedModel(
            f"{folder / PART}: belongs to another model than the one beside it; make this part again, or remove the "
            f"folder {folder}"
        )
    damage = problems(folder, content, arrays=arrays, advice="make this part again, or remove its folder")
    if damage:
        raise DamagedModel(damage[0])
    return content


def tie_part(folder: Path, base_checksum: str) -> None:
    """The part belongs to the model with this checksum from now on; its files stay as they are."""
    _write_sealed(folder / PART, {**_read_part(folder), "belongs_to": base_checksum})


def _read_part(folder: Path) -> dict[str, Any]:
    path = folder / PART
    advice = f"make this part again, or remove the folder {folder}"
    if not path.is_file():
        raise DamagedModel(f"{folder}: {PART} is missing; {advice}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found, whole = content["format_version"], content.get("checksum") == checksum_of(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedModel(f"{path}: is damaged ({error!r}); {advice}") from error
    if found != PART_FORMAT_VERSION:
        raise DamagedModel(f"{path}: format version {found!r} found, {PART_FORMAT_VERSION} expected; {advice}")
    if not whole:
        raise DamagedModel(f"{path}: was altered, its checksum does not match; {advice}")
    return content


def problems(
    folder: Path,
    manifest: dict[str, Any],
    *,
    arrays: bool,
    progress: Callable[[int, int], None] | None = None,
    advice: str = "copy the model again, or train it again",
) -> list[str]:
    """What is not as the manifest says, one line for each file.

    Small files are hashed, large ones if they have changed since they last were or if `arrays` says so; else these are
    judged by size and header, as they are where nobody could remember that they were hashed. Progress counts bytes.
    """
    found = []
    verified = Verified(folder)
    total = sum(expected["bytes"] for expected in manifest["files"].values())
    done = 0
    for name, expected in manifest["files"].items():
        problem = _problem(folder, name, expected, verified, every_byte=arrays)
        if problem is not None:
            found.append(f"{folder / name}: {problem}; {advice}")
        done += expected["bytes"]
        if progress is not None:
            progress(done, total)
    verified.keep()
    return found


def _problem(folder: Path, name: str, expected: dict[str, Any], verified: Verified, *, every_byte: bool) -> str | None:
    path, is_large = folder / name, expected["bytes"] > _ALWAYS_HASHED
    if not path.is_file():
        return "is missing"
    stamp = file_stamp(path)  # before it is read: what is written to it meanwhile gives it another
    if stamp.size != expected["bytes"]:
        return f"has {stamp.size:,} bytes instead of {expected['bytes']:,}"
    if is_large:
        problem = _header_problem(path)
        if problem is not None:
            return problem
        if not every_byte and (verified.knows(name, expected["sha256"]) or not verified.can_be_kept):
            return None
    if sha256_of(path) != expected["sha256"]:
        return "was altered, its SHA-256 does not match"
    if is_large:
        verified.add(name, stamp, expected["sha256"])
    return None


def _header_problem(path: Path) -> str | None:
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                return None
        except SafetensorError as error:
            return f"has a damaged header ({error})"
    return None


def _listed(folder: Path, files: list[Path]) -> dict[str, dict[str, Any]]:
    """The files' sizes and hashes; the first load need not hash again what was hashed here."""
    listed, verified = {}, Verified(folder)
    for path in files:
        name, stamp = path.relative_to(folder).as_posix(), file_stamp(path)
        sha256 = sha256_of(path)
        listed[name] = {"bytes": stamp.size, "sha256": sha256}
        if stamp.size > _ALWAYS_HASHED:
            verified.add(name, stamp, sha256)
    verified.keep()
    return listed


def _write_sealed(path: Path, content: dict[str, Any]) -> str:
    sealed = {**content, "checksum": checksum_of(content)}
    path.write_text(json.dumps(sealed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(sealed["checksum"])


def checksum_of(content: dict[str, Any]) -> str:
    """Of everything but the checksum itself, however the JSON is laid out."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
