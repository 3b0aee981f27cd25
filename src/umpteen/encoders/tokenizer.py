"""Texts become lists of token ids, cut at a length of our choosing and never padded."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from umpteen.encoders.folder import locate
from umpteen.errors import BadConfig, BadFile, BadInput

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKEN_ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "bos_token", "eos_token")


class TextTokenizer:
    """An immutable tokenizer: the same texts always give the same ids, and `fingerprint` names which."""

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, special_tokens: bool, roles: dict[str, str] | None = None
    ) -> None:
        if max_length < 1:
            raise BadConfig(f"max_length = {max_length}: a text needs room for at least one token")
        added = tokenizer.num_special_tokens_to_add(is_pair=False) if special_tokens else 0
        if max_length <= added:
            raise BadConfig(f"max_length = {max_length}: the {added} special tokens alone fill it; give more")
        # A tokenizer.json may bring a length and padding of its own (MiniLM's pads everything to 128).
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
        self._tokenizer = tokenizer
        self.max_length = max_length
        self.special_tokens = special_tokens
        self.roles = dict(roles or {})  # which token plays "pad_token", "cls_token", …
        # What it adds around a text need not be in its vocabulary.
        ids = {
            *tokenizer.get_vocab(with_added_tokens=True).values(),
            *tokenizer.encode("", add_special_tokens=special_tokens).ids,
        }
        self.vocabulary_size = max(ids, default=-1) + 1
        self.fingerprint = hashlib.sha256(f"{special_tokens}\n{tokenizer.to_str()}".encode()).hexdigest()

    @classmethod
    def load(cls, source: Path | str, max_length: int, special_tokens: bool) -> "TextTokenizer":
        """The tokenizer of a model folder, of a hub name, or of a tokenizer.json."""
        file = Path(source)
        folder = file.parent if file.is_file() else locate(source, weights=False)
        file = file if file.is_file() else folder / TOKENIZER_FILE
        if not file.is_file():
            return cls._convert(folder, max_length, special_tokens)
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as problem:  # the Rust library raises a bare Exception
            raise BadFile(file, f"is not a tokenizer the tokenizers library can read ({problem})") from problem
        return cls(tokenizer, max_length, special_tokens, _roles(folder))

    @classmethod
    def read(cls, folder: Path, max_length: int, special_tokens: bool) -> "TextTokenizer":
        """The tokenizer that `save` wrote, and no other that could be made or found."""
        file = folder / TOKENIZER_FILE
        if not file.is_file():
            raise BadFile(file, "is missing")
        return cls.load(file, max_length, special_tokens)

    @classmethod
    def _convert(cls, folder: Path, max_length: int, special_tokens: bool) -> "TextTokenizer":
        """Models from before tokenizer.json bring a vocabulary that transformers knows how to convert."""
        from transformers import AutoTokenizer

        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            tokenizer = found.backend_tokenizer
        except (OSError, ValueError, ImportError, AttributeError) as problem:
            raise BadInput(
                f"{folder} has no {TOKENIZER_FILE}, and transformers cannot make one ({problem}); "
                "save the model with a fast tokenizer first"
            ) from problem
        roles = {role: str(token) for role, token in found.special_tokens_map.items() if role in SPECIAL_TOKEN_ROLES}
        return cls(tokenizer, max_length, special_tokens, roles)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=self.special_tokens)
        return [encoding.ids for encoding in encodings]

    def uncut_lengths(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text would have if none were cut."""
        whole = Tokenizer.from_str(self._tokenizer.to_str())
        whole.no_truncation()
        found = whole.encode_batch_fast(list(texts), add_special_tokens=self.special_tokens)
        return [len(encoding.ids) for encoding in found]

    def batch(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """What an encoder takes: ids int64 [T] of all texts in a row, and offsets int64 [n+1]."""
        lists = self(texts)
        lengths = torch.tensor([0, *map(len, lists)])
        return torch.tensor([token for tokens in lists for token in tokens], dtype=torch.int64), lengths.cumsum(0)

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
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TOKENIZER_FILE).write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")
        pad = self._tokenizer.id_to_token(self.pad_id)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.max_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "pad_token": pad,
            **self.roles,
        }
        (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")

    def __deepcopy__(self, memo: dict[int, object]) -> "TextTokenizer":
        return self


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
