"""What every encoder is: token ids in, one vector a text out; and how many texts become vectors."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.encoders import folder as layout
from umpteen.encoders.light import SMALLEST_NORM as SMALLEST_NORM
from umpteen.encoders.rows import RowTable
from umpteen.errors import BadConfig, BadInput, DamagedModel, known
from umpteen.files.progress import Advance, silent
from umpteen.parallel.world import Shard, spread

LEVELS = 1 << 16  # a rate is rounded to one in 65,536, and the scale follows the rounded rate


# Four times as fast as torch's on a CPU, which draws 64 random bits for every number; here 64 bits decide about four.
def drop(vectors: Tensor, rate: float, training: bool) -> Tensor:
    """In training each number is 0 with probability `rate`, else ÷ (1 − rate); the mask follows torch's generator."""
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    if not training or dropped == 0:
        return vectors
    count = vectors.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64, device=vectors.device).random_(-(2**63), None)
    kept = bits.view(torch.int16)[:count].view(vectors.shape) >= dropped - LEVELS // 2
    return vectors * kept.to(vectors.dtype).mul_(LEVELS / (LEVELS - dropped))


NEW = -1  # in place of the row of a label that the tower was not trained with
Read = Callable[["Encoder"], TokenTable]  # the texts at hand, as an encoder that reads texts takes them
Change = Callable[[Any], Any]  # of a transformer


class Place(NamedTuple):
    """What an encoder is built into."""

    seed: int
    labels: Shard  # the rows of this process
    beside: "Encoder | None" = None  # the query tower, where this one stands beside it


class Share(NamedTuple):
    """Numbers of a vector that have a score of their own, and how much of the whole score that is."""

    columns: slice
    of_score: float


class Encoder(nn.Module):
    """Texts as ragged token ids → vectors. `train()` turns dropout on, `double()` makes it float64."""

    dimension: int
    tokenizer: layout.TextTokenizer
    reader: Any = None  # of one that does not train its transformer

    def __init__(self, *, normalise: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:  # a saved folder may say anything
            raise ValueError(f"dropout = {dropout}: it must be at least 0 and below 1")
        self.normalise, self.dropout = normalise, dropout
        self.ends_in_one = False  # a query tower's vectors, beside labels whose vectors end in a bias

    @classmethod
    @abstractmethod
    def build(cls, settings: Any, place: Place) -> "Encoder":
        """The encoder of these settings; what starts at random follows from the place's seed."""

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, settings: dict[str, Any], beside: "Encoder | None") -> "Encoder":
        """The encoder that `save` wrote, with the tower that stands beside it."""

    def start(self, settings: Any, leaves: "list[Leaf]") -> None:
        """Before the first step: takes what it can from the training texts and labels, as each leaf reads them."""

    def finished(self, vectors: Tensor) -> Tensor:
        """The last steps of most encoders: dropout, then length 1; and beside labels with a bias one more number, 1."""
        vectors = drop(vectors, self.dropout, self.training)
        vectors = normalised(vectors) if self.normalise else vectors
        return pad(vectors, (0, 1), value=1.0) if self.ends_in_one else vectors

    @property
    def rows(self) -> RowTable | None:
        """The learned vector that each label has, where labels are more than their texts."""
        return next((table for table in self.modules() if isinstance(table, RowTable)), None)

    def rearrange(self, rows: Tensor, labels: Shard, seed: int) -> None:
        """Label j has the vector of what was row rows[j] from now on; where that is NEW, it starts anew."""

    def takes(self, read: Read, rows: NDArray[np.int64]) -> TokenTable:
        """What the encoder takes for the texts at hand, of labels of these rows (NEW: it was not trained with it)."""
        return read(self)

    def tokenise(self, texts: Texts, progress: Advance = silent) -> TokenTable:
        """Texts of a dataset, whose tokens are made once and kept in the cache."""
        return tokenise(texts, self.tokenizer, progress)

    def leaves(self, tokens: TokenTable) -> "list[Leaf]":
        """The encoders that read the texts behind what `takes` gave, each with its own tokens of them."""
        return [(self, tokens)]

    @property
    def shares(self) -> list[Share]:
        """The scores that add up to the score of its vectors; most encoders have one."""
        return [Share(slice(0, self.dimension), 1.0)]

    def rates(self, settings: Any, usual: float) -> list[tuple[nn.Module, float]]:
        """The learning rate of each part of the encoder, as its settings have it."""
        return [(self, settings.learning_rate or usual)]

    @property
    def readers(self) -> list[Any]:
        """The transformers that it, or a part of it, reads with and does not train, each a `FrozenReader`."""
        parts = (part for part in self.modules() if isinstance(part, Encoder))
        return list(dict.fromkeys(part.reader for part in parts if part.reader is not None))

    def with_transformers(self, change: Change) -> "Encoder":
        """Reads with what `change` makes of each transformer; all else is shared, and this one stays as it is."""
        return self

    def settle(self) -> None:
        """Brings the weights into the form in which they are saved: then a saved copy agrees to the bit."""

    @property
    def pads(self) -> bool:
        """Whether texts encoded together each take as long as the longest of them."""
        return False

    @property
    @abstractmethod
    def token_budget(self) -> int:
        """Padded tokens a micro-batch should hold on the encoder's device: more take memory, not less time."""

    @abstractmethod
    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """ids int64 [T], offsets int64 [n+1] (text i is ids[offsets[i]:offsets[i+1]]) → vectors [n, dimension]."""

    @abstractmethod
    def save(self, folder: Path, beside: "Encoder | None" = None) -> None:
        """Writes a folder that sentence-transformers loads, without readers that the tower `beside` has written; whole
        or not at all inside `storage.atomic_folder` only."""

    def write_settings(self, folder: Path, modules: Sequence[tuple[str, str]], **own: Any) -> None:
        """What `read` needs besides weights, and the modules by which sentence-transformers loads it, if it does."""
        layout.write_settings(folder, {**own, "normalise": self.normalise, "dropout": self.dropout})
        if modules:
            layout.write_modules(folder, modules)

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """The vectors of a few texts, without a graph; many texts go through `encode_texts` instead."""
        device = next(self.parameters()).device
        with torch.no_grad():
            return self(*(tensor.to(device) for tensor in self.read_now(texts)))

    def read_now(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """What it takes for a few texts: ids int64 [T], offsets int64 [n+1]."""
        return tokens_now(self, texts).batch(np.arange(len(texts)))

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        vectors: Tensor = super().__call__(*args, **kwargs)
        return vectors


Leaf = tuple[Encoder, TokenTable]

# Each kind of tower, or of part of a tower, by the class of its encoder, which is loaded when it is asked for.
KINDS = {
    "static": "umpteen.encoders.static.StaticEncoder",
    "frozen": "umpteen.encoders.frozen.FrozenEncoder",
    "transformer": "umpteen.encoders.transformer.TransformerEncoder",
    "table": "umpteen.encoders.table.LabelTable",
    "sum": "umpteen.encoders.parts.PartsEncoder",
    "concat": "umpteen.encoders.parts.PartsEncoder",
}


def class_of(kind: str) -> type[Encoder]:
    """The class of encoders of this kind, or an error that lists those there are."""
    found: type[Encoder] = resolve_name(known(KINDS, kind, f"no encoder of kind {kind!r} is known"))
    return found


def read_encoder(folder: Path, beside: Encoder | None = None) -> Encoder:
    """The encoder in a folder, beside another tower or alone; whatever is wrong with it is told as damage."""
    settings = layout.read_settings(folder)
    try:
        if settings["kind"] not in KINDS:
            raise DamagedModel(f"{folder / layout.SETTINGS_FILE}: no encoder of kind {settings['kind']!r} is known")
        return class_of(settings["kind"]).read(folder, settings, beside)
    except KeyError as missing:
        raise DamagedModel(f"{folder}: {missing} is missing; copy or save the model again") from missing
    except BadConfig:  # the folder is whole, but this machine cannot do what it asks for
        raise
    except BadInput as problem:
        raise DamagedModel(f"{problem}; copy or save the model again") from problem
    except (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as problem:
        raise DamagedModel(f"{folder}: cannot be read ({problem}); copy or save the model again") from problem


def normalised(vectors: Tensor) -> Tensor:
    """Each row at length 1. A row without direction becomes 0 and gets the gradient 0, never NaN or 1e12."""
    result: Tensor = _Normalised.apply(vectors)  # type: ignore[no-untyped-call]
    return result


class _Normalised(torch.autograd.Function):
    """The gradient loses its part along the vector: three passes over the vectors, where autograd's own takes ten."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        norms = norms.masked_fill_(norms <= SMALLEST_NORM, torch.inf)
        result = vectors / norms
        ctx.save_for_backward(result, norms)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, result)[:, None]
        return torch.addcmul(gradient, result, along, value=-1).div_(norms)


_SMALLEST_BUDGET = 256  # padded tokens; fewer do not fill a core
_TEXTS_AT_A_TIME = 16_384  # token ids of more texts than this never stand in memory together


def micro_batches(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """Positions by falling length, so that little is padded, and longest × count is within the budget, or one text."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    parts = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        count = max(1, token_budget // longest)
        parts.append(order[start : start + count])
        start += count
    return parts


def encode_tokens(
    encoder: Encoder, table: TokenTable, token_budget: int | None = None, progress: Advance = silent
) -> Tensor:
    """The vectors of all rows of a token table, in its order, without a graph and with dropout off."""
    parameter = next(encoder.parameters())
    budget = token_budget or encoder.token_budget
    if not token_budget and encoder.pads:  # three micro-batches of a few texts: padding all to the longest costs more
        budget = min(budget, max(_SMALLEST_BUDGET, int(table.lengths.sum()) // 3))
    parts = micro_batches(table.lengths, budget)
    vectors = torch.empty(len(table), encoder.dimension, dtype=parameter.dtype, device=parameter.device)
    unread, telling, done = iter(parts), Lock(), 0

    def encode(_: int) -> None:
        nonlocal done
        try:
            for rows in unread:  # one iterator for all threads: each part goes to whoever is free
                ids, offsets = table.batch(rows)
                found = encoder(ids.to(parameter.device), offsets.to(parameter.device))
                vectors[torch.from_numpy(rows).to(parameter.device)] = found
                with telling:
                    done += len(rows)
                    progress(done, len(table))
        except BaseException:
            list(unread)  # the other threads stop, too
            raise

    trains = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            # Where texts are padded, operations are too short to be divided: threads take micro-batches in turns.
            spread(encode, max(1, min(len(parts), torch.get_num_threads())) if encoder.pads else 1)
    finally:
        encoder.train(trains)
    return vectors


def tokens_for(
    tower: Encoder, texts: Texts, rows: NDArray[np.int64] | None = None, progress: Advance = silent
) -> TokenTable:
    """What a tower takes for texts of a dataset, which are read once, into the cache; of labels, by their rows, too."""
    return tower.takes(lambda leaf: leaf.tokenise(texts, progress), np.full(len(texts), NEW) if rows is None else rows)


def tokens_now(tower: Encoder, texts: Sequence[str], rows: NDArray[np.int64] | None = None) -> TokenTable:
    """What a tower takes for a few texts, read at once."""

    def read(leaf: Encoder) -> TokenTable:
        return TokenTable.of(leaf.tokenizer(texts), leaf.tokenizer.vocabulary_size)

    return tower.takes(read, np.full(len(texts), NEW) if rows is None else rows)


def encode_texts(
    encoder: Encoder, texts: Sequence[str], *, progress: Advance = silent, rows: NDArray[np.int64] | None = None
) -> Tensor:
    """The vectors of texts, in their order; `rows`: which labels they are, of those the encoder was trained with."""
    parts = []
    for start in range(0, max(1, len(texts)), _TEXTS_AT_A_TIME):
        some = [texts[row] for row in range(start, min(start + _TEXTS_AT_A_TIME, len(texts)))]
        table = tokens_now(encoder, some, None if rows is None else rows[start : start + len(some)])
        parts.append(encode_tokens(encoder, table))
        progress(start + len(some), len(texts))
    return torch.cat(parts)
