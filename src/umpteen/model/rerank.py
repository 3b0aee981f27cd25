"""Adds a ranker to a saved model: fitted on what the model was trained on, its weight chosen on validation.

While it is fitted, MODEL.ranker holds what is done; the ranker becomes a part of the model whole, at the end.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from umpteen.data.dataset import Dataset, Split
from umpteen.encoders.encoder import encode_texts
from umpteen.errors import BadInput
from umpteen.evaluation.evaluate import Evaluator
from umpteen.files.progress import Progress, named
from umpteen.files.storage import open_workspace, write_atomically
from umpteen.model.classifier import RANKER, Classifier
from umpteen.model.evaluate import in_rows_of, propensity_of_recipe
from umpteen.model.folder import CALIBRATION, CARD, ModelFolder
from umpteen.model.labels import TRAINED
from umpteen.model.writing import standing_in, with_ranker
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.fit import TEXTS_AT_A_TIME, Samples, fit_weights
from umpteen.rerank.ranker import LATER, Ranker, fuse
from umpteen.search.ranking import top_k
from umpteen.version import __version__

RULE = ("P@1", "P@5", "PSP@5")  # what has the greatest mean of these on validation is taken
# The last ones are for vectors without length 1, whose scores are many times those of the ranker.
WEIGHTS = (*(step / 10 for step in range(1, 10)), 0.95, 0.98, 1.0)
RARES = (0.0, 0.25, 0.5, 0.75, 1.0)
USUAL_RARE = 0.5  # where there is no validation to choose it on


class Trial(NamedTuple):
    """One weight and one head start of rare labels on validation."""

    weight: float
    rare: float
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
    rare: float | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[Ranker, list[Trial]]:
    """Fits a ranker and puts it into the model folder; returns it with what was tried on validation.

    With a weight nothing is tried, and weight and rare are taken as given: the only way for a model that was fitted on
    validation, too.
    """
    classifier = Classifier.load(model, ranker=False, index=False)
    count = classifier.labels.count()
    if settings.candidates > count:
        raise BadInput(
            f"{settings.candidates:,} candidates were asked for, but the model has {count:,} labels; "
            f"give --candidates {count} or fewer"
        )
    dataset = _as_the_model_saw_it(classifier, dataset, needs_validation=weight is None)
    # What was begun with other settings, data or model is discarded.
    identity = [standing_in(model), dataset.fingerprint, len(dataset.train), settings.to_dict(), __version__]
    with open_workspace(Path(f"{model.resolve()}.ranker"), "umpteen ranker fit", identity) as workspace:
        ranker = _fit(classifier, dataset.train, Samples(workspace.folder), settings, jobs, progress)
        trials: list[Trial] = []
        origin: dict[str, Any] = {"chosen": "by hand"}
        if weight is None:
            trials = try_on_validation(classifier, ranker, dataset, RARES if rare is None else (rare,))
            best = max(trials, key=lambda trial: trial.mean)  # of equal ones the first
            weight, rare = best.weight, best.rare
            origin = {"chosen": f"by the mean of {', '.join(best.metrics)} on validation"}
            for name, trial in (("validation", best), ("without_ranker", trials[0])):
                origin[name] = {metric: round(value, 2) for metric, value in trial.metrics.items()}
        ranker = replace(ranker, weight=weight, rare=USUAL_RARE if rare is None else rare, origin=origin)
        put_ranker(classifier, ranker)
        workspace.remove()
    return ranker, trials


def _fit(
    classifier: Classifier, train: Split, samples: Samples, settings: RankerSettings, jobs: int, told: Progress | None
) -> Ranker:
    features = TextFeatures.fit(train.texts, settings)
    relevant = train.relevance.without(train.filtered).matrix
    samples.keep_matrix("features", features.transform(train.texts))
    samples.keep_matrix("relevant", relevant)
    _retrieve(classifier, train, samples, settings, told)
    count, advance = len(classifier.labels), named(told, "fitting labels")
    weights, intercepts = fit_weights(samples, count, settings, jobs=jobs, progress=advance)
    texts = np.bincount(relevant.indices[relevant.data > 0], minlength=count).astype(np.int64)
    texts[(texts == 0) & (classifier.labels.origins() != TRAINED)] = LATER
    return Ranker(features, weights, intercepts, texts, settings)


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


def try_on_validation(classifier: Classifier, ranker: Ranker, dataset: Dataset, rares: Iterable[float]) -> list[Trial]:
    """What each weight and head start would give on validation; the first is the dual encoder alone."""
    assert dataset.validation is not None
    split = dataset.validation
    a, b = propensity_of_recipe(classifier)
    evaluator = Evaluator(dataset, split, at=(1, 5), a=a, b=b)
    evaluator.require_positives()
    vectors = encode_texts(classifier.towers.query, split.texts)
    width = max(*evaluator.at, ranker.settings.candidates)
    dense = top_k(vectors, classifier.vectors, width, excluding=split.filtered.matrix, hidden=classifier.hidden)
    head = dense.rows[:, : ranker.settings.candidates]
    margins = ranker.margins(split.texts, vectors.cpu().numpy(), head)

    def trial(weight: float, rare: float) -> Trial:
        fused = fuse(dense, replace(ranker, rare=rare).scores(margins, head), weight)
        metrics = evaluator.report(fused.head(max(evaluator.at)), bootstrap=0).metrics
        return Trial(weight, rare, {name: metrics[name] for name in RULE if name in metrics})

    return [trial(0.0, 0.0), *(trial(weight, rare) for rare in rares for weight in WEIGHTS)]


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
            vectors = encode_texts(classifier.towers.query, train.texts[start:stop])
            filtered = train.filtered.take(np.arange(start, stop)).matrix
            found = top_k(
                vectors, classifier.vectors, settings.candidates, excluding=filtered, hidden=classifier.hidden
            )
            samples.keep_candidates(start, found.rows, vectors.cpu().numpy() if settings.dense else None)
        if progress is not None:
            progress("retrieving candidates", stop, len(train))
