"""The ranker of a classifier: what n-grams and training texts say of a text's first labels, and its folder.

ranker.json (settings, weights) · vocabulary.json · weights.safetensors (features × labels, row by row) ·
memory.safetensors, its index and texts.*. What a ranker does without is not there.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from scipy.sparse import csr_array

from umpteen.encoders.folder import map_arrays
from umpteen.errors import BadInput, DamagedModel, UmpteenError
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.memory import Memory
from umpteen.search.ranking import NO_LABEL, Ranking, Vectors, values_at

_NEIGHBOURS = 5  # on either side
NGRAMS, MEMORY = "n-grams", "training texts"  # who has a say
_TOLD = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")  # on the card
LATER = -1  # in place of the number of training texts of a label that was added or renamed since
_TEXTS_AT_A_TIME = 1024
_UNREADABLE = UmpteenError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, SafetensorError
_KINDS = {  # of the stored arrays
    "idf": "float32",
    "starts": "int64",
    "columns": "int32",
    "values": "float32",
    "intercepts": "float32",
    "texts": "int64",
}
Floats = NDArray[np.float32]
Real = TypeVar("Real", np.float32, np.float64)


# One score from three: (1 − weight) · the dual encoder's + weight · second, where second is (1 − votes) · what the
# n-grams say + votes · what the memory says, both between 0 and 1.
# N texts, k labels each, in the dual encoder's order.
def squash(margins: NDArray[Real]) -> NDArray[Real]:
    """exp(−max(0, 1 − margin)²): 1 from the margin on that training asks of positives, 0.02 at that of negatives."""
    return np.asarray(np.exp(-np.square(np.maximum(0, 1 - margins))))


def head_start(texts: NDArray[np.integer], rare: float) -> Floats:
    """rare · n^−½ for labels with n training texts: few texts teach few of the words that tell a label, so its margins
    are too small beside those of frequent ones."""
    return np.asarray((rare / np.sqrt(np.maximum(1, texts))).astype(np.float32))


def fill_unknown(scores: Floats, known: NDArray[np.bool_]) -> Floats:
    """A label the ranker knows nothing of gets the mean of its neighbours in dense order: neither for nor against."""
    if known.all():
        return scores
    totals, counts = _sums_around(np.where(known, scores, 0)), _sums_around(known)
    return np.where(known, scores, totals / np.maximum(1, counts)).astype(np.float32)


def keep_place(scores: Floats, later: NDArray[np.bool_], there: NDArray[np.bool_]) -> Floats:
    """A label that came after the ranker keeps the place the dual encoder gave it among the others.

    With p of the others before it, it gets the largest but p of their scores: the first of all stays the first, and no
    label falls further than twice its place.
    """
    if not later.any():
        return scores
    others = ~later & there
    falling = -np.sort(np.where(others, -scores, np.inf), axis=1)
    before = np.cumsum(others, axis=1)
    place = np.minimum(before, np.maximum(0, before[:, -1:] - 1))
    kept = np.take_along_axis(falling, place, 1)
    return np.where(later, np.where(np.isfinite(kept), kept, 0), scores).astype(np.float32)


def _sums_around(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Of each place and its neighbours on either side, as far as there are any."""  # [N, k]
    sums = np.pad(np.cumsum(values, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    place = np.arange(values.shape[1])
    first, last = np.maximum(0, place - _NEIGHBOURS), np.minimum(len(place), place + _NEIGHBOURS + 1)
    return np.asarray(sums[:, last] - sums[:, first])


def fuse(dense: Ranking, second: Floats, weight: float) -> Ranking:
    """The dense ranking's labels in the order of both scores; `second` holds the ranker's of its first labels.

    Labels further down count as if the ranker gave them 0, so they follow in dense order.
    """
    scores = np.float32(1 - weight) * np.where(dense.rows == NO_LABEL, 0, dense.scores)
    scores[:, : second.shape[1]] += np.float32(weight) * second
    scores = np.where(dense.rows == NO_LABEL, np.float32(-np.inf), scores).astype(np.float32)
    return Ranking(dense.rows, scores, dense.labels).in_order(np.argsort(-scores, axis=1, kind="stable"))


@dataclass(frozen=True)
class Ranker:
    """Sparse linear weights for every label, the votes of training texts, and how much they count."""

    features: TextFeatures
    weights: csr_array  # [features, labels], float32: what is asked of it are the few rows of a text's features
    intercepts: Floats  # [labels]
    texts: NDArray[np.int64]  # [labels], training texts that have the label; nothing is known of those with none
    settings: RankerSettings
    memory: Memory | None = None
    weight: float = 0.0  # 0: the dual encoder alone, 1: n-grams and memory alone
    votes: float = 0.0  # of this, the memory's share
    rare: float = 0.0  # the head start of a label with one training text
    origin: dict[str, Any] = field(default_factory=dict)  # how these were chosen
    report: dict[str, Any] | None = None  # of the model with this ranker, on validation

    def __post_init__(self) -> None:
        for name in ("weight", "votes"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"the ranker's {name} is {getattr(self, name)}; it must lie between 0 and 1")

    def margins(self, texts: Sequence[str], rows: NDArray[np.int32]) -> Floats:
        """w·x + b for the labels rows[i] of each text i."""
        margins = self.intercepts[rows]
        is_asked = self.settings.sparse and self.votes < 1
        for first in range(0, len(rows) if is_asked else 0, _TEXTS_AT_A_TIME):
            some = slice(first, min(first + _TEXTS_AT_A_TIME, len(rows)))
            found = self.features.transform([texts[row] for row in range(some.start, some.stop)])
            margins[some] += values_at(csr_array(found @ self.weights), rows[some])
        return margins

    def scores(self, margins: Floats, votes: Floats | None, rows: NDArray[np.int32]) -> Floats:
        """From 0 to 1, for the margins and the votes of labels in dense order."""
        texts, found = self.texts[rows], reduce(add, self.terms(margins, votes, rows).values())
        return keep_place(fill_unknown(found, texts > 0), texts == LATER, rows != NO_LABEL)

    def terms(self, margins: Floats, votes: Floats | None, rows: NDArray[np.int32]) -> dict[str, Floats]:
        """What adds up to the score of a label that it knows; each has a line of its own in an explanation."""
        said = squash(margins + head_start(self.texts[rows], self.rare)) if self.votes < 1 else np.zeros_like(margins)
        if votes is None:
            return {NGRAMS: said}
        return {NGRAMS: np.float32(1 - self.votes) * said, MEMORY: np.float32(self.votes) * votes}

    def with_later(self, count: int, changed: NDArray[np.int64]) -> "Ranker":
        """The ranker for so many labels, of which it knows nothing of those beyond its own and of the changed ones."""
        more = count - len(self.intercepts)
        if more == 0 and len(changed) == 0:
            return self
        texts = np.pad(self.texts, (0, more), constant_values=LATER)
        texts[changed] = LATER
        known = self.weights
        weights = csr_array((known.data, known.indices, known.indptr), shape=(known.shape[0], count))
        memory = None if self.memory is None else self.memory.with_labels(count)
        return replace(self, weights=weights, memory=memory, intercepts=np.pad(self.intercepts, (0, more)), texts=texts)

    def rerank(self, texts: Sequence[str], vectors: Vectors, dense: Ranking, *, trained: bool = False) -> Ranking:
        """The dense ranking, first labels in the order of all scores; `trained` texts have no vote for themselves."""
        if self.weight == 0:
            return dense
        head = dense.rows[:, : self.settings.candidates]
        votes = None
        if self.memory is not None:
            own = self.memory.same(texts) if trained else None
            nearest = self.memory.nearest(vectors, self.settings.neighbours, own)
            votes = self.memory.votes(nearest, head, self.settings.similarity)
        return fuse(dense, self.scores(self.margins(texts, head), votes, head), self.weight)

    def chosen(self) -> dict[str, Any]:
        """What another ranker counts as much by."""
        return {"weight": self.weight, "votes": self.votes, "rare": self.rare}

    def describe(self) -> dict[str, Any]:
        """For the manifest and the model card."""
        metrics, intervals = (self.report or {}).get("metrics", {}), (self.report or {}).get("intervals", {})
        shown = "{} {:.2f} [{:.2f}, {:.2f}]".format
        told = [shown(name, metrics[name], *intervals[name]) for name in _TOLD if name in metrics]
        return {
            **self.chosen(),
            "candidates": self.settings.candidates,
            "features": int(self.weights.shape[0]),
            "weights": int(self.weights.nnz),
            "remembered_texts": 0 if self.memory is None else len(self.memory.vectors),
            **({"neighbours_found": self.memory.measured["recall"]} if self.memory and self.memory.measured else {}),
            **self.origin,
            **({"as_it_answers": ", ".join(told)} if told else {}),
        }

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        content = {**self.chosen(), "origin": self.origin, "settings": asdict(self.settings), "report": self.report}
        (folder / "ranker.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        self.features.save(folder)
        sparse = self.weights.indptr, self.weights.indices, self.weights.data
        arrays: list[NDArray[Any]] = [self.features.idf, *sparse, self.intercepts, self.texts]
        kept = {name: values.astype(kind) for (name, kind), values in zip(_KINDS.items(), arrays, strict=True)}
        save_file(kept, folder / "weights.safetensors")
        if self.memory is not None:
            self.memory.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "Ranker":
        """What `save` wrote; the weights are mapped, and of them only the columns read: scipy trusts them blindly."""
        try:
            content = json.loads((folder / "ranker.json").read_text(encoding="utf-8"))
            arrays = map_arrays(folder / "weights.safetensors")
            for name, kind in _KINDS.items():
                if arrays[name].dtype != kind or arrays[name].ndim != 1:
                    raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, not a list of {kind}")
            settings = RankerSettings.of(content["settings"])
            features, labels = TextFeatures.load(folder, arrays["idf"]), len(arrays["intercepts"])
            starts = arrays["starts"]
            if starts[-1] != len(arrays["columns"]) or (np.diff(starts) < 0).any():
                raise ValueError("where the features' weights start is no rising list")
            if len(arrays["columns"]) <= np.iinfo(np.int32).max:
                starts = starts.astype(np.int32)  # as the columns: of two kinds, scipy would copy these
            weights = csr_array((arrays["values"], arrays["columns"], starts), shape=(len(features), labels))
            weights.check_format()  # 20 million weights in 13 ms
            if len(arrays["texts"]) != labels:
                raise ValueError(f"{len(arrays['texts']):,} labels have texts, {labels:,} have weights")
            memory = Memory.load(folder, labels) if settings.memory else None
            chosen = {name: content[name] for name in ("weight", "votes", "rare", "origin", "report")}
            return cls(features, weights, arrays["intercepts"], arrays["texts"], settings, memory, **chosen)
        except _UNREADABLE as error:
            raise DamagedModel(f"{folder}: is no ranker ({error}); copy the model again, or fit it again") from error
