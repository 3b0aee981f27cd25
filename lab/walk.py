"""How far a reader has to walk: `python -m lab.walk` counts the files of the package that a piece of work enters.

A file is entered when one of its functions is called. What a command only loads is counted apart.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

import umpteen
from umpteen.cli.main import cli, main, say
from umpteen.config.recipes import resolve
from umpteen.training.build import build_run

PACKAGE = Path(umpteen.__file__).parent
DATA = "wordnet-nouns"
SMALL = ("training.steps=2", "training.batch_size=16", "evaluation.every_steps=2")
GOALS = {"training step": 15, "predict": 15, "labels add": 10, "evaluate": 25, "loaded by train": 80}


@contextlib.contextmanager
def walked() -> Iterator[list[str]]:
    """The files that are entered while this lasts, in the order of their first call."""
    files: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or "__qualname__" in code.co_names:  # a class's body
            return
        if code.co_filename.startswith(str(PACKAGE)):
            name = str(Path(code.co_filename).relative_to(PACKAGE))
            if name not in files:
                files.append(name)

    sys.setprofile(look)
    try:
        yield files
    finally:
        sys.setprofile(None)


def of_a_step() -> list[str]:
    """One training step of the demo's recipe, after a first one."""
    run = build_run(resolve(DATA, SMALL), workspace=None)
    rows = run.sampler.rows(0, 0)
    run.step(rows, step=0, seed=0)
    with walked() as files:
        run.step(rows, step=1, seed=0)
    return files


def of_a_command(*arguments: str) -> list[str]:
    """One command, from its arguments to its answer."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), walked() as files:
        cli(list(arguments), prog_name="umpteen", standalone_mode=False)
    return files


def loaded_by_train() -> list[str]:
    """The modules of the package that `umpteen train` loads."""
    program = "import sys, umpteen.model.train; print(*(name for name in sys.modules if name.startswith('umpteen')))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def walks() -> dict[str, list[str]]:
    """Every walk by the work it is of; commands run a second time, so that nothing is done only for the first."""
    with tempfile.TemporaryDirectory() as place:
        model = f"{place}/model"
        of_a_command("train", DATA, "--output", model, *(part for setting in SMALL for part in ("--set", setting)))
        for turn in range(2):
            found = {
                "predict": of_a_command("predict", model, "a small dog with a curly tail"),
                "labels add": of_a_command("labels", "add", model, f"walk-{turn}", "a text of its own"),
                "evaluate": of_a_command("evaluate", model, DATA),
            }
    return {"training step": of_a_step(), **found, "loaded by train": loaded_by_train()}


@click.command()
@click.option("--files", "named", is_flag=True, help="Name the files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def walk(named: bool, as_json: bool) -> None:
    """Count the files that one training step, `predict`, `labels add` and `evaluate` enter."""
    found = walks()
    if as_json:
        click.echo(json.dumps(found))
        return
    for work, files in found.items():
        say(f"{work:<16} {len(files):>3}  (goal: at most {GOALS[work]})")
        if named:
            for file in files:
                say(f"    {file}")


if __name__ == "__main__":
    main(walk, "python -m lab.walk")
