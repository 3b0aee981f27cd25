"""The paper's synthetic experiment (section 4.1): does a model learn that one word of the query names its label?

Training queries that begin with the word t* carry labels 0 to 4, of which only label 0 has t* in its text; for new
queries with t*, label 0 is right. Softmax holds it back once it leads the other four; decoupled softmax does not.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from umpteen.assemble import Run, build_judge, build_run
from umpteen.config import checked
from umpteen.data.convert import write_native
from umpteen.encoders.pretrained import DEFAULT_MODEL
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput, Stopped
from umpteen.figures import Curve, draw_curves
from umpteen.judge import Judge
from umpteen.lab.comparison import claim_folder, finish_runs, over_seeds, verdict, written
from umpteen.lab.token_star_data import Sizes, make_dataset, whole_words
from umpteen.storage import write_atomically

Progress = Callable[[str, int, int], None]
Choice = TypeVar("Choice")

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
    "small": Design(Sizes(200, 20, 600, 300, words=8), "minilm", batch_size=100, epochs=14),
    "paper": Design(Sizes(1000, 100, 5000, 1000, words=8), "minilm", batch_size=100, epochs=14),
}

ENCODERS: dict[str, dict[str, Any]] = {
    "minilm": {"kind": "transformer"},
    "random": {"kind": "transformer", "random_weights": True},
    "static": {"kind": "static", "idf": False, "learning_rate": 1e-3},
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
    design = _chosen("size", size, DESIGNS)
    encoder = encoder or design.encoder
    tower = _chosen("encoder", encoder, ENCODERS)
    if seeds < 1:
        raise BadInput(f"--seeds {seeds}: at least one run of each objective is needed")
    notice = notice or (lambda message: None)
    recipe = _recipe(design, tower)
    settings = {"size": size, "encoder": encoder, **asdict(design.data), "recipe": recipe}
    claim_folder(output, settings)
    outcomes = finish_runs(
        output,
        [(objective, seed) for seed in range(seeds) for objective in NAMES],
        partial(_train, design.data, recipe, output, progress),
        notice,
    )
    results = conclude(outcomes) | {"settings": settings}
    write_atomically(output / "results.json", json.dumps(results, indent=1) + "\n")
    epochs = [point["epoch"] for point in outcomes[0]["course"]]
    caption = f"{encoder} encoder, {seeds} seed{'s' * (seeds > 1)}; shaded: from the lowest to the highest"
    draw_curves(
        output / "token-star",
        {
            name: Curve(epochs, [[point["P@1"] for point in c] for c in _values(outcomes, objective, "course")])
            for objective, name in NAMES.items()
        },
        title=f"New queries that begin with t*: is label 0 the first answer?\n({caption})",
        x="epoch",
        y="P@1 (%)",
        limits=(-2, 102),
        notice=notice,
    )
    return results


def conclude(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The verdict on the claim from all runs: means, their intervals over seeds, and a paragraph for people."""
    finals = {objective: _values(outcomes, objective, "final") for objective in NAMES}
    means = {objective: over_seeds(values, within=(0, 100)) for objective, values in finals.items()}
    difference = over_seeds([ours - theirs for ours, theirs in zip(finals[OURS], finals[THEIRS], strict=True)])
    judged = verdict(difference["interval"])
    peaks = {objective: _peak(_values(outcomes, objective, "course")) for objective in NAMES}
    return {
        "claim": CLAIM,
        "verdict": judged,
        "summary": (
            f"{judged.capitalize()} (number of seeds: {len(finals[OURS])}): decoupled softmax ends at P@1 "
            f"{written(means[OURS], ' %')} and softmax at {written(means[THEIRS], ' %')}, a difference of "
            f"{written(difference, ' points')}; the paper reports about 100 % against about 20 %. On the way, the mean "
            f"was highest at {peaks[OURS]['P@1']:.1f} % (decoupled softmax, epoch {peaks[OURS]['epoch']}) and "
            f"{peaks[THEIRS]['P@1']:.1f} % (softmax, epoch {peaks[THEIRS]['epoch']}). At the end, label 0 is among the "
            f"first five answers in {_both(outcomes, 'final_R@5')} of the new queries, and the training queries' first "
            f"answer is right in {_both(outcomes, 'final_on_training_queries')}."
        ),
        "means": means,
        "difference": difference,
        "peaks": peaks,
        "seconds": round(sum(outcome["seconds"] for outcome in outcomes), 1),
        "results": list(outcomes),
    }


def _values(outcomes: Sequence[dict[str, Any]], objective: str, key: str) -> list[Any]:
    return [outcome[key] for outcome in outcomes if outcome["objective"] == objective]


def _peak(courses: Sequence[Sequence[dict[str, float]]]) -> dict[str, float]:
    """Where the mean over seeds was highest, the first time."""
    means = [
        (over_seeds([point["P@1"] for point in points])["mean"], points[0]["epoch"])
        for points in zip(*courses, strict=True)
    ]
    value, epoch = max(means, key=lambda mean: mean[0])
    return {"epoch": epoch, "P@1": value}


def _both(outcomes: Sequence[dict[str, Any]], key: str) -> str:
    ours, theirs = (over_seeds(_values(outcomes, objective, key))["mean"] for objective in (OURS, THEIRS))
    return f"{ours:.1f} % (decoupled softmax) and {theirs:.1f} % (softmax)"


def _recipe(design: Design, tower: dict[str, Any]) -> dict[str, Any]:
    """The settings of every run but its data, objective and seed."""
    return {
        "encoder": {"towers": "shared", "query": {"start": DEFAULT_MODEL, "max_length": 32, **tower}},
        "objective": {"temperature": 0.05},
        "optimizer": {"learning_rate": 2e-4},
        "training": {"batch_size": design.batch_size, "epochs": design.epochs, "token_budget": 4096},
        "evaluation": {"metric": "P@1", "at": [1, 5]},
    }


def _train(
    sizes: Sizes, recipe: dict[str, Any], output: Path, progress: Progress | None, objective: str, seed: int
) -> dict[str, Any]:
    """One run from start to end: P@1 on the new queries before training and after each epoch."""
    folder = output / "data" / f"seed-{seed}"
    if not folder.exists():
        write_native(make_dataset(sizes, whole_words(DEFAULT_MODEL), seed), folder)
    changes = {"seed": seed, "data": {"source": str(folder)}, "objective": {**recipe["objective"], "name": objective}}
    config = checked(recipe | changes, origin="token-star")
    name = f"{NAMES[objective]}, seed {seed}"
    began = time.monotonic()
    run = build_run(config, workspace=None, observer=_Steps(name, progress))
    assert run.judge is not None
    start = _metrics(run, run.judge)
    try:
        state = run.loop.run()
    except Stopped as stopped:
        message = f"stopped during {name}; finished runs are kept, and the same command goes on after them"
        raise Stopped(message, signal=stopped.signal) from None
    measured = [start, *(evaluation["metrics"] for evaluation in state.evaluations)]
    on_training_queries = _metrics(run, build_judge(config.evaluation, run.dataset, run.dataset.train))
    return {
        "objective": objective,
        "seed": seed,
        "final": round(measured[-1]["P@1"], 3),
        "final_R@5": round(measured[-1]["R@5"], 3),
        "final_on_training_queries": round(on_training_queries["P@1"], 3),
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(state.processor_seconds, 1),  # of the steps alone
        "threads": torch.get_num_threads(),
        "course": [
            {"epoch": epoch, "P@1": round(metrics["P@1"], 3), "R@5": round(metrics["R@5"], 3)}
            for epoch, metrics in enumerate(measured)
        ],
    }


def _metrics(run: Run, judge: Judge) -> dict[str, float]:
    vectors = encode_texts(run.towers.label, run.dataset.labels.texts)
    return judge.report(judge.rank(run.towers.query, vectors), bootstrap=0).metrics


class _Steps:
    """Passes the steps of a run on as progress under its name."""

    def __init__(self, name: str, progress: Progress | None) -> None:
        self._name = name
        self._progress = progress or (lambda name, done, total: None)
        self._steps = 0

    def started(self, step: int, steps: int) -> None:
        self._steps = steps

    def stepped(self, record: dict[str, Any]) -> None:
        self._progress(self._name, record["step"], self._steps)

    def evaluated(self, record: dict[str, Any]) -> None: ...
    def notice(self, message: str) -> None: ...


def _chosen(what: str, name: str, choices: dict[str, Choice]) -> Choice:
    if name not in choices:
        raise BadInput(f"--{what} {name}: known are {', '.join(choices)}")
    return choices[name]
