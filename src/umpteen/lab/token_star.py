"""The paper's synthetic experiment (section 4.1): does a model learn that one word of the query names its label?

Some training queries begin with a chosen word, t*, and carry the labels 0 to 4; only label 0 has t* in its text. New
queries that begin with t* are right with label 0 alone. Under softmax the five labels compete, so label 0 is pushed down
once it is ahead of the other four; under decoupled softmax nothing holds it back.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from umpteen.assemble import Run, build_judge, build_run
from umpteen.config import (
    DataConfig,
    EncoderConfig,
    EvaluationConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    TowerConfig,
    TrainingConfig,
)
from umpteen.data.convert import write_native
from umpteen.data.dataset import Split
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput, Stopped
from umpteen.lab.comparison import claim_folder, finish_runs, mean_and_interval, verdict
from umpteen.lab.figures import draw_courses
from umpteen.lab.token_star_data import Sizes, make_dataset, whole_words
from umpteen.storage import write_atomically

ObjectiveName = Literal["decoupled_softmax", "softmax"]
Progress = Callable[[str, int, int], None]

CLAIM = "decoupled softmax learns that t* in a query means label 0, softmax does not (paper: P@1 100 % against 20 %)"
OURS, THEIRS = "decoupled_softmax", "softmax"
NAMES = {OURS: "decoupled softmax", THEIRS: "softmax"}


@dataclass(frozen=True)
class Design:
    """What one size of the experiment consists of."""

    data: Sizes
    encoder: str
    batch_size: int
    epochs: int


DESIGNS = {
    "tiny": Design(Sizes(40, 10, 60, 50, words=8), "static", batch_size=20, epochs=3),
    "small": Design(Sizes(200, 20, 600, 300, words=8), "minilm", batch_size=50, epochs=14),
    "paper": Design(Sizes(1000, 100, 5000, 1000, words=8), "minilm", batch_size=100, epochs=14),
}

ENCODERS = {
    "minilm": TowerConfig(kind="transformer", max_length=32),
    "random": TowerConfig(kind="transformer", max_length=32, random_weights=True),
    "static": TowerConfig(kind="static", max_length=32, idf=False, learning_rate=1e-2),
}


def run(
    size: str,
    output: Path,
    *,
    seeds: int = 3,
    encoder: str | None = None,
    notice: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Trains with both objectives on each seed's data; leaves results.json and the figure in `output`."""
    _check(size, seeds, encoder)
    notice = notice or (lambda message: None)
    design = DESIGNS[size]
    encoder = encoder or design.encoder
    settings = {"size": size, "encoder": encoder, **asdict(design.data), "recipe": _shared_recipe(design, encoder)}
    claim_folder(output, settings)
    outcomes = finish_runs(
        output,
        [(objective, seed) for seed in range(seeds) for objective in NAMES],
        partial(_train, design, encoder, output, progress),
        notice,
    )
    results = conclude(outcomes) | {"settings": settings}
    write_atomically(output / "results.json", json.dumps(results, indent=1) + "\n")
    draw_courses(
        output / "token-star",
        [point["epoch"] for point in outcomes[0]["course"]],
        {
            name: [[point["P@1"] for point in outcome["course"]] for outcome in _of(outcomes, objective)]
            for objective, name in NAMES.items()
        },
        title="New queries that begin with t*: is label 0 the first answer?",
        metric="P@1",
        notice=notice,
    )
    return results


def conclude(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The verdict on the claim from all runs: means, their intervals over seeds, and a paragraph for people."""
    finals = {objective: [outcome["final"] for outcome in _of(outcomes, objective)] for objective in NAMES}
    differences = [ours - theirs for ours, theirs in zip(finals[OURS], finals[THEIRS], strict=True)]
    means = {objective: _figures(values) for objective, values in finals.items()}
    difference = _figures(differences)
    judged = verdict(difference["interval"])
    memorised = {objective: _figures([o["final_on_training_queries"] for o in _of(outcomes, objective)]) for objective in NAMES}
    summary = (
        f"{judged.capitalize()}: over {len(differences)} seeds, decoupled softmax ends at P@1 {_written(means[OURS])} and "
        f"softmax at {_written(means[THEIRS])}, {_written(difference, ' points')} apart; the paper reports about 100 % "
        f"against about 20 %. On their own training queries both models answer first with a right label in "
        f"{memorised[OURS]['P@1']:.1f} % and {memorised[THEIRS]['P@1']:.1f} %: "
    )
    return {
        "claim": CLAIM,
        "verdict": judged,
        "means": means,
        "difference": difference,
        "results": list(outcomes),
        "seconds": round(sum(outcome["seconds"] for outcome in outcomes), 1),
        "summary": summary,
    }
