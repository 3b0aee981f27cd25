"""Adds a ranker to a saved model: fitted on what the model was trained on, its weights chosen on validation.

While it is fitted, MODEL.ranker holds what is done; the ranker becomes a part of the model whole, at the end.
"""

import itertools
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from umpteen import __version__
from umpteen.data.dataset import Dataset, Split
from umpteen.data.texts import Texts
from umpteen.encoders.encoder import encode_tokens, tokens_for
from umpteen.files.progress import Advance, Progress, silent
from umpteen.files.storage import open_workspace
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import as_trained, evaluator_of
from umpteen.model.folder import CALIBRATION, RANKER, ModelFolder
from umpteen.model.labels import TRAINED
from umpteen.model.writing import standing_in
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.fit import TEXTS_AT_A_TIME, Samples, fit_weights
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import LATER, Ranker, fuse
from umpteen.search.exact import top_k

RULE = ("P@1", "P@5", "PSP@5")  # what has the greatest mean of these on validation is taken
# The last ones are for vectors without length 1, whose scores are many times those of the ranker.
WEIGHTS = (*(step / 10 for step in range(1, 10)), 0.95, 0.98, 1.0)
RARES = (0.0, 0.25, 0.5, 0.75, 1.0)
VOTES = (0.2, 0.4, 0.6, 0.8)
NEIGHBOURS, SIMILARITIES = (10, 20, 50), (0.03, 0.05, 0.1)
USUAL_VOTES, USUAL_RARE = 0.5, 0.5  # where there is no validation to choose them on
_GIVE_WEIGHT = "--weight, as found for a model that was fitted on train only"


class Trial(NamedTuple):
    """One way to put labels in order, on validation."""

    weight: float
    votes: float
    rare: float
    neighbours: int
    similarity: float
    metrics: dict[str, float]  # percent

    @property
    def mean(self) -> float:
        return sum(self.metrics.values()) / len(self.metrics)


def fit_ranker(
    model: Path,
    dataset: Dataset,
    settings: RankerSettings,
    *,
    weight: float | None = None,
    votes: float | None = None,
    rare: float | None = None,
    jobs: int = 1,
    progress: Progress = silent,
) -> tuple[Ranker, list[Trial]]:
    """Fits a ranker and puts it into the model folder; returns it with what was tried on validation.

    With a weight nothing is tried, and weights and settings are taken as given: the only way for a model that was
    fitted on validation, too.
    """
    classifier = Classifier.load(model, ranker=False, index=False)
    settings = replace(settings, candidates=min(settings.candidates, classifier.labels.count()))
    dataset = as_trained(classifier, dataset, otherwise=_GIVE_WEIGHT if weight is None else None)
    # What was begun with other settings, data or model is discarded.
    stands = (standing_in(model) or ())[:2]  # whatever it learns meanwhile
    identity = [stands, dataset.fingerprint, len(dataset.train), asdict(settings), __version__]
    with open_workspace(Path(f"{model.resolve()}.ranker"), "umpteen rerank fit", identity) as workspace:
        ranker = _fit(classifier, dataset.train, Samples(workspace.folder), settings, jobs, progress)
        trials: list[Trial] = []
        both = settings.sparse and settings.memory
        share = (USUAL_VOTES if votes is None else votes) if both else float(settings.memory)
        start = USUAL_RARE if rare is None else rare
        ranker = replace(ranker, weight=weight or 0.0, votes=share, rare=start, origin={"chosen": "by hand"})
        if weight is None:
            trials = try_on_validation(classifier, ranker, dataset, RARES if rare is None else (rare,), votes)
            best = max(trials, key=lambda trial: trial.mean)  # of equal ones the first
            origin: dict[str, Any] = {"chosen": f"by the mean of {', '.join(best.metrics)} on validation"}
            for name, trial in (("validation", best), ("without_ranker", trials[0])):
                origin[name] = {metric: round(value, 2) for metric, value in trial.metrics.items()}
            settings = replace(settings, neighbours=best.neighbours, similarity=best.similarity)
            if both and best.votes == 0:  # nobody would ask the memory
                ranker, settings = replace(ranker, memory=None), replace(settings, memory=False)
            ranker = replace(ranker, weight=best.weight, votes=best.votes, rare=best.rare)
            ranker = replace(ranker, settings=settings, origin=origin)
        if ranker.memory is not None and len(ranker.memory.vectors) >= settings.index_from:
            memory = ranker.memory.with_index(settings.neighbours, partial(progress, "indexing texts"))
            ranker = replace(ranker, memory=memory)
        if weight is None:  # on validation, with intervals: it answers so from now on
            evaluator = evaluator_of(classifier, dataset, "validation")
            split, width = evaluator.split, max(*evaluator.at, settings.candidates)
            dense = classifier.rank(split.texts, width, split.filtered.matrix, examples=False)
            ranking = ranker.rerank(split.texts, _vectors(classifier, split.texts), dense)
            ranker = replace(ranker, report=evaluator.report(ranking.head(max(evaluator.at))).to_dict())
        with classifier.home.adding(RANKER) as part:
            ranker.save(part.folder)
            part.labels_version, part.about = classifier.version, ranker.describe()
            part.replaces = (CALIBRATION,)  # scores are others from now on
        workspace.remove()
    return ranker, trials


def _fit(
    classifier: Classifier, train: Split, samples: Samples, settings: RankerSettings, jobs: int, told: Progress
) -> Ranker:
    features, count = TextFeatures.fit(train.texts, settings), len(classifier.labels)
    relevant = train.relevance.without(train.filtered).matrix
    remembered = _vectors(classifier, train.texts, partial(told, "remembering texts")) if settings.memory else None
    weights: csr_array = csr_array(np.zeros((0, count), dtype=np.float32))
    intercepts = np.zeros(count, dtype=np.float32)
    if settings.sparse:
        samples.keep_matrix("features", features.transform(train.texts))
        samples.keep_matrix("relevant", relevant)
        _retrieve(classifier, train, remembered, samples, settings, told)
        fitting = partial(told, "fitting labels")
        weights, intercepts = fit_weights(samples, count, settings, jobs=jobs, progress=fitting)
    memory = None
    if remembered is not None:
        memory = Memory.of(remembered, relevant, train.texts if settings.keep_texts else None)
    texts = np.bincount(relevant.indices[relevant.data > 0], minlength=count).astype(np.int64)
    texts[(texts == 0) & (classifier.labels.origins != TRAINED)] = LATER
    return Ranker(features, weights, intercepts, texts, settings, memory)


def _vectors(classifier: Classifier, texts: Texts, progress: Advance = silent) -> Tensor:
    tower = classifier.towers.query
    return encode_tokens(tower, tokens_for(tower, texts), progress=progress).float().cpu()


def remove_ranker(model: Path) -> None:
    """The model folder without its ranker, and without the calibration of its scores."""
    ModelFolder(model).drop(RANKER, CALIBRATION)


def try_on_validation(
    classifier: Classifier, ranker: Ranker, dataset: Dataset, rares: tuple[float, ...], votes: float | None
) -> list[Trial]:
    """What each way would give on validation; the first is the dual encoder alone.

    N-grams and memory are first tried each by itself, then together with what was best for each; with `votes` given,
    only ways that have these count.
    """
    evaluator = evaluator_of(classifier, dataset, "validation", at=(1, 5))
    evaluator.require_positives()
    split = evaluator.split
    vectors = _vectors(classifier, split.texts)
    width = max(*evaluator.at, ranker.settings.candidates)
    dense = top_k(vectors, classifier.vectors, width, excluding=split.filtered.matrix, hidden=classifier.hidden)
    head = dense.rows[:, : ranker.settings.candidates]
    margins, memory = ranker.margins(split.texts, head), ranker.memory
    nearest = None if memory is None else memory.nearest(vectors, max(NEIGHBOURS))

    def tried(neighbours: int, similarity: float, ways: Iterable[tuple[float, float, float]]) -> list[Trial]:
        """Each (weight, votes, rare) with so many neighbours."""
        votes = None
        if memory is not None and nearest is not None:
            votes = memory.votes(nearest.head(min(neighbours, nearest.width)), head, similarity)
        found = []
        for weight, share, rare in ways:
            second = replace(ranker, votes=share, rare=rare).scores(margins, votes, head)
            metrics = evaluator.report(fuse(dense, second, weight).head(max(evaluator.at)), bootstrap=0).metrics
            figures = {name: metrics[name] for name in RULE if name in metrics}
            found.append(Trial(weight, share, rare, neighbours, similarity, figures))
        return found

    usual = ranker.settings.neighbours, ranker.settings.similarity
    trials = tried(*usual, [(0.0, float(not ranker.settings.sparse), 0.0)])
    rare, near = rares[0], usual
    if ranker.settings.sparse:
        trials += tried(*usual, ((weight, 0.0, rare) for rare in rares for weight in WEIGHTS))
        rare = max(trials, key=lambda trial: trial.mean).rare
    if memory is not None:
        alone = [
            trial
            for near in itertools.product(NEIGHBOURS, SIMILARITIES)
            for trial in tried(*near, ((weight, 1.0, rare) for weight in WEIGHTS[::2]))
        ]
        best = max(alone, key=lambda trial: trial.mean)
        trials, near = trials + alone, (best.neighbours, best.similarity)
    if memory is not None and ranker.settings.sparse:
        shares = VOTES if votes is None else (votes,)
        together = tried(*near, ((weight, share, rare) for share in shares for weight in WEIGHTS))
        trials = [trials[0], *together] if votes is not None else trials + together
    return trials


def _retrieve(
    classifier: Classifier,
    train: Split,
    vectors: Tensor | None,
    samples: Samples,
    settings: RankerSettings,
    told: Progress,
) -> None:
    """The dual encoder's first labels of every training text, block by block; blocks that are there are kept.

    The texts' vectors are computed block by block, too, unless they are given.
    """
    for start in range(0, len(train), TEXTS_AT_A_TIME):
        stop = min(start + TEXTS_AT_A_TIME, len(train))
        if not samples.candidates(start).exists():
            some, count = train.take(np.arange(start, stop)), settings.candidates
            asked = _vectors(classifier, some.texts) if vectors is None else vectors[start:stop]
            filtered, hidden = some.filtered.matrix, classifier.hidden
            found = top_k(asked, classifier.vectors, count, excluding=filtered, hidden=hidden)
            samples.keep_candidates(start, found.rows)
        told("retrieving candidates", stop, len(train))
