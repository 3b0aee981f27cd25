"""Judges saved models on a dataset, one, several beside each other, or averaged; labels are matched by key."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.classifier import Classifier
from umpteen.data.dataset import Dataset, Split
from umpteen.data.relevance import Relevance
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput
from umpteen.evaluation.propensity import USUAL
from umpteen.evaluation.report import USUAL_KS, Report
from umpteen.evaluation.significance import Difference, paired_differences
from umpteen.judge import Judge
from umpteen.retrieval.exact import top_k
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
    judge = _judge(classifier, dataset, split, at, propensity, as_published)
    ranking = judge.rank(classifier.towers.query, classifier.vectors, ranker=classifier.ranker)
    return judge.report(ranking), ranking


def compare_models(
    classifiers: Sequence[Classifier],
    dataset: Dataset,
    split: str = "test",
    *,
    at: tuple[int, ...] = USUAL_KS,
    propensity: tuple[float, float] | None = None,
    as_published: bool = False,
) -> tuple[list[Report], list[dict[str, Difference]]]:
    """All models' reports, and each one's but the first paired differences from the first, whose A and B all use."""
    propensity = propensity or propensity_of_recipe(classifiers[0])
    reports, terms = [], []
    for classifier in classifiers:
        judge = _judge(classifier, dataset, split, at, propensity, as_published)
        ranking = judge.rank(classifier.towers.query, classifier.vectors, ranker=classifier.ranker)
        reports.append(judge.report(ranking))
        terms.append(judge.terms(ranking))
    return reports, [paired_differences(other, terms[0]) for other in terms[1:]]


def evaluate_ensemble(
    classifiers: Sequence[Classifier],
    dataset: Dataset,
    split: str = "test",
    *,
    at: tuple[int, ...] = USUAL_KS,
    propensity: tuple[float, float] | None = None,
    as_published: bool = False,
) -> tuple[Report, Ranking]:
    """The report and ranking of several dual encoders whose scores are averaged; rows and A and B are the first's.

    The mean of inner products is the inner product of concatenated vectors, so exact search works as ever.
    """
    first = classifiers[0]
    for classifier in classifiers:
        if classifier.ranker is not None:
            raise BadInput(
                "one of the models has a ranker, and only dual encoders can be averaged; --no-ranker leaves it out"
            )
    labels = torch.cat([classifier.vectors[_rows_as_in(first, classifier)] for classifier in classifiers], 1)
    judge = _judge(first, dataset, split, at, propensity, as_published)
    queries = [encode_texts(classifier.towers.query, judge.split.texts) for classifier in classifiers]
    mean = torch.cat(queries, 1).float() / len(classifiers)
    ranking = top_k(mean, labels, max(judge.at), excluding=judge.split.filtered.matrix)
    return judge.report(ranking), ranking


def _judge(
    classifier: Classifier,
    dataset: Dataset,
    split: str,
    at: tuple[int, ...],
    propensity: tuple[float, float] | None,
    as_published: bool,
) -> Judge:
    dataset = in_rows_of(classifier, dataset)
    judged: Split | None = getattr(dataset, split)
    if judged is None:
        there = [name for name in ("train", "validation", "test") if getattr(dataset, name) is not None]
        raise BadInput(f"{dataset.name} has no {split} split; it has {' and '.join(there)}")
    a, b = propensity or propensity_of_recipe(classifier)
    return Judge(dataset, judged, at=at, a=a, b=b, as_published=as_published)


def _rows_as_in(first: Classifier, other: Classifier) -> Tensor:
    """Where the other model keeps the vector of each of the first one's labels."""
    known = {key: row for row, key in enumerate(other.labels.keys)}
    missing = [key for key in first.labels.keys if key not in known]
    if missing or len(known) != len(first.labels):
        which = f"{missing[0]!r} is missing" if missing else f"{len(known):,} against {len(first.labels):,}"
        raise BadInput(f"models that are averaged must have the same labels, but {which}; train them on the same data")
    return torch.tensor([known[key] for key in first.labels.keys])


def propensity_of_recipe(classifier: Classifier) -> tuple[float, float]:
    """A and B as the model's recipe has them, or else the usual ones."""
    recipe = tomllib.loads(classifier.recipe or "").get("evaluation", {})
    return recipe.get("propensity_a", USUAL[0]), recipe.get("propensity_b", USUAL[1])


def in_rows_of(classifier: Classifier, dataset: Dataset) -> Dataset:
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
