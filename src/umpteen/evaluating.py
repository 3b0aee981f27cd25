"""Judges a saved model on a dataset, matching labels by key: the model's catalogue decides what can be predicted."""

import tomllib
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from umpteen.classifier import Classifier
from umpteen.data.dataset import Dataset, Split
from umpteen.data.relevance import Relevance
from umpteen.errors import BadInput
from umpteen.evaluation.propensity import USUAL
from umpteen.evaluation.report import USUAL_KS, Report
from umpteen.judge import Judge
from umpteen.retrieval.ranking import Ranking


def evaluate_model(
    classifier: Classifier,
    dataset: Dataset,
    split: str = "test",
    *,
    at: tuple[int, ...] = USUAL_KS,
    propensity: tuple[float, float] | None = None,
    as_published: bool = False,
) -> tuple[Report, Ranking]:
    """The model's report and ranking on one split of a dataset; A and B are its recipe's unless given."""
    dataset = _in_rows_of(classifier, dataset)
    judged: Split | None = getattr(dataset, split)
    if judged is None:
        there = [name for name in ("train", "validation", "test") if getattr(dataset, name) is not None]
        raise BadInput(f"{dataset.name} has no {split} split; it has {' and '.join(there)}")
    a, b = propensity or _propensity_of_recipe(classifier)
    judge = Judge(dataset, judged, at=at, a=a, b=b, as_published=as_published)
    ranking = judge.rank(classifier.towers.query, classifier.vectors)
    return judge.report(ranking), ranking


def _propensity_of_recipe(classifier: Classifier) -> tuple[float, float]:
    recipe = tomllib.loads(classifier.recipe or "").get("evaluation", {})
    return recipe.get("propensity_a", USUAL[0]), recipe.get("propensity_b", USUAL[1])


def _in_rows_of(classifier: Classifier, dataset: Dataset) -> Dataset:
    """The dataset with its labels renumbered to the model's rows, found by key."""
    if classifier.labels.keys == dataset.labels.keys:
        return dataset
    known = {key: row for row, key in enumerate(classifier.labels.keys)}
    rows = np.array([known.get(key, -1) for key in dataset.labels.keys])
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise BadInput(
            f"{len(missing):,} of {len(rows):,} labels of {dataset.name} are not in the model, first "
            f"{dataset.labels.keys[missing[0]]!r}; was it trained on this dataset? `umpteen train --from` adds labels"
        )

    def moved(relevance: Relevance) -> Relevance:
        matrix = relevance.matrix
        renumbered = csr_array(
            (matrix.data, rows[matrix.indices], matrix.indptr), shape=(matrix.shape[0], len(classifier.labels))
        )
        return Relevance(renumbered)

    def in_rows(split: Split | None) -> Split | None:
        return None if split is None else Split(split.texts, moved(split.relevance), moved(split.filtered))

    train = in_rows(dataset.train)
    assert train is not None
    return replace(
        dataset,
        labels=classifier.labels,
        train=train,
        validation=in_rows(dataset.validation),
        test=in_rows(dataset.test),
    )
