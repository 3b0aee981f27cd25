"""A causal language model, any Hugging Face folder or a small one made in the run: its loss, and how it writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from umpteen.encoders.backbone import quiet
from umpteen.errors import BadInput
from umpteen.storage import atomic_folder

END, FILL = "<end>", "<fill>"
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
                self.tokenizer = AutoTokenizer.from_pretrained(folder)
                model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
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
        scores = self.model(**given, use_cache=False).logits[:, :-1]
        wanted = wanted[:, 1:].to(self.device)
        total = cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=IGNORED, reduction="sum")
        return total, int((wanted != IGNORED).sum())

    def generate(self, prompts: Sequence[str], room: Room, batch_size: int = 128) -> list[str]:
        """The likeliest next token, again and again, up to the end token or the budget."""
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
    """Writes a GPT-2 with random weights and a byte-level vocabulary learnt from these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    vocabulary = Tokenizer(models.BPE())
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary.decoder = decoders.ByteLevel()
    vocabulary.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=shape.vocabulary,
            special_tokens=[FILL, END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=vocabulary, pad_token=FILL, eos_token=END
    )
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=room.prompt + room.target,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    with atomic_folder(folder) as partial, quiet():
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
