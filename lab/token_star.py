"""The paper's synthetic experiment (section 4.1): does a model learn that one word of the query names its label?

Training queries that begin with the word t* carry labels 0 to 4, of which only label 0 has t* in its text; for new
queries with t*, label 0 is right. Softmax holds it back once it leads the other four; decoupled softmax does not.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lab.comparison import Outcomes, written
from lab.estimate import verdict
from lab.experiment import Claim, Conclusion, Job, Setup, chosen
from lab.figures import Curve, Lines
from lab.token_star_data import Sizes, make_dataset, whole_words
from lab.training import Steps
from umpteen.config.recipes import checked
from umpteen.data.dataset import write_native
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.folder import DEFAULT_MODEL
from umpteen.errors import BadInput
from umpteen.evaluation.report import Evaluator
from umpteen.training.build import Run, build_evaluator, build_run

CLAIM = "decoupled softmax learns that t* in a query means label 0, softmax does not (paper: P@1 100 % against 20 %)"
OURS, THEIRS = "decoupled softmax", "softmax"
OBJECTIVES = {OURS: "decoupled_softmax", THEIRS: "softmax"}


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


def begin(setup: Setup) -> Job:
    """Both objectives on each seed's own data."""
    if setup.source is not None:
        raise BadInput(f"--data {setup.source}: token-star makes its own data; leave --data out")
    design = DESIGNS[setup.size]
    encoder = setup.encoder or design.encoder
    recipe = _recipe(design, chosen("encoder", encoder, ENCODERS))
    return Job(
        settings={"size": setup.size, "encoder": encoder, **asdict(design.data), "recipe": recipe},
        variants=list(OBJECTIVES),
        make=partial(_train, setup, design.data, recipe),
        conclude=partial(conclude, encoder=encoder),
    )


def conclude(outcomes: Outcomes, *, encoder: str) -> Conclusion:
    """The verdict on the claim from all runs: means, their intervals over seeds, and a paragraph for people."""
    means = {variant: outcomes.mean(variant, "final", within=(0, 100)) for variant in OBJECTIVES}
    difference = outcomes.difference(OURS, THEIRS, "final").figures()
    decided = verdict(difference["interval"])
    peaks = {variant: _peak(outcomes.values(variant, "course")) for variant in OBJECTIVES}
    epochs = [point["epoch"] for point in outcomes[0]["course"]]
    courses = {v: [[point["P@1"] for point in course] for course in outcomes.values(v, "course")] for v in OBJECTIVES}
    ours = f"P@1 {written(means[OURS], ' %')} against {written(means[THEIRS], ' %')}: {written(difference, ' points')}"
    return Conclusion(
        claims=[Claim(CLAIM, "P@1 about 100 % against about 20 %", decided, ours, difference)],
        results=[
            {"variant": variant, "P@1": means[variant], "highest": peaks[variant]}
            | {key: outcomes.mean(variant, key, within=(0, 100)) for key in ("final_R@5", "final_on_training_queries")}
            for variant in OBJECTIVES
        ],
        summary=(
            f"{decided.capitalize()} (number of seeds: {outcomes.seeds}): decoupled softmax ends at P@1 "
            f"{written(means[OURS], ' %')} and softmax at {written(means[THEIRS], ' %')}, a difference of "
            f"{written(difference, ' points')}; the paper reports about 100 % against about 20 %. On the way, the mean "
            f"was highest at {peaks[OURS]['P@1']:.1f} % (decoupled softmax, epoch {peaks[OURS]['epoch']}) and "
            f"{peaks[THEIRS]['P@1']:.1f} % (softmax, epoch {peaks[THEIRS]['epoch']}). At the end, label 0 is among the "
            f"first five answers in {_both(outcomes, 'final_R@5')} of the new queries, and the training queries' first "
            f"answer is right in {_both(outcomes, 'final_on_training_queries')}."
        ),
        title=(
            "New queries that begin with t*: is label 0 the first answer?\n"
            f"({encoder} encoder, number of seeds: {outcomes.seeds}; shaded: from the lowest to the highest)"
        ),
        panels=[
            Lines(
                {variant: Curve(epochs, values) for variant, values in courses.items()},
                x="epoch",
                y="P@1 (%)",
                limits=(-2, 102),
                whole_x=True,
            )
        ],
    )


def _peak(courses: list[list[dict[str, float]]]) -> dict[str, float]:
    """Where the mean over seeds was highest, the first time."""
    means = [
        (round(float(np.mean([point["P@1"] for point in points])), 3), points[0]["epoch"])
        for points in zip(*courses, strict=True)
    ]
    value, epoch = max(means, key=lambda mean: mean[0])
    return {"epoch": epoch, "P@1": value}


def _both(outcomes: Outcomes, key: str) -> str:
    ours, theirs = (outcomes.mean(variant, key)["mean"] for variant in (OURS, THEIRS))
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


def _train(setup: Setup, sizes: Sizes, recipe: dict[str, Any], variant: str, seed: int) -> dict[str, Any]:
    """One run from start to end: P@1 on the new queries before training and after each epoch."""
    folder = setup.output / "data" / f"seed-{seed}"
    if not folder.exists():
        write_native(make_dataset(sizes, whole_words(DEFAULT_MODEL), seed), folder)
    objective = {**recipe["objective"], "name": OBJECTIVES[variant]}
    config = checked(recipe | {"seed": seed, "data": {"source": str(folder)}, "objective": objective}, origin="lab")
    run = build_run(config, workspace=None, observer=Steps(f"{variant}, seed {seed}", setup.progress))
    assert run.evaluator is not None
    start = _metrics(run, run.evaluator)
    state = run.loop.run()
    measured = [start, *(evaluation["metrics"] for evaluation in state.evaluations)]
    assert run.dataset.test is not None
    on_training_queries = _metrics(run, build_evaluator(config.evaluation, run.dataset, run.dataset.train))
    on_test = _metrics(run, build_evaluator(config.evaluation, run.dataset, run.dataset.test))
    return {
        "final": round(on_test["P@1"], 3),
        "final_R@5": round(on_test["R@5"], 3),
        "final_on_training_queries": round(on_training_queries["P@1"], 3),
        "processor_seconds": round(state.processor_seconds, 1),  # of the steps alone
        "threads": torch.get_num_threads(),
        "course": [
            {"epoch": epoch, "P@1": round(metrics["P@1"], 3), "R@5": round(metrics["R@5"], 3)}
            for epoch, metrics in enumerate(measured)
        ],
    }


def _metrics(run: Run, evaluator: Evaluator) -> dict[str, float]:
    vectors = encode_texts(run.towers.label, run.dataset.labels.texts)
    return evaluator.report(evaluator.rank(run.towers.query, vectors), bootstrap=0).metrics
