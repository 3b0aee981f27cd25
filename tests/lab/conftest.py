"""One small dataset and one run of every experiment for all tests of the lab."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from lab.cutting import cut
from lab.experiment import Setup, run

from lab import named
from tiny import tiny_default_model
from umpteen.data.dataset import open_dataset, write_native


@pytest.fixture(scope="session")
def part_of_nouns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred queries and labels of wordnet-nouns, cut once."""
    folder = tmp_path_factory.mktemp("lab") / "wordnet-nouns"
    write_native(cut(open_dataset("wordnet-nouns"), 300, 150), folder)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, part_of_nouns: Path) -> Callable[[str], tuple[Path, Any]]:
    """Runs an experiment's tiny size the first time it is asked for: its folder and its results."""
    runs = tmp_path_factory.mktemp("runs")
    done: dict[str, tuple[Path, Any]] = {}

    def ask(name: str) -> tuple[Path, Any]:
        if name not in done:
            source = None if name == "token-star" else str(part_of_nouns)
            setup = Setup(name, "tiny", runs / name, source, seeds=1)
            with tiny_default_model(runs / "default") if name == "parts" else nullcontext():  # which reads with MiniLM
                done[name] = (runs / name, run(named(name), setup))
        return done[name]

    return ask
