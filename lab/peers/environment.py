"""A virtual environment made when it is first needed, kept in the cache, and found again later.

`ready.json` is written last: a folder without it is the rest of an interrupted installation, and is made again.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from umpteen.compare.methods import Unavailable
from umpteen.data.prepared import cache_folder
from umpteen.files.progress import Notice
from umpteen.files.storage import locked_file, write_atomically

PYTHON = "UMPTEEN_PEER_PYTHON"  # the interpreter that environments are made from, where ours is too new for a peer
_READY = "ready.json"
_URL = re.compile(r"\S+://\S+")


@dataclass(frozen=True)
class Environment:
    """What a peer needs, and where that is installed."""

    name: str
    needs: tuple[str, ...]  # installed with what they need themselves
    alone: tuple[str, ...]  # installed without: they ask for far more than is used

    @property
    def folder(self) -> Path:
        return cache_folder().resolve() / "peers" / self.name

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        return (self.folder / _READY).is_file() and self.interpreter.exists()

    def make(self, notice: Notice) -> None:
        """Makes the environment unless it is there; raises Unavailable if it cannot be."""
        if self.is_ready:
            return
        # Another comparison may be at it; then this one waits and finds it ready.
        with locked_file(self.folder.parent / f"{self.name}.lock", wait=None):
            if not self.is_ready:
                self._install(notice)

    def _install(self, notice: Notice) -> None:
        notice(f"installing {', '.join((*self.alone, *self.needs))} into {self.folder}, once …")
        shutil.rmtree(self.folder, ignore_errors=True)
        python = os.environ.get(PYTHON) or sys.executable
        try:
            self._call([python, "-m", "venv", str(self.folder)], "a virtual environment could not be made")
            pip = [str(self.interpreter), "-m", "pip", "install", "--quiet", "--retries", "1"]
            pip += ["--disable-pip-version-check"]
            self._call([*pip, *self.needs], f"{' '.join(self.needs)} could not be installed")
            if self.alone:
                self._call([*pip, "--no-deps", *self.alone], f"{' '.join(self.alone)} could not be installed")
            write_atomically(self.folder / _READY, json.dumps({"installed": [*self.needs, *self.alone]}) + "\n")
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _call(self, command: Sequence[str], failure: str) -> None:
        advice = (
            f"it needs a package index and a Python that the peer has wheels for; "
            f"set {PYTHON} to such an interpreter, and the same command tries again"
        )
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as problem:
            raise Unavailable(f"{failure}: {command[0]}: {problem.strerror}; {advice}") from None
        if done.returncode:
            raise Unavailable(f"{failure}: {_reason(done.stdout + done.stderr)}; {advice}")


def _reason(output: str) -> str:
    """The last line that says what went wrong, without the addresses of package indexes."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
    return _URL.sub("the package index", errors[-1].removeprefix("ERROR:").strip())[:200]
