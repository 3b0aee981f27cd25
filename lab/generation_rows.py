"""The rows of the generation experiment: tags, fine-tuning, texts and scores, each stage kept where a kill finds it."""

import json
import shutil
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.experiment import Setup
from lab.generation_data import Nouns, Vocabulary, prompts, true_labels
from lab.generation_model import Room, Shape, Writer, start_small
from lab.generation_scores import rouge
from lab.generation_tags import Labels, Retriever, precision
from lab.generation_tuning import Budget, fine_tune
from umpteen.files.storage import write_atomically
from umpteen.training.build import pick_device
from umpteen.training.checkpoint import TrainState

NONE, SOFTMAX, DECOUPLED, TRUTH = "no tags", "tags by softmax", "tags by decoupled softmax", "true tags"
ROWS = (NONE, SOFTMAX, DECOUPLED, TRUTH)
OBJECTIVES = {SOFTMAX: "softmax", DECOUPLED: "decoupled_softmax"}


@dataclass(frozen=True)
class Design:
    """What one size of the experiment consists of."""

    part: tuple[int, int] | None  # nouns for training encoders, and labels; None: all of them
    prompted: int  # of the nouns, for fine-tuning the language model
    validation: int
    test: int
    tags: int  # of a noun, at most
    parts: int  # of the cross-fitting
    encoder: tuple[str, ...]  # on top of the dataset's recipe
    shape: Shape  # of the language model, if none is given
    room: Room
    first: Budget  # of that model on all training nouns without tags
    budget: Budget  # of the fine-tuning, the same for each row


class Bench:
    """What the rows share: the nouns, the retrieved tags of a seed, the language model they all start from."""

    def __init__(self, setup: Setup, design: Design, vocabulary: Vocabulary, recipe: str) -> None:
        self._setup, self._design, self._vocabulary = setup, design, vocabulary
        count = len(vocabulary.train)
        drawn = np.random.default_rng(0).choice(count, min(design.prompted, count), replace=False)
        self._prompted: NDArray[np.int64] = np.sort(drawn)
        self._parts = {
            "train": vocabulary.train.take(self._prompted),
            "validation": vocabulary.validation,
            "test": vocabulary.test,
        }
        self._retriever = Retriever(
            setup.output,
            vocabulary,
            self._prompted,
            recipe=recipe,
            settings=design.encoder,
            parts=design.parts,
            most=design.tags,
            progress=setup.progress,
        )

    def make(self, row: str, seed: int) -> dict[str, Any]:
        """Tags, fine-tuning, texts, scores of one row; each stage is kept, so that a kill costs little."""
        labels = self._labels(row, seed)
        shown = {
            name: list(prompts(nouns, self._vocabulary.tags, labels[name] if labels else None))
            for name, nouns in self._parts.items()
        }
        name = f"{row.replace(' ', '-')}-{seed}"
        work = self._setup.output / "work" / name
        writer = Writer(self._start(seed), pick_device("auto"))
        state = self._tune(writer, self._parts, shown, self._design.budget, seed, work, f"{row}, seed {seed}")
        texts = writer.generate(shown["test"], self._design.room)
        wanted = self._parts["test"].definitions
        scores = rouge(wanted, texts)
        records = [
            {"prompt": prompt, "definition": definition, "generated": text}
            | {measure: round(float(values[place]), 3) for measure, values in scores.items()}
            for place, (prompt, definition, text) in enumerate(zip(shown["test"], wanted, texts, strict=True))
        ]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_atomically(texts_of(self._setup.output, row, seed), lines)
        shutil.rmtree(work, ignore_errors=True)
        return {
            **{measure: round(float(values.mean()), 3) for measure, values in scores.items()},
            "right_tags": round(precision(labels["test"], self._parts["test"]), 2) if labels else None,
            "validation_loss": round(state.best_value or float("nan"), 4),
            "best_epoch": 1 + [e["step"] for e in state.evaluations].index(state.best_step),
            "distinct_texts": len(set(texts)),
        }

    def _labels(self, row: str, seed: int) -> dict[str, Labels] | None:
        if row in OBJECTIVES:
            return self._retriever.tags(OBJECTIVES[row], seed)
        if row == NONE:
            return None
        counts = self._vocabulary.train.split.relevance.label_counts()
        return {name: true_labels(nouns, counts, self._design.tags) for name, nouns in self._parts.items()}

    def _start(self, seed: int) -> Path:
        """The folder of the model that every row of a seed starts from: the one given, or one made on train alone."""
        if self._setup.model is not None:
            return Path(self._setup.model)
        made = self._setup.output / "start" / str(seed)
        if made.exists():
            return made
        random, work = made.with_name(f"{seed}-random"), self._setup.output / "work" / f"start-{seed}"
        parts = {"train": self._vocabulary.train, "validation": self._vocabulary.validation}
        shown = {name: list(prompts(nouns, [], None)) for name, nouns in parts.items()}
        if not random.exists():
            texts = [*shown["train"], *parts["train"].definitions, *(f"Tags: {tag};" for tag in self._vocabulary.tags)]
            start_small(random, texts, self._design.shape, self._design.room, seed)
        writer = Writer(random, pick_device("auto"))
        self._tune(writer, parts, shown, self._design.first, seed, work, f"language model, seed {seed}")
        writer.save(made)
        shutil.rmtree(work, ignore_errors=True)
        return made

    def _tune(
        self,
        writer: Writer,
        parts: dict[str, Nouns],
        shown: dict[str, list[str]],
        budget: Budget,
        seed: int,
        work: Path,
        name: str,
    ) -> TrainState:
        train, validation = (
            writer.examples(shown[part], parts[part].definitions, self._design.room) for part in ("train", "validation")
        )
        return fine_tune(
            writer,
            train,
            validation,
            budget,
            seed=seed,
            workspace=work,
            recipe=asdict(budget) | {"model": self._setup.model, "seed": seed},
            progress=partial(self._setup.progress, name),
        )


def texts_of(output: Path, row: str, seed: int) -> Path:
    """Prompts, definitions, generated texts and their scores."""
    return output / "texts" / f"{row.replace(' ', '-')}-{seed}.jsonl"
