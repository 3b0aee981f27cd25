"""The paper's experiments, one module each; a name leads to its module only when it is asked for."""

import difflib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from umpteen.errors import BadInput

EXPERIMENTS = {
    "token-star": (
        "umpteen.lab.token_star",
        "one word of the query names the right label among five: decoupled softmax learns it, softmax does not (4.1)",
    ),
}


class Experiment(Protocol):
    """Runs what is not yet in `output`, leaves results.json and a figure there, and returns the results."""

    def __call__(
        self,
        size: str,
        output: Path,
        *,
        seeds: int = 3,
        encoder: str | None = None,
        notice: Callable[[str], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> dict[str, Any]: ...


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        nearest = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]}?" if nearest else "`umpteen lab list` names them"
        raise BadInput(f"there is no experiment {name}; {hint}")
    module, _ = EXPERIMENTS[name]
    return cast(Experiment, import_module(module).run)
