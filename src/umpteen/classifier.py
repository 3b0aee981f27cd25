"""The product: texts in, the right few labels of a live model out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.towers import Towers
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput
from umpteen.live_model import LiveModel
from umpteen.model_folder import RANKER as RANKER
from umpteen.model_folder import verify as verify
from umpteen.retrieval.exact import top_k
from umpteen.retrieval.ranking import NO_LABEL, Ranking

USUAL_K = 5  # labels a text

Progress = Callable[[int, int], None]


class Prediction(NamedTuple):
    """One label of one text."""

    key: str
    text: str
    score: float
    probability: float | None = None  # of being right, if the model is calibrated


class Classifier(LiveModel):
    """Finds the best labels of a text among all of the catalogue's, which may change while it is in use."""

    @classmethod
    def build(
        cls,
        towers: Towers,
        labels: LabelCatalogue,
        progress: Progress | None = None,
        *,
        rows: NDArray[np.int64] | None = None,
    ) -> Self:
        """A classifier over these labels, whose texts the label tower encodes now.

        Where the tower has a vector for each label it was trained with, `rows` says which of those each label is, -1
        for none; without it all labels are new.
        """
        return cls(towers, labels, encode_texts(towers.label, labels.texts, progress=progress, rows=rows).float())

    def predict(
        self,
        texts: Sequence[str],
        k: int | None = None,
        *,
        min_probability: float | None = None,
        precision: float | None = None,
        rule: str | None = None,
    ) -> list[list[Prediction]]:
        """The k best labels of each text, best first; fewer, or none, if some are less probable than asked for.

        `precision` asks for as many labels as can be given so that this share of them is right, `rule` ("f1" or
        "coverage") for as many as was found best on held-out texts. k is 5 if left out, or the most the rule gives.
        """
        labels = self.labels
        ranking, probable = self.select(texts, k, min_probability=min_probability, precision=precision, rule=rule)
        answers: list[list[Prediction]] = []
        for query, (rows, scores) in enumerate(zip(ranking.rows.tolist(), ranking.scores.tolist(), strict=True)):
            probabilities = [None] * len(rows) if probable is None else probable[query].tolist()
            answers.append(
                [
                    Prediction(labels.keys[row], labels.texts[row], score, probability)
                    for row, score, probability in zip(rows, scores, probabilities, strict=True)
                    if row != NO_LABEL
                ]
            )
        return answers

    def select(
        self,
        texts: Sequence[str],
        k: int | None = None,
        *,
        min_probability: float | None = None,
        precision: float | None = None,
        rule: str | None = None,
        progress: Progress | None = None,
    ) -> tuple[Ranking, NDArray[np.float32] | None]:
        """What `predict` gives as label rows and scores, and their probabilities if the model is calibrated."""
        if self.calibration is None:
            if (min_probability, precision, rule) != (None, None, None):
                raise BadInput("the model gives no probabilities yet; `umpteen calibrate` fits them")
            return self.rank(texts, min(USUAL_K, self.labels.count()) if k is None else k, progress=progress), None
        line = self.calibration.line(min_probability=min_probability, precision=precision, rule=rule)
        most = min(line.at_most or USUAL_K, self.labels.count())
        ranking = self.rank(texts, most if k is None else k, progress=progress)
        probabilities = self.calibration.probabilities(ranking.scores)
        given = line.given(probabilities)
        rows = np.where(given, ranking.rows, np.int32(NO_LABEL))
        return Ranking(rows, np.where(given, ranking.scores, np.float32(-np.inf)), ranking.labels), probabilities

    def rank(
        self, texts: Sequence[str], k: int, excluding: csr_array | None = None, progress: Progress | None = None
    ) -> Ranking:
        """The k best labels of each text as rows and scores; pairs stored in `excluding` are never returned.

        Where there is a ranker, it puts the dual encoder's first labels in order.
        """
        _check_texts(texts)
        count = self.labels.count()
        if not 1 <= k <= count:
            raise BadInput(f"k is {k:,}, but the model has {count:,} labels; ask for 1 to {count}")
        vectors = encode_texts(self.towers.query, texts, progress=progress)
        ranker = self.ranker
        width = k if ranker is None else min(count, max(k, ranker.settings.candidates))
        if excluding is None:
            dense = replace(self.index.search(vectors, width), labels=len(self.labels))
        else:
            dense = top_k(vectors, self.vectors, width, excluding=excluding, hidden=self.hidden)
        return dense if ranker is None else ranker.rerank(texts, vectors.cpu().numpy(), dense).head(k)


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise BadInput(f"texts is a single string, {texts[:40]!r}; pass a list of texts, even for one: [text]")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"texts[{position}] is a {type(text).__name__}, not a string")
        if not text.strip():
            raise BadInput(f"texts[{position}] is empty; leave it out or give it words")
