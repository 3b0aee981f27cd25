"""Why a text gets a label: its score as terms that add up, and the words, n-grams and training texts behind each.

Of a bag of word pieces the words' shares are exact: its vector is a sum over tokens. Of a transformer they follow from
leaving words out, one after the other.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.encoders.encoder import SMALLEST_NORM, Encoder, encode_texts
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.static import StaticEncoder, bigram_buckets
from umpteen.model.live import LiveModel
from umpteen.rerank.memory import weigh
from umpteen.rerank.ranker import NGRAMS, Ranker, head_start, squash
from umpteen.search.ranking import Ranking, as_floats, values_at

# The terms, beside the ranker's.
ENCODER, BIAS, HEAD_START, INTERCEPT = "dual encoder", "bias", "head start", "intercept"
PLACE, CORRECTIONS = "place", "corrections"
_WORD = re.compile(r"\w+|[^\w\s]+")
_TOKENS_LEFT_TO_READ = 4096  # in all texts without some of their words; of long texts, several words go at once
_FEWEST, _MOST = 8, 64  # such texts

Method = Literal["exact", "occlusion"]
Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Term:
    """A part of the score."""

    name: str
    score: float


@dataclass(frozen=True)
class Word:
    """A word of the text, from one character to the one before another."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class NGram:
    text: str
    score: float


@dataclass(frozen=True)
class Neighbour:
    """A training text that has the label."""

    text: str | None  # None: the ranker was fitted without keeping texts
    similarity: float
    score: float


@dataclass(frozen=True)
class Explanation:
    """The terms add up to the score; words add up to the dual encoder's, n-grams and neighbours each to their own."""

    key: str
    label: str
    score: float
    probability: float | None  # None: the model is not calibrated
    is_candidate: bool  # False: too far down for the ranker, whose terms are then what it would say
    terms: list[Term]
    words: list[Word]  # in the order of the text
    method: Method  # "occlusion" if any part of the encoder needed it
    ngrams: list[NGram]  # the largest first
    neighbours: list[Neighbour]  # the nearest first

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; without a probability if there is none."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("probability", None)}


class Explainer:
    """Explains labels of one text; what does not depend on the label is computed once."""

    def __init__(self, model: LiveModel, text: str, vectors: Tensor, dense: Ranking, answered: Ranking) -> None:
        """`vectors` and `dense` are what the dual encoder gives for the text, `answered` what became of it."""
        self._model, self._text, self._vectors, self._dense = model, text, vectors, dense
        self._answered = answered
        self._words = list(_WORD.finditer(text))
        self._occluded: dict[Encoder, tuple[NDArray[np.int64], Tensor]] = {}

    def explain(self, key: str) -> Explanation:
        """Of any label, whether the text gets it or not."""
        model, ranker = self._model, self._model.ranker
        row = model.labels.row(key)
        vector = model.catalogue.vectors.of(np.array([row]))[0]
        weight = 0.0 if ranker is None else ranker.weight
        terms, words, method = self._of_encoder((1 - weight) * torch.from_numpy(vector).double())
        bonus = 0.0 if model.head_start is None else float(model.head_start[row])
        if bonus:
            terms.append(Term(HEAD_START, (1 - weight) * bonus))
        dense, is_candidate = self._dense, True
        if ranker is not None and row not in dense.rows[0]:
            is_candidate, score = False, float(as_floats(self._vectors)[0] @ vector) + bonus
            further = np.array([[row]], dtype=np.int32), np.array([[score]], dtype=np.float32)
            dense = Ranking(np.hstack([dense.rows, further[0]]), np.hstack([dense.scores, further[1]]), dense.labels)
        more, ngrams, neighbours = self._of_ranker(ranker, row, dense) if ranker and weight else ([], [], [])
        terms += more
        before = sum(term.score for term in terms)
        scores, place = self._answered.scores[0], np.flatnonzero(self._answered.rows[0] == row)
        if len(place) == 0:  # further down than was looked
            scores, place = np.append(scores, np.float32(before)), np.array([len(scores)])
        if row in self._corrected:
            terms.append(Term(CORRECTIONS, float(scores[place[0]]) - before))
        calibration = model.calibration
        return Explanation(
            key=key,
            label=model.labels.texts[row],
            score=float(scores[place[0]]),
            probability=None if calibration is None else float(calibration.probabilities(scores[None])[0, place[0]]),
            is_candidate=is_candidate,
            terms=terms,
            words=[Word(word[0], *word.span(), share) for word, share in zip(self._words, words.tolist(), strict=True)],
            method=method,
            ngrams=ngrams,
            neighbours=neighbours,
        )

    @cached_property
    def _corrected(self) -> frozenset[int]:
        """The labels in which examples have a say; they have the last word, whatever the other terms are."""
        corrections = self._model.examples.corrections(self._model.labels)
        return frozenset() if corrections is None else frozenset(corrections.votes(self._vectors).indices.tolist())

    def _of_encoder(self, direction: Tensor) -> tuple[list[Term], Shares, Method]:
        """The terms of the encoder's parts for this label vector, and what each word has of their sum."""
        terms: list[Term] = []
        words: Shares = np.zeros(len(self._words))
        method: Method = "exact"
        tower = self._model.query_tower
        if tower.ends_in_one:  # which the label's bias is multiplied by
            direction, bias = direction[:-1], float(direction[-1])
            terms.append(Term(BIAS, bias))
        for name, leaf, part in _leaves(tower, self._text, direction, ENCODER):
            if isinstance(leaf, StaticEncoder):
                shares = (_token_vectors(leaf, self._text) @ part).numpy()
                whole, found = float(shares.sum()), np.zeros(len(words))
                # A token belongs to the word in which it begins; one that begins with a blank, to the next word.
                starts = [start for start, _ in leaf.tokenizer.spans(self._text)]
                word = np.searchsorted([word.end() for word in self._words], starts, side="right")
                np.add.at(found, np.minimum(word, len(words) - 1), shares)
            else:
                method, (group, vectors) = "occlusion", self._without_words(leaf)
                whole, *without = (vectors[:, : len(part)] @ part).tolist()
                found = _spread(whole, whole - np.array(without), group, len(words))
            terms.append(Term(name, whole))
            words += found
        return terms, words, method

    def _without_words(self, leaf: Encoder) -> tuple[NDArray[np.int64], Tensor]:
        """The group of each word that the encoder reads, and the vectors of the text whole and without each group."""
        if leaf not in self._occluded:
            spans = leaf.tokenizer.spans(self._text)
            end = max((last for _, last in spans), default=0)
            read = [word for word in self._words if word.start() < end]
            most = min(len(read), max(_FEWEST, min(_MOST, _TOKENS_LEFT_TO_READ // max(1, len(spans)))))
            group = np.arange(len(read)) * most // max(1, len(read))
            texts = [self._text]
            for number in range(most):
                first, *_ = members = [read[place] for place in np.flatnonzero(group == number)]
                texts.append(self._text[: first.start()] + self._text[members[-1].end() :])
            self._occluded[leaf] = group, encode_texts(leaf, texts).double().cpu()
        return self._occluded[leaf]

    def _of_ranker(self, ranker: Ranker, row: int, dense: Ranking) -> tuple[list[Term], list[NGram], list[Neighbour]]:
        """What the ranker's score of a label adds to that of the dual encoder, and the evidence for it."""
        place, memory, settings = np.flatnonzero(dense.rows[0] == row)[0], ranker.memory, ranker.settings
        nearest = None if memory is None else memory.nearest(self._vectors, settings.neighbours)
        votes = None if memory is None or nearest is None else memory.votes(nearest, dense.rows, settings.similarity)
        margins = ranker.margins([self._text], dense.rows)
        if ranker.texts[row] <= 0:  # it knows nothing of the label, which keeps its place among the others
            return [Term(PLACE, ranker.weight * float(ranker.scores(margins, votes, dense.rows)[0, place]))], [], []
        terms = ranker.terms(margins, votes, dense.rows)
        said = {name: ranker.weight * float(value[0, place]) for name, value in terms.items()}
        ngrams: list[NGram] = []
        neighbours: list[Neighbour] = []
        if settings.sparse and ranker.votes < 1:
            intercept, ngrams = self._of_ngrams(ranker, row)
            said = {NGRAMS: said.pop(NGRAMS) - intercept, INTERCEPT: intercept, **said}
        else:
            del said[NGRAMS]
        if memory is not None and nearest is not None:
            rows, weights = nearest.rows[0], weigh(nearest, settings.similarity)[0]
            has = values_at(memory.labels[rows], np.full((len(rows), 1), row, dtype=np.int32))[:, 0] > 0
            for text, similarity, share in zip(rows[has], nearest.scores[0, has], weights[has], strict=True):
                shown = None if memory.texts is None else memory.texts[int(text)]
                neighbours.append(Neighbour(shown, float(similarity), ranker.weight * ranker.votes * float(share)))
        return [Term(name, score) for name, score in said.items()], ngrams, neighbours

    def _of_ngrams(self, ranker: Ranker, row: int) -> tuple[float, list[NGram]]:
        """What the label would get without any n-gram, and what those of the text add to it.

        Along the straight way from none to all of them, each adds to the squashed margin in proportion to its w·x.
        """
        features = ranker.features.transform([self._text])
        rows = np.full((len(features.indices), 1), row, dtype=np.int32)
        shares = features.data.astype(np.float64) * values_at(ranker.weights[features.indices], rows)[:, 0]
        start = float(ranker.intercepts[row] + head_start(ranker.texts[row], ranker.rare))
        total = float(shares.sum())
        least, most = squash(np.array([start, start + total])).tolist()
        slope = (most - least) / total if total else 0.0
        weight = ranker.weight * (1.0 if ranker.memory is None else 1 - ranker.votes)
        names, parts = ranker.features.ngrams(self._text), zip(features.indices.tolist(), shares.tolist(), strict=True)
        found = [NGram(names[column], weight * slope * share) for column, share in parts if share]
        return weight * least, sorted(found, key=lambda ngram: -abs(ngram.score))


def _leaves(encoder: Encoder, text: str, direction: Tensor, name: str) -> Iterator[tuple[str, Encoder, Tensor]]:
    """The parts of a tower, each with the vector whose inner products with the parts' vectors add up to the whole's."""
    if not isinstance(encoder, PartsEncoder):
        yield name, encoder, direction
        return
    if encoder.how == "concat":
        directions = [share.of_score**0.5 * direction[share.columns] for share in encoder.shares]
    else:
        weights = encoder.learned_weights().detach().double().cpu()
        vectors = [encode_texts(part, [text])[0].double().cpu() for part in encoder.encoders.values()]
        length = float(torch.linalg.vector_norm(torch.stack(vectors).mul(weights[:, None]).sum(0)))
        scale = 1.0 if not encoder.normalise else 1 / length if length > SMALLEST_NORM else 0.0
        directions = [weight * scale * direction for weight in weights]
    for (kind, part), own in zip(encoder.encoders.items(), directions, strict=True):
        yield from _leaves(part, text, own, f"{name}: {kind}")


def _token_vectors(encoder: StaticEncoder, text: str) -> Tensor:
    """One vector for each token of the text; they add up to its own. A bigram's is shared by its two tokens."""
    ids, offsets = (tensor.to(encoder.table.device) for tensor in encoder.read_now([text]))
    with torch.no_grad():
        vectors = encoder.table[ids].double() * encoder.token_weights[ids, None] / max(1, len(ids))
        if encoder.bigrams is not None and len(ids) > 1:
            pairs, _ = bigram_buckets(ids, offsets, len(encoder.bigrams))
            halves = encoder.bigrams[pairs].double() / (2 * len(pairs))
            vectors[:-1] += halves
            vectors[1:] += halves
    length = float(torch.linalg.vector_norm(vectors.sum(0)))
    scale = 1.0 if not encoder.normalise else 1 / length if length > SMALLEST_NORM else 0.0
    return (scale * vectors).cpu()


def _spread(whole: float, drops: Shares, group: NDArray[np.int64], words: int) -> Shares:
    """The score shared by what it loses without each group of words, whose words share equally.

    What is missing from the whole is added where the drops have its sign, in proportion, so no word changes sides;
    if none has, to all alike.
    """
    found, rest = np.zeros(words), whole - drops.sum()
    alike = np.maximum(0, np.sign(rest) * drops)
    if not alike.any():
        alike = np.ones_like(drops)
    if len(group):
        found[: len(group)] = ((drops + rest * alike / alike.sum()) / np.bincount(group))[group]
    return found
