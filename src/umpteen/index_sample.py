"""The queries an index is tuned and certified on: from a file, from a dataset, or the labels' own texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from umpteen.batch_input import BadRow, InputRows
from umpteen.catalogue.live import LiveLabels
from umpteen.data.dataset import Dataset
from umpteen.errors import BadFile

USUAL = 1000  # queries


class Sample(NamedTuple):
    """Texts, and where they come from."""

    texts: list[str]
    origin: str


def of_label_texts(labels: LiveLabels, count: int = USUAL, seed: int = 0) -> Sample:
    """Texts of some labels: all there is where nothing is known of the queries to come."""
    rows = _some(np.flatnonzero(labels.active), count, seed)
    return Sample([labels.texts[int(row)] for row in rows], "the labels' own texts, encoded as queries")


def of_file(path: Path, count: int = USUAL, seed: int = 0) -> Sample:
    """Some texts of a file: one a line, or the field `text` of JSON lines or a table."""
    texts = []
    for row in InputRows(path):
        if isinstance(row, BadRow):
            raise BadFile(path, f"{row.problem}: {row.content!r}", line=row.line)
        texts.append(row.text)
    if len(texts) < 2:
        raise BadFile(path, f"holds {len(texts)} texts; an index is tuned on some and certified on others")
    return Sample([texts[row] for row in _some(np.arange(len(texts)), count, seed)], f"texts of {path.name}")


def of_dataset(dataset: Dataset, count: int = USUAL, seed: int = 0) -> Sample:
    """Some training texts of a dataset."""
    texts: Sequence[str] = dataset.train.texts
    rows = _some(np.arange(len(texts)), count, seed)
    return Sample([texts[int(row)] for row in rows], f"training texts of {dataset.name}")


def _some(rows: "np.ndarray[tuple[int], np.dtype[np.int64]]", count: int, seed: int) -> list[int]:
    chosen = np.random.default_rng(seed).choice(rows, min(count, len(rows)), replace=False)
    return [int(row) for row in np.sort(chosen)]
