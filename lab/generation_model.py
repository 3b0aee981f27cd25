"""A causal language model, any Hugging Face folder or a small one made in the run: its loss, and how it writes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from umpteen.encoders.backbone import quiet
from umpteen.encoders.folder import DEFAULT_MODEL, TOKENIZER_FILE, locate
from umpteen.encoders.static import StaticEncoder
from umpteen.errors import BadInput
from umpteen.files.storage import atomic_folder

END, FILL, UNKNOWN = "<end>", "<fill>", "[UNK]"
SPREAD = 0.1  # standard deviation of the token vectors that a small model starts with
IGNORED = -100  # a position that carries no loss


@dataclass(frozen=True)
class Shape:
    """A small GPT-2."""

    vocabulary: int
    width: int
    layers: int
    heads: int


@dataclass(frozen=True)
class Room:
    """How much of a text the model sees and writes."""

    prompt: int  # tokens; the last ones stay
    target: int  # tokens; the first ones stay


class Example(NamedTuple):
    prompt: list[int]
    target: list[int]  # with the end token, unless it was cut


class Writer:
    """A causal language model with its tokenizer."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        try:
            with quiet():
                self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
                model: Any = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
                )
                self.model = model.to(device)
        except (OSError, ValueError, KeyError, RuntimeError) as problem:
            raise BadInput(f"--model {folder}: transformers cannot load a causal language model ({problem})") from None
        if self.tokenizer.eos_token_id is None:
            raise BadInput(f"--model {folder}: its tokenizer has no end-of-text token, so no text would ever end")
        self.end = int(self.tokenizer.eos_token_id)
        self.begin = [] if self.tokenizer.bos_token_id is None else [int(self.tokenizer.bos_token_id)]
        self.fill = self.end if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)
        self.device = device

    def examples(self, prompts: Sequence[str], targets: Sequence[str], room: Room) -> list[Example]:
        given = self._ids(prompts, room)
        wanted = self.tokenizer([f" {target}" for target in targets], add_special_tokens=False)["input_ids"]
        ends = ([*ids, self.end][: room.target] for ids in wanted)
        return [Example(prompt, target) for prompt, target in zip(given, ends, strict=True)]

    def _ids(self, prompts: Sequence[str], room: Room) -> list[list[int]]:
        ids = self.tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
        return [self.begin + prompt[len(self.begin) - room.prompt :] for prompt in ids]

    def loss(self, batch: Sequence[Example]) -> tuple[Tensor, int]:
        """The summed loss of a batch's target tokens, and how many they are."""
        longest = max(len(prompt) + len(target) for prompt, target in batch)
        ids = torch.full((len(batch), longest), self.fill)
        wanted = torch.full((len(batch), longest), IGNORED)
        for row, (prompt, target) in enumerate(batch):
            ids[row, : len(prompt) + len(target)] = torch.tensor(prompt + target)
            wanted[row, len(prompt) : len(prompt) + len(target)] = torch.tensor(target)
        mask = torch.arange(longest) < torch.tensor([[len(prompt) + len(target)] for prompt, target in batch])
        given = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
        # No target stands before the end of the shortest prompt, and scores over the vocabulary are dear.
        last = longest - max(0, min(len(prompt) for prompt, _ in batch) - 1)
        scores = self.model(**given, use_cache=False, logits_to_keep=last).logits[:, :-1]
        wanted = wanted[:, longest - last + 1 :].to(self.device)
        total = cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=IGNORED, reduction="sum")
        return total, int((wanted != IGNORED).sum())

    def generate(self, prompts: Sequence[str], room: Room, batch_size: int = 128) -> list[str]:
        """The likeliest next token, again and again, up to the end token; no three tokens in a row come twice."""
        given = self._ids(prompts, room)
        order = sorted(range(len(given)), key=lambda row: len(given[row]))
        texts = [""] * len(given)
        self.model.eval()
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            longest = max(len(given[row]) for row in rows)
            ids = torch.tensor([[self.fill] * (longest - len(given[row])) + given[row] for row in rows])
            mask = torch.tensor([[0] * (longest - len(given[row])) + [1] * len(given[row]) for row in rows])
            with torch.no_grad(), quiet():
                found = self.model.generate(
                    input_ids=ids.to(self.device),
                    attention_mask=mask.to(self.device),
                    max_new_tokens=room.target,
                    do_sample=False,
                    num_beams=1,
                    no_repeat_ngram_size=3,
                    pad_token_id=self.fill,
                    eos_token_id=self.end,
                )
            written = self.tokenizer.batch_decode(found[:, longest:], skip_special_tokens=True)
            for row, text in zip(rows, written, strict=True):
                texts[row] = " ".join(text.split())
        return texts

    def save(self, folder: Path) -> None:
        """The model's folder, whole or not at all."""
        with atomic_folder(folder) as partial, quiet():
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)


def start_small(folder: Path, texts: Sequence[str], shape: Shape, room: Room, seed: int) -> None:
    """Writes a GPT-2 with random layers, the word pieces of MiniLM that these texts use most, and their vectors.

    With a few thousand texts to learn from, a model that starts without any notion of words never gets to use its tags.
    """
    source = Tokenizer.from_file(str(locate(DEFAULT_MODEL, weights=False) / TOKENIZER_FILE))
    source.no_padding()
    source.no_truncation()
    counts = Counter(
        piece for found in source.encode_batch(list(texts), add_special_tokens=False) for piece in found.tokens
    )
    known = source.get_vocab()
    letters = sorted(piece for piece in known if len(piece.removeprefix("##")) == 1 and piece.isascii())
    frequent = sorted(counts.keys() - {UNKNOWN}, key=lambda piece: (-counts[piece], piece))[: shape.vocabulary]
    pieces = list(dict.fromkeys([FILL, END, UNKNOWN, *letters, *frequent]))
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model: Any = GPT2LMHeadModel(  # type: ignore[no-untyped-call]
            GPT2Config(
                vocab_size=len(pieces),
                n_positions=room.prompt + room.target,
                n_embd=shape.width,
                n_layer=shape.layers,
                n_head=shape.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=None,
                eos_token_id=pieces.index(END),
                pad_token_id=pieces.index(FILL),
            )
        )
    vectors = StaticEncoder.from_token_table(DEFAULT_MODEL, dimension=shape.width).table.detach()
    vectors = SPREAD * (vectors - vectors.mean(0)) / vectors.std()
    with torch.no_grad():
        for row, piece in enumerate(pieces):
            if piece in known:
                model.transformer.wte.weight[row] = vectors[known[piece]]
    with atomic_folder(folder) as partial, quiet():
        model.save_pretrained(partial)
        _tokenizer(pieces).save_pretrained(partial)


def _tokenizer(pieces: Sequence[str]) -> Any:
    """MiniLM's way of cutting words, with fewer pieces."""
    tokenizer = Tokenizer(models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=FILL, eos_token=END, unk_token=UNKNOWN
    )
