"""A peer's environment is made once, made again after an interruption, and its absence has a reason."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from lab.peers import apart
from lab.peers.environment import Environment, Unavailable
from scipy.sparse import csr_array

from umpteen.data.dataset import Split
from umpteen.data.labels import Relevance

STANDING_IN = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *"{broken}"*) echo "ERROR: no such thing at https://index.example/simple/x" >&2; exit 1 ;;
esac
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str = "never") -> Path:
    """An interpreter that writes down what it is called with; installing `broken` fails."""
    python = folder / "python"
    python.write_text(STANDING_IN.format(log=folder / "log", broken=broken))
    python.chmod(0o755)
    monkeypatch.setenv("UMPTEEN_PEER_PYTHON", str(python))
    return folder / "log"


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stand_in(tmp_path, monkeypatch)
    environment = Environment("peer", ("numpy<2",), ("peer==1",))
    said: list[str] = []
    for _ in range(2):
        environment.make(said.append)
    lines = log.read_text().splitlines()
    assert len(lines) == 3 and len(said) == 1 and environment.is_ready
    assert lines[0].startswith("-m venv") and "numpy<2" in lines[1] and "--no-deps peer==1" in lines[2]
    (environment.folder / "ready.json").unlink()  # as a kill would have left it
    environment.make(said.append)
    assert len(log.read_text().splitlines()) == 6


def test_two_that_come_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stand_in(tmp_path, monkeypatch)
    environment = Environment("peer", ("numpy<2",), ("peer==1",))
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(environment.make, lambda _: None) for _ in range(4)]:
            done.result()
    assert len(log.read_text().splitlines()) == 3 and environment.is_ready


def test_a_failed_installation_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, broken="peer==1")
    environment = Environment("peer", ("numpy<2",), ("peer==1",))
    with pytest.raises(Unavailable, match=r"peer==1 could not be installed: no such thing at the package index"):
        environment.make(lambda _: None)
    assert not environment.folder.exists() and not environment.is_ready


PECOS = Path.home() / ".cache" / "umpteen" / "peers" / apart.ENVIRONMENTS["xr-linear"].name


@pytest.mark.skipif(not (PECOS / "ready.json").exists(), reason="PECOS's environment was never made on this machine")
def test_xr_linear_learns_the_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMPTEEN_CACHE", str(PECOS.parents[1]))
    words = ["law", "fish", "tax", "trade"]
    texts = [f"{word} number {number}" for number in range(20) for word in words]
    relevance = Relevance(csr_array(np.tile(np.eye(4, dtype=np.float32), (20, 1))))
    filtered = Relevance(csr_array(([1.0], ([0], [0])), shape=(4, 4)))
    asked = Split.of([f"about {word}" for word in words], relevance.take(np.arange(4)), filtered)
    settings = {"threshold": 0.1, "ngrams": 2, "seed": 0}
    found = apart.fit("xr-linear", Split.of(texts, relevance), asked, settings, 2)
    assert found.ranking.rows[1:, 0].tolist() == [1, 2, 3]
    assert 0 not in found.ranking.rows[0] and found.parameters > 0
