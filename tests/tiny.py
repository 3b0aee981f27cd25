"""Models small enough for tests: random weights, a vocabulary of letters and a few words, no downloads."""

import json
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from unittest import mock

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "of", "and", "in", "law", "fish", "tax", "trade", "food", "library", "book", "network", "dog", "tree"]
LETTERS = [*string.ascii_lowercase, *string.digits, *"-.,;:()äöüßéñжиклмнорст図書館中文字"]
HIDDEN_SIZE = 32
POSITIONS = 64


def tiny_tokenizer(folder: Path) -> str:
    """Writes a WordPiece tokenizer that, like MiniLM's, bakes in truncation and padding; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    tokenizer = Tokenizer(models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def tiny_transformer(
    folder: Path,
    kind: Literal["bert", "distilbert", "mpnet"] = "bert",
    hidden_size: int = HIDDEN_SIZE,
    positions: int = POSITIONS,
) -> str:
    """Writes a random transformer of two layers with the tiny tokenizer; returns the folder."""
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, MPNetConfig, MPNetModel

    tiny_tokenizer(folder)
    vocabulary_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    # The usual spread of 0.02 would give all texts nearly the same vector.
    shared = {"vocab_size": vocabulary_size, "max_position_embeddings": positions, "initializer_range": 0.3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind != "distilbert":
            sizes = {"hidden_size": hidden_size, "intermediate_size": 64}
            sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4}
            model = (
                BertModel(BertConfig(**shared, **sizes))
                if kind == "bert"
                else MPNetModel(MPNetConfig(**shared, **sizes))
            )
        else:
            sizes = {"dim": hidden_size, "hidden_dim": 64}
            model = DistilBertModel(DistilBertConfig(**shared, **sizes, n_layers=2, n_heads=4))
    model.save_pretrained(folder)
    return str(folder)


@contextmanager
def tiny_default_model(folder: Path) -> Iterator[None]:
    """Recipes start from a tiny one instead of MiniLM: for tests of what is done with it, not of what it knows."""
    from umpteen.encoders import folder as files

    start = Path(tiny_transformer(folder))
    with (
        mock.patch.object(files, "_package_folder", lambda: start),
        mock.patch.dict(files.DEFAULT_MODEL_SHA256, clear=True),
    ):
        yield
