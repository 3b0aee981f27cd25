"""`umpteen train` on several processes: by --processes and by torchrun, with processes killed and stopped midway."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
from umpteen.errors import LostProcess
from umpteen.files.storage import open_workspace
from umpteen.model.train import WORK
from umpteen.parallel.world import _told_exit_code

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")

UMPTEEN = ("-m", "umpteen", "train")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *UMPTEEN)
STEPS = 40
# From a process whose partner was killed, unless the launcher, which has noticed too, ended it before it could speak.
LOST = "another process of this run has ended"


class Launched:
    """A launcher and its processes, under way."""

    def __init__(self, folder: Path, how: Sequence[str], *options: str, fault: str = "") -> None:
        self._log = folder / "log"
        self._metrics = folder / "model.training" / "metrics.jsonl"
        arguments = [*how, str(folder / "recipe.toml"), "--output", str(folder / "model"), *options]
        environment = {**os.environ, "TMPDIR": str(folder), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}
        if fault:
            path = f"{Path(__file__).parent / 'faults'}:{os.environ.get('PYTHONPATH', '')}"
            environment |= {"PYTHONPATH": path, "UMPTEEN_TEST_FAULT": fault}
        with self._log.open("w") as log:
            self.launcher = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=environment)

    def wait_for_steps(self, more: int) -> None:
        before = self._steps()
        while self._steps() < before + more:
            assert self.launcher.poll() is None, self._log.read_text()
            time.sleep(0.005)

    def _steps(self) -> int:
        return self._metrics.read_bytes().count(b"\n") if self._metrics.exists() else 0

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
        def __init__(self, how: Sequence[str], *options: str, fault: str = "") -> None:
            super().__init__(folder, how, *options, fault=fault)
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


def test_two_processes_make_the_model_of_one(launched: type[Launched], folder: Path, single: Path) -> None:
    outcome = launched(UMPTEEN, "--processes", "2").end()
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("saved ") == 1 and outcome.err.count("validation after step 20") == 1
    told = re.sub(r"warning: 2 processes share 1 cores.*", "", outcome.err)  # true where it is
    assert not re.search(r"^(error|warning): |Traceback", told, re.MULTILINE)  # others may warn of their own machine
    same_weights(folder, single)
    assert sorted(path.name for path in folder.iterdir()) == ["log", "model", "recipe.toml"]


def test_stopped_and_killed_it_resumes_on_another_number_of_processes(
    launched: type[Launched], folder: Path, single: Path
) -> None:
    outcome = launched(UMPTEEN, "--processes", "2", fault="stop 0").end()
    assert outcome.code == 128 + signal.SIGTERM
    assert outcome.err.count("stopped and saved after step") == 1

    outcome = launched(UMPTEEN, "--processes", "2", "--resume", fault="kill 1").end()
    assert outcome.code == 1
    assert "resumed after step" in outcome.err
    assert outcome.err.count(LOST) <= 1
    assert "Traceback" not in outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.startswith("error: process 1 was ended by SIGKILL") and "--resume" in last

    outcome = command("train", folder / "recipe.toml", "--output", folder / "model", "--resume", "--quiet")
    assert outcome.code == 0, outcome.err
    same_weights(folder, single)


@needs_proc
def test_processes_end_and_save_themselves_when_their_launcher_is_killed(
    launched: type[Launched], folder: Path
) -> None:
    run = launched(UMPTEEN, "--processes", "2", "--set", "training.steps=1000000")
    run.wait_for_steps(2)
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
    assert "stopped and saved after step" in run.end().err
    with open_workspace(folder / "model.training", WORK) as left:
        assert left.begun and (left.folder / "checkpoint").is_dir()


def test_torchrun_restarts_it_after_a_process_was_killed(launched: type[Launched], folder: Path, single: Path) -> None:
    outcome = launched(TORCHRUN, fault="kill 0").end()
    assert outcome.code == 0, outcome.err
    assert outcome.err.count(LOST) <= 1
    assert "resumed after step" in outcome.err
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


def test_the_launcher_passes_on_every_option_and_warns_about_too_few_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[tuple[int, list[str], int]] = []

    def launch(processes: int, arguments: list[str], *, restarts: int) -> int:
        launches.append((processes, arguments, restarts))
        return 0

    monkeypatch.setattr("umpteen.parallel.world.launch", launch)
    monkeypatch.setattr("umpteen.parallel.world.cores", lambda: 2)
    given = ["train", str(quick_recipe(tmp_path)), "--output", "model", "--resume", "--quiet", "--data", "elsewhere"]
    given += ["--from", "old", "--set", "seed=3", "--set", "training.epochs=1"]
    outcome = command(*given, "--processes", "2", "--restarts", "1")
    assert (outcome.code, outcome.err) == (0, "")
    outcome = command(*given, "--processes", "3")
    assert outcome.code == 0 and "3 processes share 2 cores" in outcome.err
    assert launches == [(2, given, 1), (3, given, 0)]


def test_processes_are_not_launched_by_torchruns_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    refused(command("train", quick_recipe(tmp_path), "--output", tmp_path / "model", "--processes", "2"), "torchrun")


def test_a_mistake_in_the_recipe_is_told_before_any_process_starts(tmp_path: Path) -> None:
    recipe = quick_recipe(tmp_path)
    refused(command("train", recipe, "--output", "model", "--processes", "2", "--set", "seeed=1"), "seeed", "seed")


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


@pytest.mark.parametrize(
    ("exit_codes", "code"),
    [({1: 2, 0: 1}, 2), ({0: 2, 1: -signal.SIGKILL}, 2), ({0: 143, 1: 143}, 143), ({1: 1, 0: 130}, 130)],
)
def test_the_launcher_adds_nothing_to_an_error_that_was_told(exit_codes: dict[int, int], code: int) -> None:
    assert _told_exit_code(exit_codes) == code


@pytest.mark.parametrize(
    ("exit_codes", "message"),
    [
        ({0: 1, 1: -signal.SIGKILL}, "process 1 was ended by SIGKILL, which the system sends when memory runs out;"),
        ({1: -signal.SIGSEGV, 0: -signal.SIGTERM}, "process 1 was ended by SIGSEGV;"),
        ({1: 1, 0: 1}, "process 1 ended with exit code 1, its error is above;"),
        ({0: -signal.SIGTERM, 1: 1}, "process 1 ended with exit code 1"),
    ],
)
def test_the_launcher_names_the_process_that_ended_first(exit_codes: dict[int, int], message: str) -> None:
    with pytest.raises(LostProcess) as told:
        _told_exit_code(exit_codes)
    assert str(told.value).startswith(message)
