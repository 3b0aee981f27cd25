"""Evaluates saved models on a dataset, one, several beside each other, or averaged; labels are matched by key."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.calibration.calibration import evaluate_calibration
from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import Relevance
from umpteen.encoders.encoder import encode_texts
from umpteen.errors import BadInput
from umpteen.evaluation.metrics import USUAL, Difference, paired_differences
from umpteen.evaluation.report import USUAL_KS, Evaluator, Report
from umpteen.model.classifier import Classifier
from umpteen.model.labels import TRAINED
from umpteen.search.ranking import Ranking, top_k


class How(TypedDict, total=False):
    """How models are judged: the cut-offs k, A and B of the propensity model, and whether as published figures are."""

    at: tuple[int, ...]
    propensity: tuple[float, float] | None
    as_published: bool


def evaluate_model(
    classifier: Classifier, dataset: Dataset, split: str = "test", **how: Unpack[How]
) -> tuple[Report, Ranking]:
    """The model's report and ranking on one split of a dataset; A and B are its recipe's unless given."""
    evaluator = _evaluator(classifier, dataset, split, **how)
    if classifier.calibration is None:
        ranking = _rank(evaluator, classifier)
        return evaluator.report(ranking), ranking
    depth = min(classifier.calibration.depth, classifier.labels.count())
    wide = _rank(evaluator, classifier, at_least=depth)
    ranking = wide.head(max(evaluator.at))
    truth = evaluator.split.relevance.without(evaluator.split.filtered).matrix
    calibration = evaluate_calibration(classifier.calibration, wide.head(depth), truth)
    return evaluator.report(ranking).with_calibration(calibration), ranking


def report_by_origin(
    classifier: Classifier, dataset: Dataset, split: str, ranking: Ranking, **how: Unpack[How]
) -> dict[str, dict[str, Any]]:
    """A ranking evaluated by seen labels alone and by unseen ones alone, which were added or renamed after training.

    All labels compete; only what counts as right differs. Queries without a right label of the kind are left out.
    Nothing, if all labels were trained.
    """
    labels = classifier.labels
    trained = labels.origins() == TRAINED
    if (trained | ~labels.active).all():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, group in (("seen", trained), ("unseen", ~trained)):
        evaluator = _evaluator(classifier, dataset, split, counting=group, **how)
        right = evaluator.split.relevance.without(evaluator.split.filtered).pairs
        report = evaluator.report(ranking) if right else None
        found[name] = {
            "labels": int((group & labels.active).sum()),
            "right_pairs": right,
            "queries": report.queries if report else 0,
            "metrics": report.metrics if report else {},
            "intervals": report.intervals if report else {},
        }
    return found


def compare_models(
    classifiers: Sequence[Classifier], dataset: Dataset, split: str = "test", **how: Unpack[How]
) -> tuple[list[Report], list[dict[str, Difference]]]:
    """All models' reports, and each one's but the first paired differences from the first, whose A and B all use."""
    how["propensity"] = how.get("propensity") or propensity_of_recipe(classifiers[0])
    reports, terms = [], []
    for classifier in classifiers:
        evaluator = _evaluator(classifier, dataset, split, **how)
        ranking = _rank(evaluator, classifier)
        reports.append(evaluator.report(ranking))
        terms.append(evaluator.terms(ranking))
    return reports, [paired_differences(other, terms[0]) for other in terms[1:]]


def evaluate_ensemble(
    classifiers: Sequence[Classifier], dataset: Dataset, split: str = "test", **how: Unpack[How]
) -> tuple[Report, Ranking]:
    """The report and ranking of several dual encoders whose scores are averaged; rows and A and B are the first's.

    The mean of inner products is the inner product of concatenated vectors, so exact search works as ever.
    """
    first = classifiers[0]
    if any(classifier.has_ranker for classifier in classifiers):
        raise BadInput(
            "one of the models has a ranker, and only dual encoders can be averaged; --no-ranker leaves it out"
        )
    labels = torch.cat([classifier.vectors[_rows_as_in(first, classifier)] for classifier in classifiers], 1)
    evaluator = _evaluator(first, dataset, split, **how)
    queries = [encode_texts(classifier.towers.query, evaluator.split.texts) for classifier in classifiers]
    mean = torch.cat(queries, 1).float() / len(classifiers)
    filtered = evaluator.split.filtered.matrix
    ranking = top_k(mean, labels, max(evaluator.at), excluding=filtered, hidden=first.hidden)
    return evaluator.report(ranking), ranking


def _rank(evaluator: Evaluator, classifier: Classifier, *, at_least: int = 1) -> Ranking:
    return evaluator.rank(
        classifier.towers.query,
        classifier.vectors,
        ranker=classifier.ranker,
        head_start=classifier.head_start,
        hidden=classifier.hidden,
        at_least=at_least,
    )


def _evaluator(
    classifier: Classifier,
    dataset: Dataset,
    split: str,
    *,
    at: tuple[int, ...] = USUAL_KS,
    propensity: tuple[float, float] | None = None,
    as_published: bool = False,
    counting: NDArray[np.bool_] | None = None,
) -> Evaluator:
    """The evaluator of a split; `counting` says which label rows can be right, by default all."""
    dataset = in_rows_of(classifier, dataset)
    chosen = split_of(dataset, split)
    if counting is not None:
        rows = np.where(counting, np.arange(len(counting)), -1)
        chosen = replace(chosen, relevance=_moved(chosen.relevance, rows, len(counting)))
    a, b = propensity or propensity_of_recipe(classifier)
    return Evaluator(dataset, chosen, at=at, a=a, b=b, as_published=as_published)


def split_of(dataset: Dataset, name: str) -> Split:
    """The split of this name, or an error that lists those there are."""
    splits = dataset.splits()
    if name not in splits:
        raise BadInput(f"{dataset.name} has no {name} split; it has {' and '.join(splits)}")
    return splits[name]


def _rows_as_in(first: Classifier, other: Classifier) -> Tensor:
    """Where the other model keeps the vector of each of the first one's labels; retired ones have any."""
    wanted, known = (
        {key: row for row, (key, active) in enumerate(zip(labels.keys, labels.active.tolist(), strict=True)) if active}
        for labels in (first.labels, other.labels)
    )
    missing = [key for key in wanted if key not in known]
    if missing or len(known) != len(wanted):
        which = f"{missing[0]!r} is missing" if missing else f"{len(known):,} against {len(wanted):,}"
        raise BadInput(f"models that are averaged must have the same labels, but {which}; train them on the same data")
    return torch.tensor([known.get(key, 0) for key in first.labels.keys])


def propensity_of_recipe(classifier: Classifier) -> tuple[float, float]:
    """A and B as the model's recipe has them, or else the usual ones."""
    recipe = tomllib.loads(classifier.recipe or "").get("evaluation", {})
    return recipe.get("propensity_a", USUAL[0]), recipe.get("propensity_b", USUAL[1])


def in_rows_of(classifier: Classifier, dataset: Dataset) -> Dataset:
    """The dataset with its labels renumbered to the model's rows, found by key; those it has retired are left out.

    A key that the model never had is refused; a label that is only named is left out, as nothing tells what it means.
    """
    labels = classifier.labels
    if labels.count() == len(labels) and labels.keys == dataset.labels.keys:
        return dataset
    known = {key: row for row, key in enumerate(labels.keys)}
    rows = np.array([known.get(key, -1) for key in dataset.labels.keys])
    missing = np.flatnonzero(rows < 0)
    if len(missing) and not (dataset.labels_are_named and len(missing) < len(rows)):
        raise BadInput(
            f"{len(missing):,} of {len(rows):,} labels of {dataset.name} are not in the model, first "
            f"{dataset.labels.keys[missing[0]]!r}; was it trained on this dataset? `umpteen labels import` adds labels "
            "by their texts, `umpteen train --from` trains them"
        )
    rows[(rows >= 0) & ~labels.active[rows]] = -1

    def in_rows(split: Split) -> Split:
        relevance, filtered = (_moved(pairs, rows, len(labels)) for pairs in (split.relevance, split.filtered))
        return Split(split.texts, relevance, filtered)

    moved: dict[str, Any] = {name: in_rows(split) for name, split in dataset.splits().items()}
    return replace(dataset, labels=labels.catalogue(), **moved)


def _moved(relevance: Relevance, rows: NDArray[np.int64], labels: int) -> Relevance:
    """The same pairs with label j in row rows[j] of so many; those in row -1 are left out."""
    matrix = relevance.matrix
    moved = rows[matrix.indices]
    kept = moved >= 0
    starts = np.concatenate([[0], np.cumsum(kept)])[matrix.indptr]
    return Relevance(csr_array((matrix.data[kept], moved[kept], starts), shape=(matrix.shape[0], labels)))
