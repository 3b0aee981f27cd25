"""Rankings as JSON. A label's part of it is kept: reading a stored label again costs more than finding it did."""

from collections.abc import Set
from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple

from umpteen.catalogue.live import FirstLabels, LiveLabels
from umpteen.classifier import Classifier
from umpteen.retrieval.ranking import NO_LABEL

MOST_KEPT = 50_000  # labels, some 10 MB


class Found(NamedTuple):
    """Rows, scores and probabilities of some texts' labels, best first, and the labels whose rows they are."""

    labels: LiveLabels
    rows: list[list[int]]
    scores: list[list[float]]
    probabilities: list[list[float]] | None

    def some(self, start: int, stop: int, k: int) -> "Found":
        """Of these texts, the best k."""
        rows = [one[:k] for one in self.rows[start:stop]]
        scores = [one[:k] for one in self.scores[start:stop]]
        probable = None if self.probabilities is None else [one[:k] for one in self.probabilities[start:stop]]
        return Found(self.labels, rows, scores, probable)


def find(classifier: Classifier, texts: list[str], k: int) -> Found:
    """The k best labels of each text, or all if there are fewer."""
    labels = classifier.labels
    ranking = classifier.rank(texts, min(k, labels.count()))
    probable = None if classifier.calibration is None else classifier.calibration.probabilities(ranking.scores).tolist()
    return Found(labels, ranking.rows.tolist(), ranking.scores.tolist(), probable)


class AnswerWriter:
    """Writes answers of one classifier's labels, whatever version they are of."""

    def __init__(self) -> None:
        self._kept: dict[int, str] = {}  # of rows that are as the model was written
        self._first: FirstLabels | None = None
        self._labels: LiveLabels | None = None
        self._changed: Set[int] = frozenset()

    def write(self, found: Found, least: float) -> bytes:
        """The body of an answer, without labels that are less probable than this."""
        self._turn_to(found.labels)
        results = []
        for place, (rows, scores) in enumerate(zip(found.rows, found.scores, strict=True)):
            if found.probabilities is None:
                shown = [
                    f'{self._label(row)}{score},"probability":null}}'
                    for row, score in zip(rows, scores, strict=True)
                    if row != NO_LABEL
                ]
            else:
                shown = [
                    f'{self._label(row)}{score},"probability":{probability}}}'
                    for row, score, probability in zip(rows, scores, found.probabilities[place], strict=True)
                    if row != NO_LABEL and probability >= least
                ]
            results.append(f'{{"labels":[{",".join(shown)}]}}')
        return f'{{"version":{found.labels.version},"results":[{",".join(results)}]}}'.encode()

    def _turn_to(self, labels: LiveLabels) -> None:
        if labels is self._labels:
            return
        if labels.first is not self._first:  # another model
            self._kept.clear()
            self._first = labels.first
        self._labels = labels
        self._changed = frozenset(labels.changed().tolist())

    def _label(self, row: int) -> str:
        """What comes before a label's score."""
        stored = row not in self._changed
        if stored and (kept := self._kept.get(row)) is not None:
            return kept
        assert self._labels is not None and self._first is not None
        made = f'{{"key":{quoted(self._labels.keys[row])},"text":{quoted(self._labels.texts[row])},"score":'
        if stored and row < len(self._first):
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[row] = made
        return made
