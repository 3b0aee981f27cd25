"""How near a text must be to a corrected one, and how much that counts: `python -m lab.corrections MODEL DATA`.

On validation of a model that was fitted on train: texts whose first label is wrong are corrected one by one (that label
is wrong, one right label that is not among the first five is right), then asked again as they are and with a fifth of
their words left out. Then a hundred or a thousand validation texts are learnt with all their labels, as a person would
give them, and the others are asked.
"""

import argparse
import itertools
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from umpteen.data.dataset import Split, open_dataset
from umpteen.encoders.encoder import encode_texts
from umpteen.evaluation.report import Evaluator
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import in_rows_of
from umpteen.rerank.memory import Corrections, corrected
from umpteen.search.ranking import SPARE, Ranking, contains

TEMPERATURES, WEIGHTS = (0.03, 0.05, 0.07, 0.1, 0.15), (1.0, 2.0, 4.0)
CORRECTED, LEARNT, LEFT_OUT = 300, (100, 600), 0.2


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("model", type=Path)
    asked.add_argument("data")
    asked.add_argument("--no-ranker", action="store_true")
    given = asked.parse_args()
    classifier = Classifier.load(given.model, ranker=not given.no_ranker)
    recipe = tomllib.loads(classifier.recipe or "")
    dataset = in_rows_of(classifier, open_dataset(given.data))
    dataset = dataset.with_validation(recipe["data"]["validation_fraction"], recipe["seed"])
    assert dataset.validation is not None
    bench = _Bench(classifier, dataset.validation)
    for temperature, weight in itertools.product(TEMPERATURES, WEIGHTS):
        found = {"temperature": temperature, "weight": weight, **bench.corrections_needed(temperature, weight)}
        for count in LEARNT:
            rest, before, after = bench.learnt(count, temperature, weight)
            part = Evaluator(dataset, dataset.validation.take(rest), at=(1, 5))
            metrics = [part.report(ranking, bootstrap=0).metrics for ranking in (before, after)]
            for name in ("P@1", "P@5"):
                found[f"{name} of others after {count}"] = round(metrics[1][name] - metrics[0][name], 2)
        print(json.dumps(found), flush=True)


class _Bench:
    def __init__(self, classifier: Classifier, split: Split) -> None:
        self.classifier, self.split = classifier, split
        self.truth = split.relevance.without(split.filtered).matrix
        texts, random = list(split.texts), np.random.default_rng(0)
        self.wide = classifier.rank(texts, 5 + SPARE, excluding=split.filtered.matrix)
        self.vectors = encode_texts(classifier.towers.query, texts).float()
        first_is_wrong = ~contains(self.truth, self.wide.rows[:, :1])[:, 0]
        missing = [np.setdiff1d(self.truth[[row]].indices, self.wide.rows[row, :5]) for row in range(len(texts))]
        chosen = [row for row in np.flatnonzero(first_is_wrong) if len(missing[row])][:CORRECTED]
        self.chosen = np.array(chosen)
        self.wrong = self.wide.rows[self.chosen, 0]
        self.missing = np.array([missing[row][0] for row in chosen])
        cut = []
        for row in chosen:
            words = np.array(texts[row].split())
            kept = np.sort(random.permutation(len(words))[: max(1, round((1 - LEFT_OUT) * len(words)))])
            cut.append(" ".join(words[kept]))
        self.near = classifier.rank(cut, 5 + SPARE), encode_texts(classifier.towers.query, cut).float()

    def corrections_needed(self, temperature: float, weight: float) -> dict[str, float]:
        """Shares of texts, after their one correction, the same and shortened: wrong one gone, missing one first."""
        same = self._take(self.wide, self.chosen), self.vectors[torch.from_numpy(self.chosen)]
        found: dict[str, float] = {"corrected": len(self.chosen)}
        for name, (ranking, vectors) in {"same": same, "shortened": self.near}.items():
            gone, first = [], []
            for place in range(len(self.chosen)):
                pair = ([1.0, -1.0], ([0, 0], [self.missing[place], self.wrong[place]]))
                said = csr_array(pair, shape=(1, ranking.labels))
                own = Corrections.of(same[1][place : place + 1].half(), said)
                own = replace(own, temperature=temperature, weight=weight)
                one = self._take(ranking, np.array([place]))
                after = self._asked(own, one, vectors[place : place + 1]).head(5).rows[0]
                gone.append(self.wrong[place] not in after)
                first.append(after[0] == self.missing[place])
            found |= {
                f"{name}: gone": round(float(np.mean(gone)), 3),
                f"{name}: first": round(float(np.mean(first)), 3),
            }
        return found

    def learnt(self, count: int, temperature: float, weight: float) -> tuple[np.ndarray, Ranking, Ranking]:
        """The texts that were not learnt, and their rankings before and after the others were."""
        order = np.random.default_rng(1).permutation(len(self.split))
        taught, rest = order[:count], order[count:]
        said = self.truth[taught].astype(np.float32)
        said.data[:] = 1
        first = self.wide.rows[taught, :5]
        bad = ~contains(self.truth[taught], first)
        places, columns = np.nonzero(bad)
        wrong = csr_array((-np.ones(len(places), np.float32), (places, first[places, columns])), shape=said.shape)
        all_said = csr_array(said + wrong)
        own = Corrections.of(self.vectors[torch.from_numpy(taught)].half(), all_said)
        own = replace(own, temperature=temperature, weight=weight)
        before = self._take(self.wide, rest)
        after = self._asked(own, before, self.vectors[torch.from_numpy(rest)], self.split.filtered.matrix[rest])
        return rest, before.head(5), after.head(5)

    def _asked(
        self, own: Corrections, ranking: Ranking, vectors: torch.Tensor, excluding: csr_array | None = None
    ) -> Ranking:
        return corrected(ranking, own.votes(vectors, excluding), lambda rows: self.classifier._scores(vectors, rows))

    def _take(self, ranking: Ranking, rows: np.ndarray) -> Ranking:
        return Ranking(ranking.rows[rows], ranking.scores[rows], ranking.labels)


if __name__ == "__main__":
    main()
