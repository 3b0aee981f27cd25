"""`umpteen train` on several processes, by torchrun, with processes and their launcher killed midway."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from quick import RANDOM, quick_recipe
from safetensors.torch import load_file
from torch.distributed.run import parse_args

from miniature import Outcome, command, files_of, refused, unfinished
from tiny import tiny_tokenizer
from umpteen.cli.train import train
from umpteen.config.recipes import resolve

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")

UMPTEEN = ("-m", "umpteen", "train")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *UMPTEEN)
STEPS = 40
# From a process whose partner was killed, unless the launcher, which has noticed too, ended it before it could speak.
LOST = "another process of this run has ended"


class Launched:
    """A launcher and its processes, under way."""

    def __init__(self, folder: Path, fault: str) -> None:
        self._log = folder / "log"
        self._metrics = folder / "model.training" / "metrics.jsonl"
        arguments = [*TORCHRUN, str(folder / "recipe.toml"), "--output", str(folder / "model")]
        path = f"{Path(__file__).parent / 'faults'}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": path, "UMPTEEN_TEST_FAULT": fault}
        with self._log.open("w") as log:
            self.launcher = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=environment)

    def wait_for_steps(self, count: int) -> None:
        while not self._metrics.exists() or self._metrics.read_bytes().count(b"\n") < count:
            assert self.launcher.poll() is None, self._log.read_text()
            time.sleep(0.005)

    def process(self, rank: int) -> int:
        """The id of the process of that rank."""
        family = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()
        return next(int(pid) for pid in family if f"RANK={rank}".encode() in variables(pid))

    def end(self) -> Outcome:
        """Waits for the launcher; everything that was printed counts as err."""
        code = self.launcher.wait(timeout=600)
        return Outcome(code, "", self._log.read_text())

    def abandon(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.terminate()
            self.launcher.wait()


def variables(pid: str) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def alive(pid: int) -> bool:
    """Whether it runs; one whose parent was killed may wait for long to be taken note of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and the model that one process, undisturbed, made of it."""
    folder = tmp_path_factory.mktemp("single")
    quick_recipe(
        folder,
        f"training.steps={STEPS}",
        "encoder.query.dropout=0",
        "training.checkpoint_minutes=0",
        "evaluation.every_steps=20",
    )
    outcome = command("train", folder / "recipe.toml", "--output", folder / "model", "--quiet")
    assert outcome.code == 0, outcome.err
    return folder


@pytest.fixture
def folder(single: Path, tmp_path: Path) -> Path:
    """A place for another run of the same recipe."""
    (tmp_path / "recipe.toml").write_text((single / "recipe.toml").read_text())
    return tmp_path


@pytest.fixture
def launched(folder: Path) -> Iterator[type[Launched]]:
    """Launches that do not outlive their test."""
    runs: list[Launched] = []

    class Watched(Launched):
        def __init__(self, fault: str) -> None:
            super().__init__(folder, fault)
            runs.append(self)

    yield Watched
    for run in runs:
        run.abandon()


def same_weights(folder: Path, single: Path) -> None:
    """Up to the rounding of float32 sums in another order, which 40 steps carry on."""
    right, made = files_of(single / "model"), files_of(folder / "model")
    files = sorted(path.relative_to(right) for path in right.rglob("*.safetensors"))
    assert len(files) == 3
    for file in files:
        expected, found = load_file(right / file), load_file(made / file)
        for name in expected:
            torch.testing.assert_close(found[name].float(), expected[name].float(), rtol=1e-3, atol=1e-4)


def test_processes_of_which_one_was_killed_are_started_again_and_make_the_model_of_one(
    launched: type[Launched], folder: Path, single: Path
) -> None:
    outcome = launched("kill 0").end()
    assert outcome.code == 0, outcome.err
    assert outcome.err.count(LOST) <= 1
    for once in ("resumed after step", "validation after step 20", "saved "):
        assert outcome.err.count(once) == 1, outcome.err
    same_weights(folder, single)
    assert not (folder / "model.training").exists()


@needs_proc
def test_processes_whose_launcher_is_killed_save_themselves_and_end_and_one_process_goes_on(
    launched: type[Launched], folder: Path, single: Path
) -> None:
    run = launched("hold 0")
    run.wait_for_steps(5)
    ranks = [run.process(rank) for rank in (0, 1)]
    run.launcher.kill()
    run.launcher.wait()
    guard = time.monotonic() + 200
    while any(map(alive, ranks)) and time.monotonic() < guard:
        time.sleep(0.05)
    left_alone = [pid for pid in ranks if alive(pid)]
    for pid in left_alone:
        os.kill(pid, signal.SIGKILL)  # or they would train long after the tests
    assert not left_alone, run.end().err
    assert run.end().err.count("stopped and saved after step") == 1
    outcome = command("train", folder / "recipe.toml", "--output", folder / "model", "--resume")
    assert outcome.code == 0 and "resumed after step" in outcome.err, outcome.err
    same_weights(folder, single)


def torchrun_lines() -> list[list[str]]:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "many-machines.md"
    lines = [shlex.split(line) for line in page.read_text(encoding="utf-8").splitlines() if "torchrun --" in line]
    return [words[words.index("torchrun") + 1 :] for words in lines]


@pytest.mark.parametrize("words", torchrun_lines(), ids=lambda words: " ".join(words[:4]))
def test_torchrun_and_umpteen_understand_the_lines_in_the_docs(words: list[str]) -> None:
    given = parse_args(words)
    assert given.module and given.training_script == "umpteen"
    verb, *arguments = given.training_script_args
    assert verb == "train"
    recipe = train.make_context("umpteen", arguments).params["recipe"]
    assert resolve(recipe).name == recipe


def test_errors_say_which_process_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    refused(command("train", tmp_path / "none.toml", "--output", "model"), "error: process 3: ")


def test_a_restarted_process_goes_on_with_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_tokenizer(tmp_path / "start")
    unfinished(tmp_path, *RANDOM)
    again = ("train", tmp_path / "recipe.toml", "--output", tmp_path / "model")
    (tmp_path / "model.training" / "launched-by").write_text("first", encoding="utf-8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    refused(command(*again), "holds an unfinished run")  # what another launch has left is not its own
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    assert "resumed after step" in command(*again, "--overwrite").err  # its own is not discarded again
    refused(command(*again), "exists already")
