"""Tags that a dual encoder retrieves for nouns it was not trained on.

For a noun it has learnt, an encoder is right more often than for a new one, and a language model would learn to trust
tags too much. So the tags of training prompts are cross-fitted: the nouns are dealt into parts, and each part gets its
tags from an encoder trained without it. Those of validation and test come from an encoder trained on all of train.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.generation_data import Nouns, Vocabulary, folds
from lab.training import Steps, Trained, train
from umpteen.config import recipes
from umpteen.data.dataset import write_native
from umpteen.encoders.encoder import encode_texts
from umpteen.files.progress import Progress
from umpteen.files.storage import write_atomically
from umpteen.search.exact import top_k

Labels = list[list[int]]  # of each noun, best first


class Retriever:
    """Trains the encoders of an objective and a seed, and keeps what they retrieve."""

    def __init__(
        self,
        output: Path,
        vocabulary: Vocabulary,
        prompted: NDArray[np.int64],
        *,
        recipe: str,
        settings: Sequence[str],
        parts: int,
        most: int,
        progress: Progress,
    ) -> None:
        self._output = output
        self._vocabulary = vocabulary
        self._prompted = prompted  # the training nouns that get a prompt
        self._recipe = recipe
        self._settings = settings
        self._folds = folds(len(prompted), parts, seed=0)
        self._most = most
        self._progress = progress

    def tags(self, objective: str, seed: int) -> dict[str, Labels]:
        """Label rows for the prompted training nouns, validation and test; made once and kept."""
        file = self._output / "tags" / f"{objective}-{seed}.json"
        if not file.exists():
            found = self._retrieve(objective, seed)
            write_atomically(file, json.dumps(found) + "\n")
        kept: dict[str, Labels] = json.loads(file.read_bytes())
        return kept

    def _retrieve(self, objective: str, seed: int) -> dict[str, Labels]:
        words = self._vocabulary
        whole = self._train(objective, seed, "all", np.arange(len(words.train)))
        found = {"validation": self._best(whole, words.validation), "test": self._best(whole, words.test)}
        crossed: Labels = [[] for _ in self._prompted]
        for number, places in enumerate(self._folds):
            others = np.setdiff1d(np.arange(len(words.train)), self._prompted[places])
            part = self._train(objective, seed, f"without-part-{number}", others)
            for place, labels in zip(places, self._best(part, words.train.take(self._prompted[places])), strict=True):
                crossed[place] = labels
        return {"train": crossed, **found}

    def _train(self, objective: str, seed: int, name: str, rows: NDArray[np.int64]) -> Trained:
        folder = self._output / "data" / name
        if not folder.exists():
            write_native(self._vocabulary.for_encoders(name, rows), folder)
        settings = (*self._settings, f"objective.name={objective}", f"seed={seed}")
        config = recipes.resolve(self._recipe, settings, str(folder))
        return train(config, Steps(f"encoder, {objective}, {name}, seed {seed}", self._progress))

    def _best(self, trained: Trained, nouns: Nouns) -> Labels:
        vectors = encode_texts(trained.run.towers.query, nouns.split.texts)
        most = min(self._most, len(self._vocabulary.tags))
        ranking = top_k(vectors, trained.label_vectors(), most, excluding=nouns.split.filtered.matrix)
        found: Labels = ranking.rows.tolist()
        return found


def precision(labels: Labels, nouns: Nouns) -> float:
    """The share of tags that are among the nouns' own labels, in percent."""
    own = (set(nouns.split.relevance.of(query).tolist()) for query in range(len(nouns)))
    right = [label in some for some, row in zip(own, labels, strict=True) for label in row]
    return 100 * float(np.mean(right)) if right else 0.0
