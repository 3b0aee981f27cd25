"""Titles drawn from a model's own vocabulary: a dataset of any number of labels, in umpteen's native format."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from umpteen.encoders.folder import TOKENIZER_FILE, locate
from umpteen.errors import BadInput
from umpteen.files.progress import Progress

SHORTEST, LONGEST = 5, 15  # word pieces in a title
REPEATED = 100  # one label in so many has the title of an earlier one, as in real catalogues
POSITIVES = 5  # of a query, the first of which it shares words with
AT_ONCE = 10_000  # titles drawn together


def write_titles(
    folder: Path, *, labels: int, train: int, validation: int, model: str, seed: int, progress: Progress
) -> None:
    """labels.jsonl, train.jsonl and validation.jsonl, each query with words of one of its labels."""
    if labels < POSITIVES:
        raise BadInput(f"{labels} labels are too few: each query has {POSITIVES}")
    folder.mkdir(parents=True)
    draw = Titles(model, seed)
    titles: list[str] = []
    with (folder / "labels.jsonl").open("w", encoding="utf-8") as file:
        for row, title in enumerate(draw.titles(labels)):
            titles.append(titles[row // 2] if row % REPEATED == REPEATED - 1 else title)
            _write(file, {"key": f"L{row}", "text": titles[row]})
            if (row + 1) % AT_ONCE == 0:
                progress(f"writing {labels:,} labels", row + 1, labels)
    for name, count in (("train", train), ("validation", validation)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for title in draw.titles(count):
                positives = draw.rng.choice(labels, POSITIVES, replace=False).tolist()
                half = len(title) // 2  # characters; the other half comes from a label
                text = f"{titles[positives[0]][:half]} {title[half:]}"
                _write(file, {"text": text, "labels": [f"L{row}" for row in positives]})


class Titles:
    """Word pieces of a vocabulary, the r-th of them about as frequent as 1/r, as in natural text."""

    def __init__(self, model: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        ids = Tokenizer.from_file(str(locate(model, weights=False) / TOKENIZER_FILE)).get_vocab()
        # Vocabularies list common pieces first; single letters and what is no letter would be split or dropped.
        pieces = [piece for piece in sorted(ids, key=ids.__getitem__) if _is_word(piece.removeprefix("##"))]
        self._pieces: NDArray[np.object_] = np.array(pieces, dtype=object)
        self._shares = np.cumsum(1 / np.arange(1, len(pieces) + 1))

    def titles(self, count: int) -> Iterator[str]:
        for start in range(0, count, AT_ONCE):
            lengths = self.rng.integers(SHORTEST, LONGEST + 1, size=min(AT_ONCE, count - start))
            at = np.searchsorted(self._shares, self.rng.random(int(lengths.sum())) * self._shares[-1])
            for title in np.split(self._pieces[at], np.cumsum(lengths)[:-1]):
                # "##ing" goes on with the word before it; at the beginning it is a word of its own.
                yield " ".join(title).removeprefix("##").replace(" ##", "")


def _is_word(piece: str) -> bool:
    return len(piece) > 1 and piece.isascii() and piece.isalpha()


def _write(file: TextIO, record: dict[str, object]) -> None:
    file.write(json.dumps(record) + "\n")
