"""Scores of texts by models that were trained without them: a recipe trained anew, each time without a fold.

Folds are small: a model of much less data has lower scores than the one to calibrate, and what is learnt from them
would not hold for it. What is done lies in a workspace, so that the same call goes on after a kill.
"""

import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from umpteen.assemble import Progress
from umpteen.calibration.held_out import HeldOut
from umpteen.classifier import Classifier
from umpteen.config import RunConfig
from umpteen.data.convert import write_native
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.errors import BadInput
from umpteen.ranker.ranker import Ranker
from umpteen.recipe_file import checked
from umpteen.reranking import fit_ranker
from umpteen.running import train
from umpteen.storage import open_workspace
from umpteen.training.observer import Observer, Silence
from umpteen.version import __version__

SHARE = 20  # a fold is one part in so many of the texts …
LEAST_TEXTS = 2400  # … or more, if all folds together would have fewer than these
_STARTED_FROM = "# Started from "  # as running.py begins the recipe of such a model


@contextmanager
def out_of_fold(
    classifier: Classifier,
    checksum: str,
    dataset: Dataset,
    folds: int,
    workspace: Path,
    *,
    depth: int,
    most_texts: int,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Iterator[HeldOut]:
    """The best labels of texts of each fold by a model whose training left the fold out; `most_texts` in all.

    The models are trained by the classifier's recipe, and get a ranker of the same weight if it has one. What was done
    is kept until the block has ended well.
    """
    recipe = _recipe_of(classifier)
    whole = dataset.with_validation_in_train() if recipe.data.fit_on == "train+validation" else dataset
    if not 2 <= folds <= len(whole.train):
        raise BadInput(f"{folds} folds of {len(whole.train):,} texts; give from 2 to {len(whole.train)}")
    identity = [checksum, dataset.fingerprint, folds, depth, most_texts, __version__]
    with open_workspace(workspace, "umpteen calibrate", identity) as opened:
        size = fold_size(len(whole.train), folds, most_texts)
        drawn = np.random.default_rng(recipe.seed).permutation(len(whole.train))
        parts = []
        for fold in range(folds):
            kept = workspace / f"fold-{fold}.npz"
            out = np.sort(drawn[fold * size : (fold + 1) * size])
            if not kept.exists():
                (observer or Silence()).notice(
                    f"fold {fold + 1} of {folds}: training without {size:,} of {len(whole.train):,} texts"
                )
                others = np.ones(len(whole.train), dtype=bool)
                others[out] = False
                part = replace(whole, train=whole.train.take(others), test=None)
                with _own_cache(workspace / f"fold-{fold}" / "cache"):
                    model = _train(recipe, part, workspace / f"fold-{fold}", classifier.ranker, observer, progress)
                scores_of(model, whole.train.take(out), depth).save(kept)
            shutil.rmtree(workspace / f"fold-{fold}", ignore_errors=True)
            parts.append(HeldOut.load(kept))
        held_out = parts[0]
        for part_of_it in parts[1:]:
            held_out = held_out.join(part_of_it)
        yield held_out
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
    before = os.environ.get("UMPTEEN_CACHE")
    os.environ["UMPTEEN_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["UMPTEEN_CACHE"]
        else:
            os.environ["UMPTEEN_CACHE"] = before


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
    fit_ranker(
        folder / "model",
        open_dataset(data),
        ranker.settings,
        weight=ranker.weight,
        rare=ranker.rare,
        progress=progress,
    )
    return Classifier.load(folder / "model")
