"""A static query tower read with numpy: it has encoded a text long before torch would be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.encoders import folder as layout
from umpteen.encoders.folder import TextTokenizer, buckets_of, map_arrays

Floats = NDArray[np.float32]
SMALLEST_NORM = 1e-12  # as sentence-transformers' Normalize: shorter vectors have no direction


class LightEncoder(NamedTuple):
    """As `StaticEncoder`: mean of the tokens' rows, plus the mean over hashed bigrams if any, then length 1."""

    tokenizer: TextTokenizer
    table: Floats  # [V, d], mapped: what comes into memory are the rows of a text's tokens
    bigrams: Floats  # [buckets, d], likewise; 0 buckets: none
    normalise: bool
    ends_in_one: bool  # beside labels whose vectors end in a bias

    @classmethod
    def read(cls, folder: Path) -> LightEncoder | None:
        """The query tower in a folder of towers; None if it is not static, or if something is wrong: they tell what."""
        try:
            layout.refuse_ways_out(folder)
            settings, has_bias = layout.read_settings(folder), False
            if settings["kind"] == "towers":
                label, folder = folder / layout.LABEL_FOLDER, folder / layout.QUERY_FOLDER
                if layout.read_settings(label)["kind"] == "table":
                    has_bias = "bias" in map_arrays(label / layout.WEIGHTS_FILE)
                settings = layout.read_settings(folder)
            if settings["kind"] != "static":
                return None
            place, buckets = folder / layout.WORDS, settings["bigrams"]
            arrays = map_arrays(place / layout.WEIGHTS_FILE)
            table = arrays["embedding.weight"]
            bigrams = arrays["bigrams.weight"] if buckets else table[:0]
            tokenizer = TextTokenizer.read(place, settings["max_length"], special_tokens=False)
            fits = len(table) >= tokenizer.vocabulary_size and bigrams.shape == (buckets, table.shape[1])
            are_floats = table.dtype == bigrams.dtype == np.float32
            return cls(tokenizer, table, bigrams, settings["normalise"], has_bias) if fits and are_floats else None
        except Exception:
            return None

    @property
    def dimension(self) -> int:
        return int(self.table.shape[1]) + self.ends_in_one

    def encode(self, texts: Sequence[str]) -> Floats:
        """The vectors of texts."""  # [n, d]
        vectors = np.zeros((len(texts), self.table.shape[1]), dtype=np.float32)
        for vector, tokens in zip(vectors, self.tokenizer(texts), strict=True):
            ids = np.array(tokens, dtype=np.uint64)
            vector += _mean(self.table, ids)
            if len(self.bigrams):
                vector += _mean(self.bigrams, buckets_of(ids[:-1], ids[1:], len(self.bigrams)))
        if self.normalise:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(norms <= SMALLEST_NORM, np.inf, norms)
        return np.pad(vectors, ((0, 0), (0, 1)), constant_values=1) if self.ends_in_one else vectors


def _mean(table: Floats, rows: NDArray[np.uint64]) -> Floats:
    return np.asarray(table[rows].sum(0) / np.float32(max(1, len(rows))))
