"""Probable unlabelled positives: labels nobody gave a query, that a model scores above all those somebody did.

Real catalogues are full of them. As mined negatives they teach the model to forget what it found.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.encoder import encode_tokens, tokens_for
from umpteen.errors import BadInput
from umpteen.files.progress import Advance
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import in_rows_of, split_of
from umpteen.parallel.world import Shard, World
from umpteen.search.ranking import NO_LABEL, best_known, top_k

BLOCK = 16_384  # queries searched at once


@dataclass(frozen=True)
class Audit:
    """The suspects, each a mined negative that scores above its query's best positive less the margin."""

    labels: LabelCatalogue
    split: Split
    queries: int  # that have a positive
    mined: int
    query: NDArray[np.int64]  # [suspects], ascending
    label: NDArray[np.int64]
    score: NDArray[np.float32]
    best_positive: NDArray[np.float32]

    def most_frequent(self, count: int) -> list[dict[str, Any]]:
        """The labels that are suspected most often, with how often they are given."""
        suspected = np.bincount(self.label, minlength=len(self.labels))
        given = self.split.relevance.label_counts()
        rows = np.argsort(-suspected, kind="stable")[:count]
        return [
            {
                "key": self.labels.keys[row],
                "text": self.labels.texts[row],
                "suspected": int(suspected[row]),
                "given": int(given[row]),
            }
            for row in rows.tolist()
            if suspected[row]
        ]

    def summary(self) -> dict[str, Any]:
        return {
            "queries": self.queries,
            "mined": self.mined,
            "suspects": len(self.query),
            "suspect_percent": round(100 * len(self.query) / max(1, self.mined), 3),
            "queries_with_suspects": len(np.unique(self.query)),
        }

    def lines(self) -> Iterator[str]:
        """One JSON object a suspect, the clearest of each query first."""
        for place in np.lexsort((-self.score, self.query)).tolist():
            query, label = int(self.query[place]), int(self.label[place])
            given = np.setdiff1d(self.split.relevance.of(query), self.split.filtered.of(query))
            yield json.dumps(
                {
                    "query": query,
                    "text": self.split.texts[query],
                    "label": self.labels.keys[label],
                    "label_text": self.labels.texts[label],
                    "score": round(float(self.score[place]), 4),
                    "best_positive_score": round(float(self.best_positive[place]), 4),
                    "positives": [self.labels.keys[row] for row in given.tolist()],
                },
                ensure_ascii=False,
            )


def audit_negatives(
    classifier: Classifier,
    dataset: Dataset,
    split: str = "train",
    *,
    shortlist: int = 100,
    margin: float = 0.0,
    progress: Advance | None = None,
) -> Audit:
    """The suspects among each query's `shortlist` best labels that are neither relevant nor filtered.

    Queries without a positive have nothing to compare with and are left out.
    """
    dataset = in_rows_of(classifier, dataset)
    judged = split_of(dataset, split)
    if shortlist > len(dataset.labels):
        raise BadInput(f"--shortlist {shortlist}: there are only {len(dataset.labels):,} labels; ask for fewer")
    relevant = judged.relevance.without(judged.filtered)
    known = relevant.either(judged.filtered)
    tower = classifier.towers.query
    tokens = tokens_for(tower, judged.texts)
    everyone = Shard(World(), len(dataset.labels))
    found: list[tuple[NDArray[Any], ...]] = []
    mined = 0
    for start in range(0, len(judged), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(judged)))
        vectors = encode_tokens(tower, tokens.take(rows))
        excluded = known.take(rows).matrix
        ranking = top_k(vectors, classifier.vectors, shortlist, excluding=excluded, hidden=classifier.hidden)
        best = best_known(vectors, classifier.vectors, relevant.take(rows).matrix, everyone)
        real = (ranking.rows != NO_LABEL) & np.isfinite(best)[:, None]
        query, place = np.nonzero(real & (ranking.scores > best[:, None] - margin))
        mined += int(real.sum())
        found.append((query + start, ranking.rows[query, place], ranking.scores[query, place], best[query]))
        if progress is not None:
            progress(int(rows[-1]) + 1, len(judged))
    query, label, score, best = (np.concatenate(parts) for parts in zip(*found, strict=True))
    answerable = int((np.diff(relevant.matrix.indptr) > 0).sum())
    return Audit(dataset.labels, judged, answerable, mined, query, label.astype(np.int64), score, best)
