"""Adds a calibration to a saved model: probabilities, thresholds and rules, learnt on texts it was not fitted on.

The texts are the validation split that training held out, or small folds, each scored by a model trained without it.
Test data is never looked at.
"""

import os
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.assemble import Progress
from umpteen.calibration.calibration import Calibration
from umpteen.calibration.fitting import fit_calibration
from umpteen.calibration.held_out import HeldOut
from umpteen.calibration.raw import raw_probabilities
from umpteen.calibration.reliability import reliability_of
from umpteen.catalogue.store import Part
from umpteen.classifier import Classifier
from umpteen.data.dataset import Dataset, Split
from umpteen.errors import BadInput, NotSaved
from umpteen.evaluating import in_rows_of
from umpteen.figures import Curve, Lines, draw
from umpteen.model_folder import CALIBRATION, RANKER, ModelFolder
from umpteen.out_of_fold import out_of_fold, scores_of
from umpteen.training.observer import Observer, Silence

DEPTH = 100  # labels of a text that are looked at
MOST_TEXTS = 20_000  # more of them would not move the curves
FEW_TEXTS = 200
FIGURE = "reliability"


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
            sizes = {"depth": DEPTH, "most_texts": MOST_TEXTS}
            made = out_of_fold(
                classifier, folder.model, dataset, folds, workspace, **sizes, observer=observer, progress=progress
            )
            held_out = until_written.enter_context(made)
            said = f"each scored by one of {folds} models trained without it and {len(held_out) // folds - 1:,} others"
            origin = _origin(dataset, held_out, "folds", said)
        elif unseen:
            split = in_rows_of(classifier, dataset).with_validation_in_train().train
            held_out = scores_of(classifier, _some(split), DEPTH)
            origin = _origin(dataset, held_out, "unseen", "none of which the model was trained on, as the caller says")
        else:
            held_out = scores_of(classifier, _some(_validation(classifier, dataset)), DEPTH)
            origin = _origin(dataset, held_out, "validation", "held out of training for validation")
            origin["also_chosen_on_them"] = _chosen_on_validation(classifier)
        if len(held_out) < FEW_TEXTS:
            observer.notice(f"warning: {len(held_out):,} held-out texts are few; probabilities will be rough")
        calibration, probabilities = fit_calibration(held_out, origin, coverage=coverage)
        _write(
            folder,
            classifier.version,
            classifier.parts.get(RANKER),
            calibration,
            held_out,
            probabilities,
            observer.notice,
        )
    return calibration


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


def _chosen_on_validation(classifier: Classifier) -> list[str]:
    """What else was chosen on the same texts; each is a number or two, not a fit."""
    chosen = ["the best step of training"]
    if classifier.ranker is not None and "validation" in str(classifier.ranker.origin.get("chosen")):
        chosen.append("the ranker's weight and its head start of rare labels")
    return chosen


def _write(
    model: ModelFolder,
    version: int,
    ranker: Part | None,
    calibration: Calibration,
    held_out: HeldOut,
    probabilities: NDArray[np.float32],
    notice: Callable[[str], None],
) -> None:
    with model.adding(CALIBRATION) as part:
        calibration.save(part.folder)
        _draw(part.folder / FIGURE, calibration, held_out, probabilities, notice)
        figures = calibration.figures
        part.about = {"held_out": calibration.origin, "ece": figures["ece"], "ece_raw": figures["ece_raw"]}
        part.labels_version, part.needs = version, {RANKER: ranker}


def _draw(
    stem: Path,
    calibration: Calibration,
    held_out: HeldOut,
    probabilities: NDArray[np.float32],
    notice: Callable[[str], None],
) -> None:
    panels = []
    for depth, title in ((1, "the best label of each text"), (5, "the best five")):
        there = held_out.real[:, :depth]
        right = held_out.right[:, :depth][there]
        raw = raw_probabilities(held_out.scores[:, :depth][there], calibration.raw)
        curves = {"as it should be": Curve([0, 1], [0, 1], colour=5, dashed=True, marker="")}
        for name, values, colour in (("calibrated", probabilities[:, :depth][there], 0), ("raw score", raw, 1)):
            found = reliability_of(values, right)
            curves[name] = Curve([one.probability for one in found.bins], [one.right for one in found.bins], colour)
        panels.append(Lines(curves, x="probability given", y="share that is right", title=title, limits=(0, 1)))
    draw(stem, panels, title=f"reliability on {calibration.origin['said']}", notice=notice)
