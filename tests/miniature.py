"""A small dataset with something to learn, a recipe that learns it in a second, and the command line to run it."""

import io
import json
import random
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click

from tiny import tiny_transformer
from umpteen.training.observer import Observer

TOPICS = ["law", "fish", "tax", "trade", "food", "library", "book", "network", "dog", "tree"]
LABELS = [f"{first} of {second}" for first, second in zip(TOPICS, TOPICS[1:] + TOPICS[:1], strict=True)]
KEYS = [f"key-{text.replace(' of ', '-')}" for text in LABELS]


def write_miniature(folder: Path, labels: Sequence[int] = range(len(LABELS)), queries: int = 60) -> Path:
    """A native dataset over some of the labels, in that order; a query holds the words of its one or two labels."""
    folder.mkdir(parents=True)
    _write(folder / "labels.jsonl", [{"key": KEYS[label], "text": LABELS[label]} for label in labels])
    for name, count, seed in (("train", queries, 1), ("test", queries // 3, 2)):
        _write(folder / f"{name}.jsonl", [_query(number, labels, seed) for number in range(count)])
    return folder


def _query(number: int, labels: Sequence[int], seed: int) -> dict[str, object]:
    chance = random.Random(1000 * seed + number)
    right = chance.sample(sorted(labels), chance.choice((1, 2)))
    words = [word for label in right for word in LABELS[label].split()] + ["and", "the", "in", str(number)]
    other = chance.choice([label for label in sorted(labels) if label not in right])
    return {
        "text": " ".join(chance.sample(words, len(words))),
        "labels": [KEYS[label] for label in right],
        "ignore": [KEYS[other]] if number % 7 == 0 else [],
    }


def _write(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_recipe(folder: Path, *changes: str, kind: str = "static", towers: str = "separate") -> Path:
    """A recipe on the miniature in `folder` (both are made if missing); `changes` are lines like `seed=3`.

    Of kind "sum" or "concat", the towers are a static and a frozen part, and a transformer where changes speak of it.
    """
    from umpteen.config.recipes import checked, to_toml, with_overrides

    if not (folder / "data").exists():
        write_miniature(folder / "data")
    if not (folder / "start").exists():
        tiny_transformer(folder / "start")
    parts = [".static", ".frozen"] if kind in ("sum", "concat") else [""]
    parts += [".transformer"] if any(change.startswith("encoder.query.transformer.") for change in changes) else []
    settings = (
        f"data.source={folder / 'data'}",
        f"encoder.towers={towers}",
        f"encoder.query.kind={kind}",
        *(f"encoder.query{part}.start={folder / 'start'}" for part in parts),
        *(f"encoder.query{part}.max_length=16" for part in parts),
        *(f"encoder.query{part}.dropout=0.1" for part in parts),
        f"optimizer.learning_rate={0.003 if kind == 'transformer' else 0.03}",
        "training.batch_size=16",
        "training.epochs=3",
        "training.threads=1",
        "training.token_budget=128",
        "training.device=cpu",
        "evaluation.at=[1, 3, 5]",
        *changes,
    )
    recipe = folder / "recipe.toml"
    recipe.write_text(to_toml(checked(with_overrides({}, settings), origin="miniature")), encoding="utf-8")
    return recipe


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


def command(*arguments: str | Path, stdin: str | bytes = "", of: click.Command | None = None) -> Outcome:
    """Runs the command line in this process, errors and exit codes as people get them; `of` the lab, for instance."""
    from umpteen.cli.main import cli, main

    out, err = io.StringIO(), io.StringIO()
    argv = ["umpteen", *map(str, arguments)]
    given = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), encoding="utf-8")
    code = 0
    with mock.patch.object(sys, "argv", argv), mock.patch.object(sys, "stdin", given):
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main(of or cli)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return Outcome(code, out.getvalue(), err.getvalue())


def listing(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(outcome: Outcome, *named: str) -> None:
    """The command ended with exit code 2 and an error that names all of these."""
    assert outcome.code == 2, outcome
    assert outcome.err.strip().splitlines()[-1].startswith("error: ")
    for name in named:
        assert name in outcome.err


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


def trained(folder: Path, *changes: str, kind: str = "static", towers: str = "separate") -> Path:
    """A model folder trained on the miniature."""
    outcome = command(
        "train", write_recipe(folder, *changes, kind=kind, towers=towers), "--output", folder / "model", "--quiet"
    )
    assert outcome.code == 0, outcome.err
    return folder / "model"


def files_of(model: Path) -> Path:
    """Where a model folder has what training wrote."""
    from umpteen.model.folder import ModelFolder

    return ModelFolder(model).trained


def part_of(model: Path, name: str) -> Path:
    """Where a model folder has its current ranker, index or calibration."""
    from umpteen.model.folder import at_one_moment, checked_parts

    return at_one_moment(model, lambda folder, connection: folder.path / checked_parts(connection)[name].folder)


def checkpoint_of(workspace: Path) -> Path:
    """The checkpoint of an unfinished run."""
    (found,) = workspace.glob("checkpoint-*")
    return found


class Enough(Exception):
    """Ends a run from the inside, as a kill would from the outside."""


class EndsAfter(Observer):
    """An observer that lets a run live for so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def stepped(self, record: dict[str, Any]) -> None:
        if record["step"] > self._steps:
            raise Enough


def unfinished(folder: Path, *changes: str, steps: int = 3) -> Path:
    """A run that ended after some steps, each with its checkpoint; returns the workspace of folder/model."""
    from umpteen.model.train import train

    recipe = write_recipe(folder, "training.checkpoint_minutes=0", *changes)
    try:
        train(recipe, output=folder / "model", observers=[EndsAfter(steps)])
    except Enough:
        return folder / "model.training"
    raise AssertionError(f"the run has no more than {steps} steps")
