"""A bag of word pieces: a text's vector is the mean of its tokens' rows, each row with a learned weight.

It trains in minutes on two cores. Started from a transformer's token table it knows words from the first step.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from umpteen.encoders import layout
from umpteen.encoders.bag import weighted_mean
from umpteen.encoders.bigrams import bigram_buckets
from umpteen.encoders.dropout import checked_dropout, drop
from umpteen.encoders.encoder import Encoder, normalised
from umpteen.encoders.pretrained import locate
from umpteen.encoders.tokenizer import TextTokenizer
from umpteen.errors import BadConfig, BadInput, DamagedModel

# How the families call the table that turns token ids into the first layer's input.
TOKEN_TABLE_NAMES = ("word_embeddings.weight", "embed_tokens.weight", "tok_embeddings.weight", "wte.weight")
BIGRAMS_MODULE = "umpteen.encoders.bigrams_module.StaticBigrams"


class StaticEncoder(Encoder):
    """vector = mean_t(w_t · e_t), plus the mean over hashed bigrams if there are any, then dropout, then length 1.

    The bigram table starts at zero, so that an encoder with bigrams starts as the one without.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        table: Tensor,
        *,
        bigrams: int = 0,
        normalise: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if table.ndim != 2 or not table.is_floating_point():
            raise BadInput(
                f"the token table is {table.dtype} {tuple(table.shape)}, not a row of numbers for each token"
            )
        if len(table) < tokenizer.vocabulary_size:
            raise BadInput(
                f"the token table has {len(table):,} rows but the tokenizer {tokenizer.vocabulary_size:,} tokens; "
                "take both from the same model"
            )
        if bigrams < 0:
            raise BadConfig(f"bigrams = {bigrams}: it is a number of hash buckets, 0 for none")
        self.tokenizer = tokenizer
        self.dimension = table.shape[1]
        self.normalise = normalise
        self.dropout = checked_dropout(dropout)
        # Rows beyond the vocabulary fill up a transformer's table; no text can reach them.
        self.table = nn.Parameter(table[: tokenizer.vocabulary_size].clone())  # [V, d]
        self.token_weights = nn.Parameter(table.new_ones(tokenizer.vocabulary_size))  # [V]
        self.bigrams = nn.Parameter(table.new_zeros(bigrams, self.dimension)) if bigrams else None

    @classmethod
    def from_token_table(
        cls,
        source: str | Path,
        *,
        dimension: int | None = None,
        bigrams: int = 0,
        normalise: bool = True,
        dropout: float = 0.0,
        max_length: int = 128,
    ) -> "StaticEncoder":
        """Starts from a transformer's token table; a smaller `dimension` keeps its main directions."""
        folder = locate(source)
        tokenizer = TextTokenizer.load(folder, max_length, special_tokens=False)
        table = _token_table(folder)
        if dimension is not None:
            table = _main_directions(table, dimension)
        return cls(tokenizer, table, bigrams=bigrams, normalise=normalise, dropout=dropout)

    @classmethod
    def random(
        cls,
        source: str | Path,
        dimension: int,
        seed: int,
        *,
        bigrams: int = 0,
        normalise: bool = True,
        dropout: float = 0.0,
        max_length: int = 128,
    ) -> "StaticEncoder":
        """Starts from Gaussian rows of about unit length, with the tokenizer of `source`."""
        if dimension < 1:
            raise BadConfig(f"dimension = {dimension}: a vector needs at least one number")
        tokenizer = TextTokenizer.load(source, max_length, special_tokens=False)
        numbers = torch.Generator().manual_seed(seed)
        table = torch.randn(tokenizer.vocabulary_size, dimension, generator=numbers) / dimension**0.5
        return cls(tokenizer, table, bigrams=bigrams, normalise=normalise, dropout=dropout)

    @property
    def token_budget(self) -> int:
        return 262_144  # the backward pass of each micro-batch goes over the whole table

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        vectors = weighted_mean(self.table, self.token_weights, ids, offsets)
        if self.bigrams is not None:
            vectors = vectors + weighted_mean(self.bigrams, None, *bigram_buckets(ids, offsets, len(self.bigrams)))
        vectors = drop(vectors, self.dropout, self.training)
        return normalised(vectors) if self.normalise else vectors

    def set_token_weights(self, weights: Tensor) -> None:
        """Starts the tokens' weights at given values, such as idf [V]."""
        if weights.shape != self.token_weights.shape:
            raise BadInput(f"{tuple(weights.shape)} token weights given for {len(self.token_weights):,} tokens")
        if not torch.isfinite(weights).all():
            raise BadInput("a token weight is NaN or infinite")
        with torch.no_grad():
            self.token_weights.copy_(weights)

    def fold_token_weights(self) -> None:
        """Moves the weights into the table, as saving does: a folded encoder and its saved copy agree to the bit."""
        with torch.no_grad():
            self.table.mul_(self.token_weights[:, None])
            self.token_weights.fill_(1)

    def save(self, folder: Path) -> None:
        tensors = {"embedding.weight": self.table * self.token_weights[:, None]}
        if self.bigrams is None:
            kind, place = layout.SENTENCE_TRANSFORMERS + "StaticEmbedding", "0_StaticEmbedding"
        else:
            kind, place = BIGRAMS_MODULE, "0_StaticBigrams"
            tensors["bigrams.weight"] = self.bigrams
        layout.write_tensors(folder / place / layout.WEIGHTS_FILE, tensors)
        self.tokenizer.save(folder / place)
        modules = [(kind, place)]
        if self.normalise:
            modules.append((layout.SENTENCE_TRANSFORMERS + "Normalize", "1_Normalize"))
        layout.write_modules(folder, modules)
        settings: dict[str, Any] = {
            "kind": "static",
            "bigrams": 0 if self.bigrams is None else len(self.bigrams),
            "normalise": self.normalise,
            "dropout": self.dropout,
            "max_length": self.tokenizer.max_length,
        }
        layout.write_settings(folder, settings)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "StaticEncoder":
        """The encoder that `save` wrote."""
        place = folder / ("0_StaticBigrams" if settings["bigrams"] else "0_StaticEmbedding")
        tensors = layout.read_tensors(place / layout.WEIGHTS_FILE)
        table, bigrams = tensors["embedding.weight"], tensors["bigrams.weight"] if settings["bigrams"] else None
        if bigrams is not None and bigrams.shape != (settings["bigrams"], table.shape[1]):
            raise DamagedModel(f"{place}: {tuple(bigrams.shape)} bigram rows, expected {settings['bigrams']:,}")
        encoder = cls(
            TextTokenizer.read(place, settings["max_length"], special_tokens=False),
            table,
            bigrams=settings["bigrams"],
            normalise=settings["normalise"],
            dropout=settings["dropout"],
        )
        if encoder.bigrams is not None and bigrams is not None:
            encoder.bigrams.data = bigrams
        return encoder.eval()

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
