"""The pages on the product work as written: every command of theirs runs, in order, on a small model at runs/demo."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from benchmarks.child_service import child_service
from lab.cutting import cut
from lab.training import TINY

import umpteen
from hub_stand_in import THEIR_WARNING, hub_stand_in
from quick_command import quick_umpteen
from test_docs import ROOT, SHELL, blocks_of
from tiny import tiny_transformer
from umpteen.config.recipes import resolve
from umpteen.data.dataset import open_dataset, write_native
from umpteen.encoders.frozen import FrozenEncoder, FrozenReader
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.model.classifier import Classifier

PAGES = [
    "calibrate",
    "predict",
    "predict-on-a-cluster",
    "explain",
    "manage-labels",
    "choose-an-index",
    "learn",
    "serve",
    "trackers",
]
# Long, on a cluster, or of the network.
ELSEWHERE = re.compile(
    r"umpteen demo|umpteen train wordnet-nouns-mixed|umpteen index build .*--uri http|python -m benchmarks|pip install"
)


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a part of wordnet-nouns under its own name, and a model of it where the pages have theirs."""
    folder = tmp_path_factory.mktemp("start")
    write_native(cut(open_dataset("wordnet-nouns"), 700, 10), folder / "wordnet-nouns")
    # Small, yet good enough that nine of ten labels can be right: of MiniLM's table the 64 main directions, and the ten
    # most frequent labels.
    settings = [setting for setting in TINY.settings if "random_weights" not in setting]
    settings += ["training.epochs=3", "optimizer.learning_rate=0.01", "data.fit_on=train+validation"]
    settings += ["encoder.query.dimension=64", f"data.source={folder / 'wordnet-nouns'}"]
    umpteen.train(resolve("wordnet-nouns", settings), output=folder / "runs" / "demo")
    return folder


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with quick_umpteen(tmp_path_factory.mktemp("command")) as folder:
        yield folder


def _answers(printed: str) -> Iterator[dict[str, Any]]:
    while printed := printed.strip():
        answer, end = json.JSONDecoder().raw_decode(printed)
        yield answer
        printed = printed[end:]


class Terminal:
    """A page's blocks one after the other; what serves goes on beside the next ones."""

    def __init__(self, folder: Path, command: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{command}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.port = 0
        self.answers: list[dict[str, Any]] = []  # that curl printed
        self._service = ExitStack()

    def run(self, block: str) -> None:
        lines = [line for line in block.splitlines() if not ELSEWHERE.match(line)]
        serving = [line for line in lines if "umpteen serve" in line]
        rest = "\n".join(line for line in lines if line not in serving).replace(":8000", f":{self.port}")
        if rest.strip():
            self._call(rest)
        for line in serving:
            self._serve(line.partition("#")[0])

    def _call(self, script: str) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        said = f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.returncode == 0, said
        if "curl " in script:  # which is content with any answer
            found = list(_answers(done.stdout))
            assert len(found) == len(re.findall(r"(?<!\$\()curl ", script)), said  # an assignment prints none
            assert all("version" in answer or "terms" in answer for answer in found), said
            self.answers += found

    def _serve(self, line: str) -> None:
        self.close()
        line = re.sub(r" --(open|port \d+|host \S+)", "", line).strip().removesuffix("&")
        # The real command: its workers are processes that start anew.
        line = line.replace("umpteen serve", f"exec {sys.executable} -m umpteen serve", 1)
        line = f"cd {shlex.quote(str(self.folder))} && {line} --port 0 --timeout 120"
        self.port = self._service.enter_context(child_service(["bash", "-c", line])).port

    def close(self) -> None:
        self._service.close()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_written(page: str, start: Path, command: Path, tmp_path: Path) -> None:
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    terminal = Terminal(tmp_path, command)
    try:
        for block in blocks_of(ROOT / "docs" / "how-to" / f"{page}.md"):
            if block.language in SHELL:
                terminal.run(block.text)
        if page == "serve":
            assert terminal.answers[-1]["version"] == 4  # an addition, a renaming, a retirement, and its undoing
    finally:
        terminal.close()


def test_the_page_on_faster_encoders_works_as_written(
    start: Path, command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(start / "wordnet-nouns", tmp_path / "wordnet-nouns")
    reader = FrozenReader(TransformerEncoder.load(tiny_transformer(tmp_path / "start")))
    towers = Towers(FrozenEncoder(reader)).eval()
    Classifier.build(towers, open_dataset(tmp_path / "wordnet-nouns").labels).save(tmp_path / "runs" / "mixed")
    terminal = Terminal(tmp_path, command)
    monkeypatch.chdir(tmp_path)
    in_python: dict[str, Any] = {}
    for block in blocks_of(ROOT / "docs" / "how-to" / "faster-encoders.md"):
        if block.language in SHELL:
            terminal.run(block.text)
        else:
            exec(compile(block.text, str(block), "exec"), in_python)
    about = in_python["classifier"].runtime
    assert about["sample"] == "test texts of wordnet-nouns" and about["agreement"] >= 0.99
    assert in_python["by_torch"].runtime is None and Classifier.load("runs/mixed").runtime is None


@pytest.mark.filterwarnings(THEIR_WARNING)
def test_the_page_on_the_hub_works_with_a_stand_in(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(start, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "command").mkdir()
    with hub_stand_in(tmp_path / "hugging-face") as hub, quick_umpteen(tmp_path / "command") as command:
        terminal = Terminal(tmp_path / "here", command)
        for block in blocks_of(ROOT / "docs" / "how-to" / "hub.md"):
            if block.language in SHELL:
                terminal.run(block.text)
            else:
                exec(compile(block.text, str(block), "exec"), {})
    (there,) = hub.repositories.values()
    assert there.private and set(there.branches) == {"main", "with-beagles"}
