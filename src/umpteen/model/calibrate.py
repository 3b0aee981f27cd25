"""Adds a calibration to a saved model: probabilities, thresholds and rules, learnt on texts it was not fitted on.

The texts are the validation split that training held out, or small folds, each scored by a model trained without it.
Test data is never looked at.
"""

import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.calibration import Calibration, fit_calibration, reliabilities
from umpteen.calibration.curves import HeldOut
from umpteen.config.recipes import checked
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, Split, open_dataset, write_native
from umpteen.errors import BadInput, NotSaved
from umpteen.evaluation.figures import Curve, Lines, draw
from umpteen.files.progress import Notice, Progress
from umpteen.files.storage import open_workspace
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import in_rows_of
from umpteen.model.folder import CALIBRATION, RANKER
from umpteen.model.rerank import fit_ranker
from umpteen.model.train import train
from umpteen.rerank.ranker import Ranker
from umpteen.training.observer import Observer, Silence
from umpteen.version import __version__

DEPTH = 100  # labels of a text that are looked at
MOST_TEXTS = 20_000  # more of them would not move the curves
FEW_TEXTS = 200
FIGURE = "reliability"
SHARE = 20  # a fold is one part in so many of the texts …
LEAST_TEXTS = 2400  # … or more, if all folds together would have fewer than these
_STARTED_FROM = "# Started from "  # as model/train.py begins the recipe of such a model


@contextmanager
def out_of_fold(
    classifier: Classifier,
    checksum: str,
    dataset: Dataset,
    folds: int,
    workspace: Path,
    observer: Observer,
    progress: Progress | None,
) -> Iterator[HeldOut]:
    """The best labels of texts of each fold by a model whose training left the fold out; MOST_TEXTS in all.

    The models are trained by the classifier's recipe, and get a ranker of the same weight if it has one. Folds are
    small: a model of much less data has lower scores than the one to calibrate, and what is learnt from them would not
    hold for it. What is done lies in a workspace until the block has ended well, so that a killed call goes on.
    """
    recipe = _recipe_of(classifier)
    whole = dataset.with_validation_in_train() if recipe.data.fit_on == "train+validation" else dataset
    if not 2 <= folds <= len(whole.train):
        raise BadInput(f"{folds} folds of {len(whole.train):,} texts; give from 2 to {len(whole.train)}")
    identity = [checksum, dataset.fingerprint, folds, DEPTH, MOST_TEXTS, __version__]
    with open_workspace(workspace, "umpteen calibrate", identity) as opened:
        size = fold_size(len(whole.train), folds, MOST_TEXTS)
        drawn = np.random.default_rng(recipe.seed).permutation(len(whole.train))
        parts = []
        for fold in range(folds):
            kept = workspace / f"fold-{fold}.npz"
            out = np.sort(drawn[fold * size : (fold + 1) * size])
            if not kept.exists():
                observer.notice(f"fold {fold + 1} of {folds}: training without {size:,} of {len(whole.train):,} texts")
                others = np.ones(len(whole.train), dtype=bool)
                others[out] = False
                part = replace(whole, train=whole.train.take(others), test=None)
                with _own_cache(workspace / f"fold-{fold}" / "cache"):
                    model = _train(recipe, part, workspace / f"fold-{fold}", classifier.ranker, observer, progress)
                scores_of(model, whole.train.take(out), DEPTH).save(kept)
            shutil.rmtree(workspace / f"fold-{fold}", ignore_errors=True)
            parts.append(HeldOut.load(kept))
        yield HeldOut.join(parts)
        opened.remove()


def fold_size(texts: int, folds: int, most_texts: int) -> int:
    """How many texts each fold has: few, so that its model is trained on nearly all, but enough to learn from."""
    enough = max(texts // SHARE, -(-LEAST_TEXTS // folds))
    return max(1, min(texts // folds, most_texts // folds, enough))


def scores_of(classifier: Classifier, split: Split, depth: int) -> HeldOut:
    """A classifier's best labels of a split's texts, pairs to ignore left out, and which of them are right."""
    ranking = classifier.rank(split.texts, min(depth, classifier.labels.count()), excluding=split.filtered.matrix)
    return HeldOut.of(ranking, split.relevance.without(split.filtered).matrix)


def _recipe_of(classifier: Classifier) -> RunConfig:
    if classifier.recipe is None:
        raise BadInput("the model has no recipe.toml, so it cannot be trained anew on folds; leave --folds out")
    if classifier.recipe.startswith(_STARTED_FROM):
        origin = classifier.recipe.partition("\n")[0].removeprefix("# ")
        raise BadInput(
            f"the model's recipe says: {origin} That model may have seen the texts of every fold, so folds prove "
            "nothing; leave --folds out and calibrate on texts that are new to both"
        )
    return checked(tomllib.loads(classifier.recipe), origin="the model's recipe.toml")


@contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    """Binary copies of a fold's data go where the fold goes, not into the user's cache."""
    before = os.environ.copy()
    os.environ["UMPTEEN_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["UMPTEEN_CACHE"]
        os.environ.update({name: value for name, value in before.items() if name == "UMPTEEN_CACHE"})


def _train(
    recipe: RunConfig,
    dataset: Dataset,
    folder: Path,
    ranker: Ranker | None,
    observer: Observer | None,
    progress: Progress | None,
) -> Classifier:
    data = folder / "data"
    if not data.exists():
        write_native(dataset, data)
    settings = recipe.model_dump(mode="json", exclude_none=True)
    settings["data"]["source"] = str(data)
    settings["training"]["tensorboard"] = False
    config = checked(settings, origin="the model's recipe.toml")
    model = train(config, output=folder / "model", resume=True, observer=observer, progress=progress)
    if ranker is None:
        return model
    weight, votes, rare = ranker.weight, ranker.votes, ranker.rare
    fit_ranker(
        folder / "model", open_dataset(data), ranker.settings, weight=weight, votes=votes, rare=rare, progress=progress
    )
    return Classifier.load(folder / "model")


def calibrate(
    model: Path,
    dataset: Dataset,
    *,
    folds: int | None = None,
    unseen: bool = False,
    coverage: float | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Fits a calibration on held-out texts of the dataset and puts it into the model folder.

    Without folds, the texts are those that training held out for validation; with `unseen`, all of the dataset's
    training texts, which the model has never seen.
    """
    observer = observer or Silence()
    classifier = Classifier.load(model)
    folder = classifier.folder
    assert folder is not None
    if not os.access(model, os.W_OK):
        raise NotSaved(f"{model}: cannot be written, so no calibration could be kept; copy the model elsewhere first")
    workspace = Path(f"{model.resolve()}.calibration")
    with ExitStack() as until_written:
        if folds is not None:
            if unseen:
                raise BadInput("--folds is for texts the model was trained on, --unseen for texts it was not; give one")
            _require_own_data(classifier, dataset)
            scored = out_of_fold(classifier, folder.model, dataset, folds, workspace, observer, progress)
            held_out = until_written.enter_context(scored)
            said = f"each scored by one of {folds} models trained without it and {len(held_out) // folds - 1:,} others"
            origin = _origin(dataset, held_out, "folds", said)
        elif unseen:
            split = in_rows_of(classifier, dataset).with_validation_in_train().train
            held_out = scores_of(classifier, _some(split), DEPTH)
            origin = _origin(dataset, held_out, "unseen", "none of which the model was trained on, as the caller says")
        else:
            held_out = scores_of(classifier, _some(_validation(classifier, dataset)), DEPTH)
            origin = _origin(dataset, held_out, "validation", "held out of training for validation")
            origin["also_chosen_on_them"] = ["the best step of training"]  # a number or two each, not a fit
            if classifier.ranker is not None and "validation" in str(classifier.ranker.origin.get("chosen")):
                origin["also_chosen_on_them"].append("the ranker's weight and its head start of rare labels")
        if len(held_out) < FEW_TEXTS:
            observer.notice(f"warning: {len(held_out):,} held-out texts are few; probabilities will be rough")
        calibration, probabilities = fit_calibration(held_out, origin, coverage=coverage)
        with folder.adding(CALIBRATION) as part:
            calibration.save(part.folder)
            _draw(part.folder / FIGURE, calibration, held_out, probabilities, observer.notice)
            figures = calibration.figures
            part.about = {"held_out": calibration.origin, "ece": figures["ece"], "ece_raw": figures["ece_raw"]}
            part.labels_version, part.needs = classifier.version, {RANKER: classifier.parts.get(RANKER)}
    return calibration


def carry_calibration(source: Classifier, target: Path) -> None:
    """The calibration of a model trained without validation serves the one of the same recipe trained with it."""
    part, folder = source.parts[CALIBRATION], source.folder
    assert folder is not None
    classifier = Classifier.load(target, index=False)
    assert classifier.folder is not None
    with classifier.folder.adding(CALIBRATION) as new:
        for name in part.files:
            shutil.copyfile(folder.part_path(part) / name, new.folder / name)
        about = part.about["held_out"]
        said = f"{about['said']}, scored by a model of the same settings trained without them"
        new.about = {**part.about, "held_out": {**about, "said": said}}
        new.labels_version, new.needs = classifier.version, {RANKER: classifier.parts.get(RANKER)}


def _validation(classifier: Classifier, dataset: Dataset) -> Split:
    """The texts that the model's training held out, labels in the model's rows."""
    recipe = tomllib.loads(classifier.recipe or "")
    data = recipe.get("data", {})
    if data.get("fit_on") != "train":
        saw = "was fitted on validation, too" if data else "does not say what it was trained on"
        raise BadInput(
            f"the model {saw}, so no texts are left to calibrate on; --folds 3 trains its recipe three times more, "
            "each time without some of the texts, or give a dataset the model has never seen, and --unseen"
        )
    _require_own_data(classifier, dataset)
    held_out = in_rows_of(classifier, dataset).with_validation(data["validation_fraction"], recipe["seed"]).validation
    assert held_out is not None
    return held_out


def _require_own_data(classifier: Classifier, dataset: Dataset) -> None:
    if classifier.data.get("fingerprint") != dataset.fingerprint:
        raise BadInput(
            f"{dataset.name} is not what the model was trained on ({classifier.data.get('name')}), so it is unknown "
            "which of its texts the model has not seen; give that dataset, or --unseen if it has seen none"
        )


def _some(split: Split) -> Split:
    if len(split) <= MOST_TEXTS:
        return split
    return split.take(np.sort(np.random.default_rng(0).choice(len(split), MOST_TEXTS, replace=False)))


def _origin(dataset: Dataset, held_out: HeldOut, source: str, said: str) -> dict[str, Any]:
    return {
        "source": source,
        "texts": len(held_out),
        "labels_per_text": held_out.scores.shape[1],
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "said": f"{len(held_out):,} texts of {dataset.name}, {said}",
    }


def _draw(
    stem: Path, calibration: Calibration, held_out: HeldOut, probabilities: NDArray[np.float32], notice: Notice
) -> None:
    panels = []
    for depth, title in ((1, "the best label of each text"), (5, "the best five")):
        found = reliabilities(held_out, probabilities, calibration.raw, depth)
        curves = {"as it should be": Curve([0, 1], [0, 1], colour=5, dashed=True, marker="")}
        for colour, (name, side) in enumerate((("calibrated", "calibrated"), ("raw score", "raw"))):
            _, bins = found[side]
            curves[name] = Curve([one.probability for one in bins], [one.right for one in bins], colour)
        panels.append(Lines(curves, x="probability given", y="share that is right", title=title, limits=(0, 1)))
    draw(stem, panels, title=f"reliability on {calibration.origin['said']}", notice=notice)
