"""A transformer that is not trained: each text is encoded once, and what learns is a map on top of its vector.

Vectors of a dataset's texts lie in the cache, mapped; the one token of a text is then −1 − its row there. Other texts
come as tokens, and are encoded on the way.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from umpteen.config.settings import FrozenTower
from umpteen.data.prepared import cache_folder, cached
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Change, Encoder, Place, encode_tokens
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput
from umpteen.files.progress import Advance, silent
from umpteen.files.storage import write_atomically

CACHE_VERSION = 2
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")  # of a configuration
CHUNK = 65_536  # tokens between two records, or one text: what a kill costs at most
VECTORS_FILE, RECORD_FILE, READER = "vectors.npy", "record.json", "reader"


class FrozenReader:
    """A transformer whose weights stay, for whoever reads with it, and the vectors it has made of datasets."""

    def __init__(self, encoder: TransformerEncoder, made_by: tuple[str, dict[str, Any]] | None = None) -> None:
        self.encoder = encoder.requires_grad_(False).eval()
        self.made_by = made_by  # which model, and how: another tower that wants the same reads with this one
        self._kept: dict[str, NDArray[np.float32]] = {}  # mapped, by the name of their folder
        self._starts: list[int] = [0]  # the first row of each, then where the next will begin

    @cached_property
    def fingerprint(self) -> str:
        """Of everything a vector follows from; the name of the model says nothing."""
        encoder = self.encoder
        shape = {name: value for name, value in encoder.model.config.to_dict().items() if name not in _VOLATILE}
        how = [encoder.tokenizer.fingerprint, encoder.pooling, encoder.normalise, encoder.precision, shape]
        how += [] if encoder.runtime is None else [encoder.runtime.fingerprint]
        digest = hashlib.sha256(json.dumps(how, sort_keys=True, default=str).encode())
        for name, tensor in sorted(encoder.state_dict().items()):
            if "pooler" not in name:
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(np.ascontiguousarray(tensor.float().cpu().numpy()).data)
        return digest.hexdigest()

    def tokenise(self, texts: Texts, progress: Advance = silent) -> TokenTable:
        """One token a text, which says where its vector is; texts without one are encoded now, into the cache."""
        whole = texts.whole()
        identity = {"version": CACHE_VERSION, "texts": whole.fingerprint(), "reader": self.fingerprint}
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        if name not in self._kept:
            self._kept[name] = self._vectors(cache_folder(None) / "vectors" / name, whole, progress)
            self._starts.append(self._starts[-1] + len(whole))
        rows = self._starts[list(self._kept).index(name)] + texts.rows
        return TokenTable.of_lengths((-1 - rows).astype(np.int32), np.ones(len(rows), dtype=np.int64))

    def at(self, rows: NDArray[np.int64]) -> Tensor:
        """The vectors of these rows, read from where they are mapped."""
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < self._starts[-1]):
            raise BadInput("these texts were read by another transformer; read them again")
        found = np.empty((len(rows), self.encoder.dimension), dtype=np.float32)
        for start, kept in zip(self._starts, self._kept.values(), strict=False):
            here = (rows >= start) & (rows < start + len(kept))
            if here.all():
                return torch.from_numpy(kept[rows - start])
            found[here] = kept[rows[here] - start]
        return torch.from_numpy(found)

    def _vectors(self, folder: Path, texts: Texts, progress: Advance) -> NDArray[np.float32]:
        def found() -> NDArray[np.float32] | None:
            with suppress(OSError, ValueError, EOFError):  # damaged ones are made anew
                vectors: NDArray[np.float32] = np.load(folder / VECTORS_FILE, mmap_mode="r")
                return vectors if vectors.shape == (len(texts), self.encoder.dimension) else None
            return None

        return cached(folder, found, lambda: self._write(folder, texts, progress))

    def _write(self, folder: Path, texts: Texts, progress: Advance) -> None:
        """Goes on from where the record of a partial file stands, then puts the folder in place."""
        partial, shape = folder.with_suffix(".partial"), (len(texts), self.encoder.dimension)
        done, file = 0, partial / VECTORS_FILE
        with suppress(OSError, ValueError, EOFError, KeyError, TypeError):
            if np.load(file, mmap_mode="r").shape == shape:
                done = int(json.loads((partial / RECORD_FILE).read_bytes())["done"])
        if not 0 < done <= len(texts):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            done = 0
            np.lib.format.open_memmap(file, "w+", np.float32, shape)
            with file.open("r+b") as whole:  # a full disk is an error now, not a SIGBUS later
                os.posix_fallocate(whole.fileno(), 0, file.stat().st_size)
        vectors = np.lib.format.open_memmap(file, "r+")
        tokens = tokenise(texts, self.encoder.tokenizer)
        ends = np.cumsum(tokens.lengths)
        progress(done, len(texts))
        while done < len(texts):
            read = ends[done - 1] if done else 0
            rows = np.arange(done, max(done + 1, int(np.searchsorted(ends, read + CHUNK, side="right"))))
            vectors[rows] = encode_tokens(self.encoder, tokens.take(rows)).float().cpu().numpy()
            vectors.flush()
            done = int(rows[-1]) + 1
            write_atomically(partial / RECORD_FILE, json.dumps({"done": done}))
            progress(done, len(texts))
        shutil.rmtree(folder, ignore_errors=True)  # one whose vectors are gone
        partial.replace(folder)

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenReader":
        return self


class FrozenEncoder(Encoder):
    """vector = W h, plus V·relu(U h) if there is a hidden layer, then dropout, then length 1; h has length 1.

    W starts at the identity (of fewer dimensions: at the first rows of it) and V at zero, so it starts as the reader.
    """

    reader: FrozenReader

    def __init__(self, reader: FrozenReader, *, dimension: int | None = None, hidden: int = 0, **how: Any) -> None:
        super().__init__(**how)
        size = reader.encoder.dimension
        self.reader = reader  # no module of this one: it is neither trained nor kept in checkpoints
        self.tokenizer = reader.encoder.tokenizer
        self.dimension = dimension or size
        self.map = nn.Linear(size, self.dimension, bias=False)
        nn.init.eye_(self.map.weight)
        self.hidden: nn.Sequential | None = None
        if hidden:
            last = nn.Linear(hidden, self.dimension, bias=False)
            nn.init.zeros_(last.weight)
            self.hidden = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), last)

    @classmethod
    def build(cls, settings: FrozenTower, place: Place) -> "FrozenEncoder":
        how = settings.model_dump(include={"pooling", "layers", "max_length"})
        own = settings.model_dump(include={"dimension", "hidden", "normalise", "dropout"})
        for reader in [] if place.beside is None else place.beside.readers:
            if reader.made_by == (settings.start, how):
                return cls(reader, **own)
        return cls(FrozenReader(TransformerEncoder.load(settings.start, **how), (settings.start, how)), **own)

    def _apply(self, fn: Any, recurse: bool = True) -> "FrozenEncoder":
        self.reader.encoder._apply(fn, recurse)  # type: ignore[no-untyped-call]  # it goes along to a device
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def tokenise(self, texts: Texts, progress: Advance = silent) -> TokenTable:
        return self.reader.tokenise(texts, progress)

    @property
    def pads(self) -> bool:
        return self.reader.encoder.pads

    @property
    def token_budget(self) -> int:
        return self.reader.encoder.token_budget

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        if len(ids) and int(ids[0]) < 0:
            read = self.reader.at((-1 - ids).cpu().numpy()).to(self.map.weight)
        else:
            with torch.no_grad():
                read = self.reader.encoder(ids, offsets).to(self.map.weight)
        vectors = self.map(read)
        if self.hidden is not None:
            vectors = vectors + self.hidden(read)
        return self.finished(vectors)

    def with_transformers(self, change: Change) -> Encoder:
        twin = copy(self)
        twin.reader = FrozenReader(change(self.reader.encoder))
        return twin

    def save(self, folder: Path, beside: Encoder | None = None) -> None:
        has_reader = beside is None or self.reader not in beside.readers
        if has_reader:
            self.reader.encoder.save(folder / READER)
        layout.write_tensors(folder / layout.WEIGHTS_FILE, dict(self.named_parameters()))
        has = {"has_reader": has_reader, "hidden": self.hidden is not None}
        self.write_settings(folder, layout.OWN_MODULES, kind="frozen", **has)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any], beside: Encoder | None = None) -> "FrozenEncoder":
        if settings["has_reader"]:
            place = folder / READER
            reader = FrozenReader(TransformerEncoder.read(place, layout.read_settings(place)))
        else:
            if beside is None or len(beside.readers) != 1:
                raise BadInput(f"{folder}: reads with the transformer of another tower, which is not there")
            (reader,) = beside.readers
        tensors = layout.read_tensors(folder / layout.WEIGHTS_FILE)
        known = {name: settings[name] for name in ("normalise", "dropout")}
        hidden = len(tensors["hidden.0.bias"]) if settings["hidden"] else 0
        encoder = cls(reader, dimension=len(tensors["map.weight"]), hidden=hidden, **known)
        encoder.load_state_dict(tensors)
        return encoder

    def describe(self) -> str:
        hidden = "" if self.hidden is None else f" and {self.hidden[0].out_features} hidden units"
        return f"frozen: {self.reader.encoder.describe()}, a learned map to {self.dimension}{hidden}"
