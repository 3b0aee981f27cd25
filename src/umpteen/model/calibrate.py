"""Adds a calibration to a saved model: probabilities, thresholds and rules, learnt on texts it was not fitted on.

The texts are the validation split that training held out, or small folds, each scored by a model trained without it.
Test data is never looked at.
"""

import os
import shutil
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from umpteen import __version__
from umpteen.calibration.calibration import CONFIDENCE, Calibration, fit_calibration
from umpteen.calibration.curves import DEPTH, HeldOut
from umpteen.config.recipes import checked
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, Split, open_dataset, write_native
from umpteen.data.prepared import own_cache
from umpteen.errors import BadInput, NotSaved
from umpteen.files.storage import open_workspace
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import as_trained, in_rows_of, require_own_data
from umpteen.model.rerank import fit_ranker
from umpteen.model.train import train
from umpteen.rerank.ranker import Ranker
from umpteen.training.observer import Observer

MOST_TEXTS = 20_000  # more of them would not move the curves
FEW_TEXTS = 200
SHARE = 20  # a fold is one part in so many of the texts …
LEAST_TEXTS = 2400  # … or more, if all folds together would have fewer than these
_STARTED_FROM = "# Started from "  # as model/train.py begins the recipe of such a model
_OR_UNSEEN = "--unseen if it has seen none of them"
_OTHERWISE = (
    f"--folds 3, which trains its recipe three times more, each time without some of the texts, or {_OR_UNSEEN}"
)


def out_of_fold(classifier: Classifier, dataset: Dataset, folds: int, workspace: Path, observer: Observer) -> HeldOut:
    """The best labels of each fold's texts by a model of the same recipe, trained without them; MOST_TEXTS in all."""
    recipe, whole = _whole(classifier, dataset, folds)
    size = fold_size(len(whole.train), folds, MOST_TEXTS)  # small: a model of much less data has lower scores
    drawn = np.random.default_rng(recipe.seed).permutation(len(whole.train))
    parts = []
    for fold in range(folds):
        work, kept = workspace / f"fold-{fold}", workspace / f"fold-{fold}.npz"
        if not kept.exists():
            observer.notice(f"fold {fold + 1} of {folds}: training without {size:,} of {len(whole.train):,} texts")
            out = np.sort(drawn[fold * size : (fold + 1) * size])
            others = np.ones(len(whole.train), dtype=bool)
            others[out] = False
            part = replace(whole, train=whole.train.take(others), test=None)
            with own_cache(work / "cache"):
                _train(recipe, part, work, classifier.ranker, observer).held_out(whole.train.take(out)).save(kept)
        shutil.rmtree(work, ignore_errors=True)
        parts.append(HeldOut.load(kept))
    return HeldOut.join(parts)


def fold_size(texts: int, folds: int, most_texts: int) -> int:
    """How many texts each fold has: few, so that its model is trained on nearly all, but enough to learn from."""
    enough = max(texts // SHARE, -(-LEAST_TEXTS // folds))
    return max(1, min(texts // folds, most_texts // folds, enough))


def _whole(classifier: Classifier, dataset: Dataset, folds: int) -> tuple[RunConfig, Dataset]:
    """What the model was trained by, and on, if that can be divided into so many folds."""
    if classifier.recipe is None:
        raise BadInput("the model has no recipe.toml, so it cannot be trained anew on folds; leave --folds out")
    if classifier.recipe.startswith(_STARTED_FROM):
        origin = classifier.recipe.partition("\n")[0].removeprefix("# ")
        why = "That model may have seen the texts of every fold, so folds prove nothing"
        advice = "leave --folds out and calibrate on texts that are new to both"
        raise BadInput(f"the model's recipe says: {origin} {why}; {advice}")
    recipe = checked(tomllib.loads(classifier.recipe), origin="the model's recipe.toml")
    whole = dataset.with_validation_in_train() if recipe.data.fit_on == "train+validation" else dataset
    if not 2 <= folds <= len(whole.train):
        raise BadInput(f"{folds} folds of {len(whole.train):,} texts; give from 2 to {len(whole.train)}")
    return recipe, whole


def _train(recipe: RunConfig, dataset: Dataset, folder: Path, ranker: Ranker | None, observer: Observer) -> Classifier:
    data = folder / "data"
    if not data.exists():
        write_native(dataset, data)
    own = {"data": recipe.data.model_copy(update={"source": str(data)})}
    config = recipe.model_copy(update={**own, "training": recipe.training.model_copy(update={"trackers": ()})})
    model = train(config, output=folder / "model", resume=True, observers=[observer])
    if ranker is None:
        return model
    fit_ranker(folder / "model", open_dataset(data), ranker.settings, **ranker.chosen(), progress=observer)
    return Classifier.load(folder / "model")


def calibrate(
    model: Path,
    dataset: Dataset,
    *,
    folds: int | None = None,
    unseen: bool = False,
    coverage: float | None = None,
    confidence: float = CONFIDENCE,
    observer: Observer | None = None,
) -> Calibration:
    """Fits a calibration on held-out texts of the dataset and puts it into the model folder.

    Without folds, the texts are those that training held out for validation; with `unseen`, all of the dataset's
    training texts, which the model has never seen.
    """
    observer = observer or Observer()
    classifier = Classifier.load(model)
    if not os.access(model, os.W_OK):
        raise NotSaved(f"{model}: cannot be written, so no calibration could be kept; copy the model elsewhere first")
    if folds is not None and unseen:
        raise BadInput("--folds is for texts the model was trained on, --unseen for texts it was not; give one")
    origin: dict[str, Any] = {"source": "validation", "data": dataset.name, "fingerprint": dataset.fingerprint}
    with ExitStack() as until_written:
        if folds is not None:
            require_own_data(classifier, dataset, _OR_UNSEEN)
            _whole(classifier, dataset, folds)  # refused before unfinished folds of another number go
            identity = [classifier.home.model, dataset.fingerprint, folds, DEPTH, MOST_TEXTS, __version__]
            opened = open_workspace(Path(f"{model.resolve()}.calibration"), "umpteen calibrate", identity)
            workspace = until_written.enter_context(opened)
            held_out = out_of_fold(classifier, dataset, folds, workspace.folder, observer)
            said = f"each scored by one of {folds} models trained without it and {len(held_out) // folds - 1:,} others"
            origin["source"] = "folds"
        elif unseen:
            if classifier.data.get("fingerprint") == dataset.fingerprint:
                advice = "leave --unseen out, or give --folds 3"
                raise BadInput(f"--unseen: {dataset.name} is what the model was trained on; {advice}")
            held_out = classifier.held_out(_some(in_rows_of(classifier, dataset).with_validation_in_train().train))
            said = "none of which the model was trained on, as the caller says"
            origin["source"] = "unseen"
        else:
            split = as_trained(classifier, dataset, otherwise=_OTHERWISE).validation
            assert split is not None
            held_out, said = classifier.held_out(_some(split)), "held out of training for validation"
            origin["also_chosen_on_them"] = ["the best step of training"]  # a number or two each, not a fit
            if classifier.ranker is not None and "validation" in str(classifier.ranker.origin.get("chosen")):
                origin["also_chosen_on_them"].append("the ranker's weight and its head start of rare labels")
        if len(held_out) < FEW_TEXTS:
            observer.notice(f"warning: {len(held_out):,} held-out texts are few; probabilities will be rough")
        origin["said"] = f"{len(held_out):,} texts of {dataset.name}, {said}"
        calibration = fit_calibration(held_out, origin, coverage=coverage, confidence=confidence)
        classifier.keep_calibration(calibration)
        if folds is not None:
            workspace.remove()
    return calibration


def carry_calibration(source: Classifier, target: Path) -> None:
    """The calibration of a model trained without validation serves the one of the same recipe trained with it."""
    assert source.calibration is not None
    origin = source.calibration.origin
    said = f"{origin['said']}, scored by a model of the same settings trained without them"
    Classifier.load(target, index=False).keep_calibration(replace(source.calibration, origin={**origin, "said": said}))


def _some(split: Split) -> Split:
    if len(split) <= MOST_TEXTS:
        return split
    return split.take(np.sort(np.random.default_rng(0).choice(len(split), MOST_TEXTS, replace=False)))
