"""A bag of word pieces: a text's vector is the mean of its tokens' rows, each row with a learned weight."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, pad

from umpteen.config.settings import StaticTower
from umpteen.data.tokens import TokenTable
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder, Leaf, Place
from umpteen.encoders.folder import WORDS, TextTokenizer, buckets_of, locate
from umpteen.errors import BadConfig, BadInput, DamagedModel

_CHUNK = 50_000  # texts counted at once


def inverse_document_frequencies(tables: Iterable[TokenTable], vocabulary_size: int) -> Tensor:
    """log((1 + texts) / (1 + texts with the token)) + 1, divided by its largest value: float32 [vocabulary]."""
    texts = 0
    frequency = np.zeros(vocabulary_size, dtype=np.int64)
    for table in tables:
        texts += len(table)
        for start in range(0, len(table), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(table)))
            ids, offsets = (tensor.numpy() for tensor in table.batch(rows))
            owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
            pairs = np.sort(owner * vocabulary_size + ids)  # np.unique would hash them, thirty times slower
            once = pairs[np.diff(pairs, prepend=-1) > 0] % vocabulary_size
            frequency += np.bincount(once, minlength=vocabulary_size)
    weights = np.log((1 + texts) / (1 + frequency)) + 1
    return torch.from_numpy((weights / weights.max()).astype(np.float32))


def bigram_buckets(ids: Tensor, offsets: Tensor, buckets: int) -> tuple[Tensor, Tensor]:
    """The buckets of each text's adjacent pairs, ragged like its tokens; a pair never spans two texts."""
    starts = torch.zeros(len(ids) + 1, dtype=torch.bool, device=ids.device)
    starts[offsets] = True
    inside = ~starts[1:-1]  # [T-1]: token i+1 stands in the same text as token i
    left, right = (side[inside].cpu().numpy().astype(np.uint64) for side in (ids[:-1], ids[1:]))
    found = torch.from_numpy(buckets_of(left, right, buckets).astype(np.int64)).to(ids.device)
    return found, pad((offsets.diff() - 1).clamp_min(0).cumsum(0), (1, 0))


# V rows in the table, d their size, n texts, T tokens in all of them.
# torch's own dense gradient of embedding_bag adds up row by row; here the gradient is itself a bag: the bag of a table
# row are the texts it occurs in. On 2 cores, 4,000 texts × 15 tokens, V = 30,522, d = 384: 30 ms against 340 ms.
def weighted_mean(table: Tensor, weights: Tensor | None, ids: Tensor, offsets: Tensor) -> Tensor:
    """Text i gets Σ_t w_t·e_t ÷ (its number of tokens); a text without tokens gets zeros.

    The same as ``torch.stack([(weights[i, None] * table[i]).mean(0) for i in ids.tensor_split(offsets[1:-1])])``.
    """
    if offsets.numel() == 1:  # no texts at all, which embedding_bag refuses
        return table.new_zeros(0, table.shape[1])
    vectors: Tensor = _WeightedMean.apply(table, weights, ids, offsets)  # type: ignore[no-untyped-call]
    return vectors


class _WeightedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, weights: Tensor | None, ids: Tensor, offsets: Tensor) -> Tensor:
        lengths = offsets.diff()  # [n]
        shares = 1 / lengths.clamp_min(1).to(table.dtype)  # [n]
        of_tokens = None if weights is None else weights[ids]  # [T]
        sums = embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=of_tokens, include_last_offset=True)
        ctx.save_for_backward(table, weights, ids, lengths, shares)
        return sums.mul_(shares[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        table, weights, ids, lengths, shares = ctx.saved_tensors
        wants_table, wants_weights = ctx.needs_input_grad[:2]
        texts = torch.repeat_interleave(lengths)[ids.argsort(stable=True)]  # [T]: the texts of row 0, of row 1, …
        occurrences = pad(torch.bincount(ids, minlength=len(table)).cumsum(0), (1, 0))  # [V+1]
        # Row v's bag: the sum over its occurrences of the text's gradient ÷ the text's length.
        rows = embedding_bag(texts, gradient * shares[:, None], occurrences, mode="sum", include_last_offset=True)
        to_weights = torch.bmm(rows[:, None, :], table[:, :, None])[:, 0, 0] if wants_weights else None  # <row, e_v>
        if not wants_table:
            return None, to_weights, None, None
        return rows if weights is None else rows.mul_(weights[:, None]), to_weights, None, None


# How the families call the table that turns token ids into the first layer's input.
TOKEN_TABLE_NAMES = ("word_embeddings.weight", "embed_tokens.weight", "tok_embeddings.weight", "wte.weight")


class StaticEncoder(Encoder):
    """vector = mean_t(w_t · e_t), plus the mean over hashed bigrams if there are any, then dropout, then length 1."""

    token_budget = 262_144  # the backward pass of each micro-batch goes over the whole table

    def __init__(self, tokenizer: TextTokenizer, table: Tensor, *, bigrams: int = 0, **how: Any) -> None:
        super().__init__(**how)
        if table.ndim != 2 or not table.is_floating_point():
            raise BadInput(f"the token table is {table.dtype} {tuple(table.shape)}, not a row of numbers per token")
        if len(table) < tokenizer.vocabulary_size:
            both = f"{len(table):,} rows but the tokenizer {tokenizer.vocabulary_size:,} tokens"
            raise BadInput(f"the token table has {both}; take both from the same model")
        self.tokenizer, self.dimension = tokenizer, table.shape[1]
        # Rows beyond the vocabulary fill up a transformer's table; no text can reach them.
        self.table = nn.Parameter(table[: tokenizer.vocabulary_size].clone())  # [V, d]
        self.token_weights = nn.Parameter(table.new_ones(tokenizer.vocabulary_size))  # [V]
        # At zero, so that an encoder with bigrams starts as the one without.
        self.bigrams = nn.Parameter(table.new_zeros(bigrams, self.dimension)) if bigrams else None

    @classmethod
    def from_token_table(
        cls, source: str | Path, *, dimension: int | None = None, max_length: int = 128, **own: Any
    ) -> Self:
        """Starts from a transformer's token table; a smaller `dimension` keeps its main directions."""
        folder = locate(source)
        tokenizer = TextTokenizer.load(folder, max_length, special_tokens=False)
        table = _token_table(folder)
        return cls(tokenizer, table if dimension is None else _main_directions(table, dimension), **own)

    @classmethod
    def random(cls, source: str | Path, dimension: int, seed: int, *, max_length: int = 128, **own: Any) -> Self:
        """Starts from Gaussian rows of about unit length, with the tokenizer of `source`."""
        tokenizer = TextTokenizer.load(source, max_length, special_tokens=False)
        numbers = torch.Generator().manual_seed(seed)
        table = torch.randn(tokenizer.vocabulary_size, dimension, generator=numbers) / dimension**0.5
        return cls(tokenizer, table, **own)

    @classmethod
    def build(cls, settings: StaticTower, place: Place) -> "StaticEncoder":
        own = settings.model_dump(include={"normalise", "dropout", "max_length", "bigrams"})
        if settings.random_weights:
            return cls.random(settings.start, settings.dimension or 384, place.seed, **own)
        return cls.from_token_table(settings.start, dimension=settings.dimension, **own)

    def start(self, settings: StaticTower, leaves: list[Leaf]) -> None:
        """Each word piece at its inverse document frequency over training queries and labels."""
        if settings.idf:
            alike = [table for leaf, table in leaves if leaf.tokenizer.fingerprint == self.tokenizer.fingerprint]
            with torch.no_grad():
                self.token_weights.copy_(inverse_document_frequencies(alike, self.tokenizer.vocabulary_size))

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        vectors = weighted_mean(self.table, self.token_weights, ids, offsets)
        if self.bigrams is not None:
            vectors = vectors + weighted_mean(self.bigrams, None, *bigram_buckets(ids, offsets, len(self.bigrams)))
        return self.finished(vectors)

    def settle(self) -> None:
        with torch.no_grad():
            self.table.mul_(self.token_weights[:, None])
            self.token_weights.fill_(1)

    def save(self, folder: Path, beside: Encoder | None = None) -> None:
        tensors, buckets = {"embedding.weight": self.table * self.token_weights[:, None]}, 0
        if self.bigrams is not None:
            tensors["bigrams.weight"], buckets = self.bigrams, len(self.bigrams)
        layout.write_tensors(folder / WORDS / layout.WEIGHTS_FILE, tensors)
        self.tokenizer.save(folder / WORDS)
        modules = [("StaticEmbedding", WORDS), *([("Normalize", "1_Normalize")] if self.normalise else [])]
        about = {"kind": "static", "bigrams": buckets, "max_length": self.tokenizer.max_length}
        self.write_settings(folder, layout.OWN_MODULES if buckets else modules, **about)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any], beside: Encoder | None) -> "StaticEncoder":
        place = folder / WORDS
        tensors = layout.read_tensors(place / layout.WEIGHTS_FILE)
        table, bigrams = tensors["embedding.weight"], tensors["bigrams.weight"] if settings["bigrams"] else None
        if bigrams is not None and bigrams.shape != (settings["bigrams"], table.shape[1]):
            raise DamagedModel(f"{place}: {tuple(bigrams.shape)} bigram rows, expected {settings['bigrams']:,}")
        tokenizer = TextTokenizer.read(place, settings["max_length"], special_tokens=False)
        encoder = cls(tokenizer, table, **{name: settings[name] for name in ("bigrams", "normalise", "dropout")})
        if encoder.bigrams is not None and bigrams is not None:
            encoder.bigrams.data = bigrams
        return encoder

    def describe(self) -> str:
        bigrams = "" if self.bigrams is None else f", {len(self.bigrams):,} hashed bigrams"
        unit = "unit vectors" if self.normalise else "vectors"
        return f"static: {len(self.table):,} word pieces{bigrams}, {unit} of {self.dimension}"


def _token_table(folder: Path) -> Tensor:
    """The table alone, float32, without building the transformer around it."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadInput(f"{folder} has no .safetensors file to take the token table from")
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dictionary)
                if name.endswith(TOKEN_TABLE_NAMES):
                    table: Tensor = tensors.get_tensor(name).float()
                    return table
    raise BadInput(f"{folder} has no token table: no tensor named like {', '.join(TOKEN_TABLE_NAMES)}")


def _main_directions(table: Tensor, dimension: int) -> Tensor:
    """The table turned into its own principal axes, of which the strongest stay: scores change as little as can be."""
    if not 1 <= dimension <= table.shape[1]:
        raise BadConfig(f"dimension = {dimension}: the token table has {table.shape[1]}; give 1 to {table.shape[1]}")
    if dimension == table.shape[1]:
        return table
    exact = table.double()
    axes: Tensor = torch.linalg.eigh(exact.T @ exact).eigenvectors  # ascending by strength
    return (exact @ axes[:, -dimension:]).float()
