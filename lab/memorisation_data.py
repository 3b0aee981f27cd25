"""Random text pairs: query i and label i are words drawn independently, so that nothing but memory joins them.

Rows are drawn and written block by block: a million pairs need no more memory than a thousand.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from umpteen.encoders.folder import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from umpteen.files.storage import atomic_folder

BLOCK = 8192  # texts drawn at once
SPECIAL_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def random_texts(words: Sequence[str], count: int, length: int, seed: Sequence[int]) -> Iterator[str]:
    """Texts of so many words each, every word drawn on its own.

    Two equal texts among n are as likely as n² / (2 · words^length): never, with 16 words out of a thousand or more.
    """
    random = np.random.default_rng(list(seed))
    vocabulary = np.array(words)
    for start in range(0, count, BLOCK):
        drawn = vocabulary[random.integers(len(words), size=(min(BLOCK, count - start), length))]
        yield from map(" ".join, drawn.tolist())


def write_pairs(folder: Path, words: Sequence[str], pairs: int, length: int, seed: int) -> None:
    """A dataset in umpteen's own format: `pairs` labels, and as many training queries with one of them each."""
    with atomic_folder(folder) as partial:
        (partial / "dataset.toml").write_text(f'name = "random-pairs-{pairs}-{seed}"\n', encoding="utf-8")
        for stem, side in (("labels", 0), ("train", 1)):
            with (partial / f"{stem}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                for row, text in enumerate(random_texts(words, pairs, length, (seed, side))):
                    record: dict[str, Any] = {"key": str(row)} if stem == "labels" else {"labels": [str(row)]}
                    file.write(json.dumps({"text": text, **record}) + "\n")


def made_up_words(count: int) -> list[str]:
    return [f"w{number}" for number in range(count)]


def write_start(folder: Path, words: Sequence[str], *, width: int, layers: int, heads: int, length: int) -> None:
    """A model folder to start from at random: a vocabulary of whole words, and the shape of a small BERT."""
    pieces = [*SPECIAL_TOKENS.values(), *words]
    tokenizer = Tokenizer(models.WordLevel({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(pieces),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": length + 2,
        # The usual spread of 0.02 would give all texts nearly the same vector.
        "initializer_range": 0.1,
    }
    with atomic_folder(folder) as partial:
        tokenizer.save(str(partial / TOKENIZER_FILE))
        roles = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS}
        (partial / TOKENIZER_CONFIG_FILE).write_text(json.dumps(roles), encoding="utf-8")
        (partial / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
