"""Evaluates saved models on a dataset, one, several beside each other, or averaged; labels are matched by key."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.calibration.calibration import Calibration, evaluate_calibration
from umpteen.data.dataset import Dataset
from umpteen.encoders.encoder import Encoder, encode_texts
from umpteen.errors import BadInput
from umpteen.evaluation.report import USUAL, USUAL_KS, Difference, Evaluator, Report, paired_differences
from umpteen.model.labels import TRAINED, LiveLabels
from umpteen.search.exact import top_k
from umpteen.search.ranking import Ranking


class Judged(Protocol):
    """What is asked of a classifier to judge it; it can so offer to judge itself."""

    query_tower: Encoder
    labels: LiveLabels
    vectors: Tensor
    hidden: NDArray[np.int64]
    has_ranker: bool
    calibration: Calibration | None
    recipe: str | None
    data: dict[str, Any]

    def rank(
        self, texts: Sequence[str], k: int, excluding: csr_array | None = None, *, trained: bool = False
    ) -> Ranking: ...


class How(TypedDict, total=False):
    """How models are judged: the cut-offs k, A and B of the propensity model, and whether as published figures are."""

    at: tuple[int, ...]
    propensity: tuple[float, float] | None
    as_published: bool


def evaluate_model(
    classifier: Judged, dataset: Dataset, split: str = "test", **how: Unpack[How]
) -> tuple[Report, Ranking]:
    """The model's report and ranking on one split of a dataset; A and B are its recipe's unless given."""
    evaluator, calibration = evaluator_of(classifier, dataset, split, **how), classifier.calibration
    asked, most = evaluator.split, max(evaluator.at)
    depth = most if calibration is None else min(calibration.depth, classifier.labels.count())
    # Whether these may be its training texts; one file is all train, and new unless it is the very same.
    is_fitted = split == "train" or (split == "validation" and classifier.data.get("trained_on") != "train")
    trained = is_fitted and (not dataset.is_one_file or dataset.fingerprint == classifier.data.get("fingerprint"))
    wide = classifier.rank(asked.texts, max(most, depth), asked.filtered.matrix, trained=trained)
    report = evaluator.report(wide.head(most))
    if calibration is not None:
        truth = asked.relevance.without(asked.filtered).matrix
        report = report.with_calibration(evaluate_calibration(calibration, wide.head(depth), truth))
    return report, wide.head(most)


def report_by_origin(
    classifier: Judged, dataset: Dataset, split: str, ranking: Ranking, **how: Unpack[How]
) -> dict[str, dict[str, Any]]:
    """A ranking evaluated by seen labels alone and by unseen ones alone, which were added or renamed after training.

    All labels compete; only what counts as right differs. Queries without a right label of the kind are left out.
    Nothing, if all labels were trained.
    """
    labels = classifier.labels
    trained = labels.origins == TRAINED
    if (trained | ~labels.active).all():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, group in (("seen", trained), ("unseen", ~trained)):
        evaluator = evaluator_of(classifier, dataset, split, counting=group, **how)
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
    classifiers: Sequence[Judged], dataset: Dataset, split: str = "test", **how: Unpack[How]
) -> tuple[list[Report], list[dict[str, Difference]]]:
    """All models' reports, and each one's but the first paired differences from the first, whose A and B all use."""
    how["propensity"] = how.get("propensity") or propensity_of_recipe(classifiers[0])
    reports = [evaluate_model(classifier, dataset, split, **how)[0] for classifier in classifiers]
    return reports, [paired_differences(other.terms, reports[0].terms) for other in reports[1:]]


def evaluate_ensemble(
    classifiers: Sequence[Judged], dataset: Dataset, split: str = "test", **how: Unpack[How]
) -> tuple[Report, Ranking]:
    """The report and ranking of several dual encoders whose scores are averaged; rows and A and B are the first's.

    The mean of inner products is the inner product of concatenated vectors, so exact search works as ever.
    """
    first = classifiers[0]
    if any(classifier.has_ranker for classifier in classifiers):
        raise BadInput("a model has a ranker, and only dual encoders can be averaged; --no-ranker leaves it out")
    labels = torch.cat([classifier.vectors[_rows_as_in(first, classifier)] for classifier in classifiers], 1)
    evaluator = evaluator_of(first, dataset, split, **how)
    queries = [encode_texts(classifier.query_tower, evaluator.split.texts) for classifier in classifiers]
    mean = torch.cat(queries, 1).float() / len(classifiers)
    ranking = top_k(mean, labels, max(evaluator.at), excluding=evaluator.split.filtered.matrix, hidden=first.hidden)
    return evaluator.report(ranking), ranking


def evaluator_of(
    classifier: Judged, dataset: Dataset, split: str, counting: NDArray[np.bool_] | None = None, **how: Unpack[How]
) -> Evaluator:
    """The evaluator of a split; `counting` says which label rows can be right, by default all."""
    dataset = in_rows_of(classifier, dataset)
    splits = dataset.splits()
    if split not in splits:
        raise BadInput(f"{dataset.name} has no {split} split; it has {' and '.join(splits)}")
    chosen = splits[split]
    if counting is not None:
        rows = np.where(counting, np.arange(len(counting)), -1)
        chosen = replace(chosen, relevance=chosen.relevance.moved(rows, len(counting)))
    a, b = how.get("propensity") or propensity_of_recipe(classifier)
    at = tuple(k for k in how.get("at", USUAL_KS) if k <= classifier.labels.count())
    return Evaluator(dataset, chosen, at=at, a=a, b=b, as_published=how.get("as_published", False))


def _rows_as_in(first: Judged, other: Judged) -> Tensor:
    """Where the other model keeps the vector of each of the first one's labels; retired ones have any."""
    both = (first.labels, other.labels)
    wanted, known = ({one.keys[row]: row for row in np.flatnonzero(one.active).tolist()} for one in both)
    missing = [key for key in wanted if key not in known]
    if missing or len(known) != len(wanted):
        which = f"{missing[0]!r} is missing" if missing else f"{len(known):,} against {len(wanted):,}"
        raise BadInput(f"models that are averaged must have the same labels, but {which}; train them on the same data")
    return torch.tensor([known.get(key, 0) for key in first.labels.keys])


def propensity_of_recipe(classifier: Judged) -> tuple[float, float]:
    """A and B as the model's recipe has them, or else the usual ones."""
    recipe = tomllib.loads(classifier.recipe or "").get("evaluation", {})
    return recipe.get("propensity_a", USUAL[0]), recipe.get("propensity_b", USUAL[1])


def in_rows_of(classifier: Judged, dataset: Dataset) -> Dataset:
    """The dataset with its labels renumbered to the model's rows, found by key; those it has retired are left out.

    A key that the model never had is refused; a label that is only named is left out, as nothing tells what it means.
    """
    labels = classifier.labels
    if labels.count() == len(labels) and [*labels.keys] == [*dataset.labels.keys]:
        return dataset
    known = {key: row for row, key in enumerate(labels.keys)}
    rows = np.array([known.get(key, -1) for key in dataset.labels.keys])
    missing = np.flatnonzero(rows < 0)
    if len(missing) and not (dataset.labels_are_named and len(missing) < len(rows)):
        lacking, first = f"{len(missing):,} of {len(rows):,} labels of {dataset.name}", dataset.labels.keys[missing[0]]
        advice = "`umpteen labels import` adds labels by their texts, `umpteen train --from` trains them"
        raise BadInput(f"{lacking} are not in the model, first {first!r}; was it trained on this dataset? {advice}")
    rows[(rows >= 0) & ~labels.active[rows]] = -1
    moved: dict[str, Any] = {name: split.moved(rows, len(labels)) for name, split in dataset.splits().items()}
    return replace(dataset, labels=labels.catalogue(), **moved)


def as_trained(classifier: Judged, dataset: Dataset, *, otherwise: str | None) -> Dataset:
    """The dataset split as the model's recipe split it, its labels in the model's rows.

    Unless it has a validation split that the model has not seen, `otherwise` is what the caller can give instead; None:
    it is not needed.
    """
    recipe = tomllib.loads(classifier.recipe or "")
    data = recipe.get("data", {})
    is_held_out = data.get("fit_on") == "train"
    if otherwise is not None:
        if not is_held_out:
            saw = "was fitted on validation, too" if data else "does not say what it was trained on"
            raise BadInput(f"the model {saw}, so there are no texts that it has not seen; give {otherwise}")
        require_own_data(classifier, dataset, otherwise)
    dataset = in_rows_of(classifier, dataset)
    if is_held_out:
        return dataset.with_validation(data["validation_fraction"], recipe["seed"])
    return dataset.with_validation_in_train()


def require_own_data(classifier: Judged, dataset: Dataset, otherwise: str) -> None:
    """Refuses data that the model was not trained on."""
    if classifier.data.get("fingerprint") != dataset.fingerprint:
        other = f"{dataset.name} is not what the model was trained on ({classifier.data.get('name')})"
        raise BadInput(f"{other}, so it is unknown which of its texts are new to it; give that dataset, or {otherwise}")
