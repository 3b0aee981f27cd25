"""Adds a ranker to a saved model: fitted on what the model was trained on, its weights chosen on validation.

While it is fitted, MODEL.ranker holds what is done; the ranker becomes a part of the model whole, at the end.
"""

import itertools
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.data.dataset import Dataset, Split
from umpteen.encoders.encoder import encode_tokens, tokens_for
from umpteen.errors import BadInput
from umpteen.evaluation.report import Evaluator
from umpteen.files.progress import Advance, Progress, named
from umpteen.files.storage import open_workspace, write_atomically
from umpteen.model.classifier import RANKER, Classifier
from umpteen.model.evaluate import in_rows_of, propensity_of_recipe
from umpteen.model.folder import CALIBRATION, CARD, ModelFolder
from umpteen.model.labels import TRAINED
from umpteen.model.writing import standing_in, with_ranker
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.fit import TEXTS_AT_A_TIME, Samples, fit_weights
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import LATER, Ranker, fuse
from umpteen.search.ranking import top_k
from umpteen.version import __version__

RULE = ("P@1", "P@5", "PSP@5")  # what has the greatest mean of these on validation is taken
# The last ones are for vectors without length 1, whose scores are many times those of the ranker.
WEIGHTS = (*(step / 10 for step in range(1, 10)), 0.95, 0.98, 1.0)
RARES = (0.0, 0.25, 0.5, 0.75, 1.0)
VOTES = (0.2, 0.4, 0.6, 0.8)
NEIGHBOURS, SIMILARITIES = (10, 20, 50), (0.03, 0.05, 0.1)
USUAL_VOTES, USUAL_RARE = 0.5, 0.5  # where there is no validation to choose them on


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
    progress: Progress | None = None,
) -> tuple[Ranker, list[Trial]]:
    """Fits a ranker and puts it into the model folder; returns it with what was tried on validation.

    With a weight nothing is tried, and weights and settings are taken as given: the only way for a model that was
    fitted on validation, too.
    """
    classifier = Classifier.load(model, ranker=False, index=False)
    settings = replace(settings, candidates=min(settings.candidates, classifier.labels.count()))
    dataset = _as_the_model_saw_it(classifier, dataset, needs_validation=weight is None)
    # What was begun with other settings, data or model is discarded.
    identity = [standing_in(model), dataset.fingerprint, len(dataset.train), settings.to_dict(), __version__]
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
            ranker = _as_tried(replace(ranker, origin=origin), best)
            ranker = replace(ranker, report=_report(classifier, ranker, dataset))
        put_ranker(classifier, ranker)
        workspace.remove()
    return ranker, trials


def _as_tried(ranker: Ranker, trial: Trial) -> Ranker:
    memory = ranker.memory
    if memory is not None:
        memory = replace(memory, neighbours=trial.neighbours, temperature=trial.similarity)
    settings = replace(ranker.settings, neighbours=trial.neighbours, similarity=trial.similarity)
    if memory is not None and trial.votes == 0 and settings.sparse:  # nobody would ask it
        memory, settings = None, replace(settings, memory=False)
    return replace(ranker, weight=trial.weight, votes=trial.votes, rare=trial.rare, memory=memory, settings=settings)


def _fit(
    classifier: Classifier, train: Split, samples: Samples, settings: RankerSettings, jobs: int, told: Progress | None
) -> Ranker:
    features, count = TextFeatures.fit(train.texts, settings), len(classifier.labels)
    relevant = train.relevance.without(train.filtered).matrix
    weights: csr_array = csr_array(np.zeros((0, count), dtype=np.float32))
    intercepts = np.zeros(count, dtype=np.float32)
    if settings.sparse:
        samples.keep_matrix("features", features.transform(train.texts))
        samples.keep_matrix("relevant", relevant)
        _retrieve(classifier, train, samples, settings, told)
        advance = named(told, "fitting labels")
        weights, intercepts = fit_weights(samples, count, settings, jobs=jobs, progress=advance)
    memory = None
    if settings.memory:
        vectors = _vectors(classifier, train, named(told, "remembering texts"))
        memory = replace(Memory.of(vectors, relevant), neighbours=settings.neighbours, temperature=settings.similarity)
    texts = np.bincount(relevant.indices[relevant.data > 0], minlength=count).astype(np.int64)
    texts[(texts == 0) & (classifier.labels.origins() != TRAINED)] = LATER
    return Ranker(features, weights, intercepts, texts, settings, memory)


def _report(classifier: Classifier, ranker: Ranker, dataset: Dataset) -> dict[str, Any]:
    """The model with this ranker on validation, with intervals: it answers so from now on."""
    assert dataset.validation is not None
    a, b = propensity_of_recipe(classifier)
    evaluator = Evaluator(dataset, dataset.validation, a=a, b=b)
    query, vectors, hidden = classifier.towers.query, classifier.vectors, classifier.hidden
    ranking = evaluator.rank(query, vectors, ranker=ranker, head_start=classifier.head_start, hidden=hidden)
    return evaluator.report(ranking).to_dict()


def _vectors(classifier: Classifier, split: Split, progress: Advance | None = None) -> Tensor:
    tower = classifier.towers.query
    return encode_tokens(tower, tokens_for(tower, split.texts), progress=progress).float().cpu()


def put_ranker(classifier: Classifier, ranker: Ranker) -> None:
    """The ranker counts from now on; scores are others then, so a calibration holds no more."""
    folder = classifier.folder
    assert folder is not None
    with folder.adding(RANKER) as part:
        ranker.save(part.folder)
        part.labels_version, part.about, part.replaces = classifier.version, ranker.describe(), (CALIBRATION,)
    _describe(folder, ranker.describe())


def remove_ranker(model: Path) -> None:
    """The model folder without its ranker, and without the calibration of its scores."""
    folder = ModelFolder(model)
    folder.drop(RANKER, CALIBRATION)
    _describe(folder, None)


def _describe(folder: ModelFolder, ranker: dict[str, Any] | None) -> None:
    card = folder.path / CARD
    if card.is_file():
        write_atomically(card, with_ranker(card.read_text("utf-8", errors="replace"), ranker))


def try_on_validation(
    classifier: Classifier,
    ranker: Ranker,
    dataset: Dataset,
    rares: tuple[float, ...] = RARES,
    votes: float | None = None,
) -> list[Trial]:
    """What each way would give on validation; the first is the dual encoder alone.

    N-grams and memory are first tried each by itself, then together with what was best for each; with `votes` given,
    only ways that have these count.
    """
    assert dataset.validation is not None
    split = dataset.validation
    a, b = propensity_of_recipe(classifier)
    evaluator = Evaluator(dataset, split, at=(1, 5), a=a, b=b)
    evaluator.require_positives()
    vectors = _vectors(classifier, split)
    width = max(*evaluator.at, ranker.settings.candidates)
    dense = top_k(vectors, classifier.vectors, width, excluding=split.filtered.matrix, hidden=classifier.hidden)
    head = dense.rows[:, : ranker.settings.candidates]
    margins, memory = ranker.margins(split.texts, head), ranker.memory
    nearest = None if memory is None else replace(memory, neighbours=max(NEIGHBOURS)).nearest(vectors)

    def tried(neighbours: int, similarity: float, ways: Iterable[tuple[float, float, float]]) -> list[Trial]:
        """Each (weight, votes, rare) with so many neighbours."""
        one = Trial(0, 0, 0, neighbours, similarity, {})
        votes = None
        if memory is not None and nearest is not None:
            votes = replace(memory, neighbours=neighbours, temperature=similarity).votes(nearest, head)
        found = []
        for weight, share, rare in ways:
            second = replace(ranker, votes=share, rare=rare).scores(margins, votes, head)
            metrics = evaluator.report(fuse(dense, second, weight).head(max(evaluator.at)), bootstrap=0).metrics
            figures = {name: metrics[name] for name in RULE if name in metrics}
            found.append(one._replace(weight=weight, votes=share, rare=rare, metrics=figures))
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


def _as_the_model_saw_it(classifier: Classifier, dataset: Dataset, *, needs_validation: bool) -> Dataset:
    """The dataset split as the model's recipe split it, its labels in the model's rows."""
    recipe = tomllib.loads(classifier.recipe or "")
    data = recipe.get("data", {})
    held_out = data.get("fit_on") == "train"
    if needs_validation and not held_out:
        saw = "was fitted on validation, too" if data else "does not say what it was trained on"
        raise BadInput(
            f"the model {saw}, so nothing is left to choose the ranker's weight on; "
            "give --weight, as found for a model that was fitted on train only"
        )
    if needs_validation and classifier.data.get("fingerprint") != dataset.fingerprint:
        raise BadInput(
            f"{dataset.name} is not what the model was trained on ({classifier.data.get('name')}), so it is unknown "
            "which of its queries the model has not seen; give that dataset, or --weight"
        )
    dataset = in_rows_of(classifier, dataset)
    if held_out:
        return dataset.with_validation(data["validation_fraction"], recipe["seed"])
    return dataset.with_validation_in_train()


def _retrieve(
    classifier: Classifier, train: Split, samples: Samples, settings: RankerSettings, progress: Progress | None
) -> None:
    """The dual encoder's first labels of every training text, block by block; blocks that are there are kept."""
    for start in range(0, len(train), TEXTS_AT_A_TIME):
        stop = min(start + TEXTS_AT_A_TIME, len(train))
        if not samples.has_candidates(start):
            tower = classifier.towers.query
            vectors = encode_tokens(tower, tokens_for(tower, train.texts[start:stop]))
            filtered = train.filtered.take(np.arange(start, stop)).matrix
            found = top_k(
                vectors, classifier.vectors, settings.candidates, excluding=filtered, hidden=classifier.hidden
            )
            samples.keep_candidates(start, found.rows)
        if progress is not None:
            progress("retrieving candidates", stop, len(train))
