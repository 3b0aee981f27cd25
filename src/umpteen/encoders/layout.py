"""An encoder's folder: sentence-transformers' layout, and one small file of ours beside it.

modules.json lists the modules by class; umpteen_encoder.json holds what sentence-transformers has no place for
(dropout, precision) and says how to build the encoder again. Weights stand in one place only.
"""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from umpteen.errors import DamagedModel

SETTINGS_FILE = "umpteen_encoder.json"
MODULES_FILE = "modules.json"
ROUTER_FILE = "router_config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT = 1
# These paths resolve in every release since 2.0; newer ones know them as aliases.
SENTENCE_TRANSFORMERS = "sentence_transformers.models."


def write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    """modules.json for (class path, subfolder) pairs, and the model-wide configuration."""
    listing = [
        {"idx": position, "name": str(position), "path": path, "type": kind}
        for position, (kind, path) in enumerate(modules)
    ]
    write_json(folder / MODULES_FILE, listing)
    model_wide = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "dot",
    }
    write_json(folder / "config_sentence_transformers.json", model_wide)


def write_router(folder: Path, query: str, label: str) -> None:
    """The parent of two saved towers offers encode_query and encode_document over the towers' own files."""
    routes = {"query": _modules_of(folder, query), "document": _modules_of(folder, label)}
    router = {
        "types": {path: kind for route in routes.values() for path, kind in route},
        "structure": {name: [path for path, _ in route] for name, route in routes.items()},
        "parameters": {"default_route": "query", "allow_empty_key": True},
    }
    write_modules(folder, [(SENTENCE_TRANSFORMERS + "Router", "")])
    write_json(folder / ROUTER_FILE, router)


def write_reference(folder: Path, tower: str) -> None:
    """The parent of a saved tower is a model of its modules."""
    write_modules(folder, [(kind, path) for path, kind in _modules_of(folder, tower)])


def _modules_of(folder: Path, tower: str) -> list[tuple[str, str]]:
    listing = json.loads((folder / tower / MODULES_FILE).read_text(encoding="utf-8"))
    return [(f"{tower}/{module['path']}".rstrip("/"), module["type"]) for module in listing]


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Our own file, with the version of this layout."""
    write_json(folder / SETTINGS_FILE, {"format": FORMAT, **settings})


def read_settings(folder: Path) -> dict[str, Any]:
    """Our own file back, if it is of this version."""
    file = folder / SETTINGS_FILE
    if not file.is_file():
        raise DamagedModel(f"{folder}: {SETTINGS_FILE} is missing; is this an encoder folder saved by umpteen?")
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        version = settings["format"]
    except (ValueError, KeyError, TypeError) as problem:
        raise DamagedModel(f"{file}: is damaged ({problem}); save the model again") from problem
    if version != FORMAT:
        raise DamagedModel(f"{file}: format {version}, but this umpteen reads format {FORMAT}; save the model again")
    return settings


def refuse_ways_out(folder: Path) -> None:
    """Whatever is read in a folder lies in it: links may not lead elsewhere."""
    home = os.path.realpath(folder)
    for path in folder.rglob("*"):
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(home):
            raise DamagedModel(f"{path}: is a link to {target}, outside the model; put the file itself there")


def write_json(file: Path, content: Any) -> None:
    """Readable JSON, in a folder that may not be there yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """One safetensors file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors makes files that only their owner can read


def read_tensors(file: Path) -> dict[str, Tensor]:
    """One safetensors file back."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as problem:
        raise DamagedModel(f"{file}: cannot be read ({problem}); copy or save the model again") from problem
